"""The interface of every model under test, and the lookup of a model by its description.

A description is ``engine:DIR`` (the reference engine), ``server:http://host:port/v1`` (any
OpenAI-compatible server), or another form from the table of models.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.core.catalog import MODELS
from harness.core.errors import InputError
from harness.core.registry import attribute_at
from harness.core.systems import ModelSpec

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
CANARY_NOTE = "a canary: it measures inference, not ability"
_HASHED = ("config.json", "*.safetensors", "tokenizer.json")
_BLOCK = 1 << 20
_WHOLE_UP_TO = 1 << 30


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt.

    `unanswered` is the reason for no answer; then `text` is empty. `had_invalid_tokens` is true for
    a token outside the vocabulary, a token chosen from logits that were not finite, or bytes that
    are no text.
    """

    text: str
    finish: str = "stop"
    num_tokens: int = 0
    had_invalid_tokens: bool = False
    unanswered: str | None = None
    num_attempts: int = 1
    tokens: tuple[str, ...] = ()
    """The tokens of the answer, if the backend was asked for log probabilities."""
    logprobs: tuple[float | None, ...] = ()
    """The log probability of each token; None for one that is not a number."""

    @classmethod
    def of_text(
        cls, text: str, finish: str, num_tokens: int, stop: Sequence[str], *, is_invalid: bool
    ) -> Answer:
        """The answer of a text that an engine gave, cut before the first stop string.

        `is_invalid` says that a token or a log probability was invalid; the text is checked too.
        """
        text, _ = cut_at_stop(text, stop)
        return cls(text, finish, num_tokens, is_invalid or has_invalid_text(text, finish))


OnAnswer = Callable[[int, Answer], None]
"""Called in the caller's thread with the prompt's position and its answer, as soon as the answer
arrives.
"""


@dataclass(frozen=True)
class Identity:
    """A model, as baselines and reports name it."""

    model: str
    engine: str
    dtype: str
    model_hash: str
    deterministic: bool = False
    """The same prompts give the same answers in any order, bit for bit.

    Then one flip is a finding.
    """
    note: str = ""

    @classmethod
    def of_model(cls, model: str, *, engine: str, dtype: str, release: str) -> Identity:
        """A model that an engine of some `release` runs: the path of a checkpoint, or a name.

        A checkpoint is named by its folder and hashed. Raises InputError for another folder.
        """
        path = Path(model)
        if not path.is_dir():
            return cls(model, engine, dtype, f"name:{model}", note=release)
        card = describe_directory(path)
        note = ", ".join(filter(None, [card.note, release]))
        return cls(card.name, engine, dtype, card.hash, note=note)


class AnswerBackend(Protocol):
    """A running model. It keeps its state (KV pages, graphs) from call to call."""

    @property
    def identity(self) -> Identity: ...

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int,
        stop: Sequence[str],
        on_answer: OnAnswer | None = None,
    ) -> list[Answer]:
        """Greedy answers in the order of `prompts`, each cut before the first stop string."""
        ...

    def close(self) -> None: ...


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """`text` up to the first of the stop strings, and whether one was found."""
    ends = [at for at in (text.find(word) for word in stop if word) if at >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


def has_invalid_text(text: str, finish: str) -> bool:
    """Whether `text` holds bytes that are no text.

    A last character that the length limit cut does not count.
    """
    whole = text.rstrip(REPLACEMENT) if finish == "length" else text
    return REPLACEMENT in whole or "\0" in whole


def parse_model(spec: str) -> tuple[ModelSpec, str]:
    """Split ``kind:where``; raises InputError for anything else."""
    kind, colon, where = spec.partition(":")
    if not colon or kind not in MODELS or not where:
        forms = [f"{model.name}:{model.where}" for model in MODELS]
        raise InputError(f"--model {spec!r}: write {', '.join(forms[:-1])} or {forms[-1]}")
    return MODELS.get(kind), where


def open_backend(spec: str, *, concurrency: int = 32, **options: Any) -> AnswerBackend:
    """Start the model that `spec` describes. Raises InputError when it cannot run here.

    `options` are arguments of the model's backend. Only the packages of this backend are imported.
    """
    kind, where = parse_model(spec)
    backend: AnswerBackend = attribute_at(kind.open)(where, concurrency=concurrency, **options)
    return backend


@dataclass(frozen=True)
class Description:
    """A checkpoint directory: its name, its hash, and a note that reports must show."""

    name: str
    hash: str
    note: str


def describe_directory(directory: Path) -> Description:
    """Describe a Hugging Face directory. Raises InputError for another directory."""
    config_file = directory / "config.json"
    if not config_file.is_file():
        raise InputError(f"{directory}: no config.json there; name a Hugging Face model directory")
    try:
        json.loads(config_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{config_file}: not JSON ({error})") from None
    card = directory / "README.md"
    is_canary = card.is_file() and "measures inference, not ability" in card.read_text(
        encoding="utf-8"
    )
    return Description(
        directory.resolve().name, hash_directory(directory), CANARY_NOTE if is_canary else ""
    )


def hash_directory(directory: Path) -> str:
    """``sha256:`` and 16 hex digits over the names and bytes of configuration, weights and
    tokenizer.

    A file over 1 GiB counts by its size and its first and last MiB, so that a checkpoint of 600 GB
    needs a second.
    """
    digest = hashlib.sha256()
    files = sorted({path for pattern in _HASHED for path in directory.glob(pattern)})
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as stream:
            if path.stat().st_size > _WHOLE_UP_TO:
                digest.update(stream.read(_BLOCK))
                stream.seek(-_BLOCK, os.SEEK_END)
            while block := stream.read(_BLOCK):
                digest.update(block)
    return f"sha256:{digest.hexdigest()[:16]}"
