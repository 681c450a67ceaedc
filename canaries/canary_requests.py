"""What `mla-harness canary` asks of its child processes."""

from __future__ import annotations

from harness.core.params import Record


class TrainCanary(Record):
    """For `canaries.train`: a canary to train.

    `limit` keeps the first questions, all of them when None.
    """

    task: str
    out: str
    architecture: str
    minutes: float
    device: str
    seed: int
    num_experts: int
    limit: int | None


class RandomCanary(Record):
    """For `canaries.random_model`: an architecture of transformers, and the new folder of its
    checkpoint.
    """

    architecture: str
    out: str
    seed: int
    quick: bool


class JudgedLogprobs(Record):
    """For `canaries.judge_logprobs`: a random checkpoint, and the file of what an engine said of
    its tokens.
    """

    checkpoint: str
    found: str
    cache: str
    generated: bool


class WrittenGguf(Record):
    """For `canaries.gguf_file`: a checkpoint, the new file, and the type of its matrices."""

    checkpoint: str
    out: str
    kind: str
