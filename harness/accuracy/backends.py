"""What answers questions: the one interface of every model under test, and the lookup of a model's description.

A model is written ``engine:DIR`` (the reference engine), ``server:http://host:port/v1`` (any OpenAI-compatible
server), or as an engine's table of models says. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from harness.core.catalog import MODELS
from harness.core.engine_spec import ModelSpec
from harness.core.errors import InputError
from harness.core.system_spec import attribute_at

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


def parse_model(spec: str) -> tuple[ModelSpec, str]:
    """Split ``kind:where``; raises InputError for anything else."""
    kind, colon, where = spec.partition(":")
    if not colon or kind not in MODELS or not where:
        forms = [f"{model.name}:{model.where}" for model in MODELS]
        raise InputError(f"--model {spec!r}: write {', '.join(forms[:-1])} or {forms[-1]}")
    return MODELS.get(kind), where


def open_backend(spec: str, *, concurrency: int = 32, **options: Any) -> Backend:
    """Start the model that `spec` describes. Raises InputError when it cannot be had here.

    `options` are the fields of `ModelParams` that the table of models lists for this kind, and others of its backend.
    Each kind needs packages that the others do not: nothing is loaded that this model does not use.
    """
    kind, where = parse_model(spec)
    backend: Backend = attribute_at(kind.open)(where, concurrency=concurrency, **options)
    return backend
