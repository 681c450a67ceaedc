"""The parameters of a measurement by `mla-harness epochs`: the model that is asked, and how."""

from __future__ import annotations

from harness.core.params import Params


class ModelParams(Params):
    """The request of `mla-harness epochs`, with everything that `--resume` needs."""

    task: str
    model: str
    epochs: int = 5
    concurrency: int = 32
    limit: int | None = None
    data_dir: str | None = None
    filter: str | None = None
    seed: int = 0
    max_tokens: int | None = None
    kv: str | None = None
    graph: str | None = None
    num_blocks: int | None = None
    device: str | None = None
    served_model: str | None = None
    timeout: float | None = None
    logprobs: bool = False
    least: float | None = None
    repeat: int = 0
    least_acceptance: float | None = None

    @property
    def has_graph(self) -> bool:
        """False: the model that is asked has the graphs, and the case has none."""
        return False
