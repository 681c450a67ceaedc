"""What answers questions: the one interface of every model under test, and the lookup of a model's description.

A model is written ``engine:DIR`` (the reference engine), ``vllm:PATH`` (vLLM in this process) or
``server:http://host:port/v1`` (any OpenAI-compatible server). Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from harness.core.errors import InputError

KINDS = ("engine", "vllm", "server")

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Answer:
    """What became of one prompt.

    `unanswered` says why there is no answer; then `text` is empty. `had_invalid_tokens` is true for a token outside
    the vocabulary, a token chosen from logits that were not finite, or bytes that are no text.
    """

    text: str
    finish: str = "stop"
    num_tokens: int = 0
    had_invalid_tokens: bool = False
    unanswered: str | None = None
    num_attempts: int = 1


OnAnswer = Callable[[int, Answer], None]
"""Called with the prompt's position and its answer, from the caller's own thread, as soon as the answer is there."""


@dataclass(frozen=True)
class Identity:
    """What a baseline and a report say about a model."""

    model: str
    engine: str
    dtype: str
    model_hash: str
    deterministic: bool = False
    """The same prompts in any order give the same answers, bit for bit: one flip is then a finding."""
    note: str = ""


@runtime_checkable
class Backend(Protocol):
    """A running model; it keeps its state (KV pages, graphs) from call to call."""

    @property
    def identity(self) -> Identity: ...

    def generate(
        self, prompts: Sequence[str], *, max_tokens: int, stop: Sequence[str], on_answer: OnAnswer | None = None
    ) -> list[Answer]:
        """Greedy answers in the order of `prompts`, each cut before the first stop string."""
        ...

    def close(self) -> None:
        """Give back what the model holds."""
        ...


@runtime_checkable
class ScoresText(Protocol):
    """A backend that can also tell how likely a continuation is."""

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[float, bool]]:
        """For each (context, continuation): its log probability, and whether greedy decoding would give it."""
        ...


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """`text` up to the first of the stop strings, and whether one was found."""
    ends = [at for at in (text.find(word) for word in stop if word) if at >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def has_invalid_text(text: str, finish: str) -> bool:
    """Whether `text` holds bytes that are no text; a character that the length limit cut in two is none."""
    whole = text.rstrip(REPLACEMENT) if finish == "length" else text
    return REPLACEMENT in whole or "\0" in whole


def parse_model(spec: str) -> tuple[str, str]:
    """Split ``kind:rest``; raises InputError for anything else."""
    kind, colon, rest = spec.partition(":")
    if not colon or kind not in KINDS or not rest:
        raise InputError(f"--model {spec!r}: write engine:DIR, vllm:PATH or server:http://host:port/v1")
    return kind, rest


def open_backend(spec: str, *, concurrency: int = 32, **options: Any) -> Backend:
    """Start the model that `spec` describes. Raises InputError when it cannot be had here.

    `options` go to the backend as they are: `served_model`, `timeout`, `max_attempts` for a server, arguments of
    `vllm.LLM` for vLLM, settings of the reference engine for an engine.
    """
    kind, rest = parse_model(spec)
    # Each kind needs packages that the others do not: nothing is loaded that this model does not use.
    if kind == "server":
        from harness.accuracy.server_backend import ServerBackend

        return ServerBackend(rest, concurrency=concurrency, **options)
    if kind == "vllm":
        from harness.engines.vllm.backend import VllmBackend

        return VllmBackend(rest, concurrency=concurrency, **options)
    from harness.judge.served_engine import open_engine

    return open_engine(rest, concurrency=concurrency, **options)
