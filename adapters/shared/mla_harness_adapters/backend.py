"""An engine in this process as a backend, through its public `generate` only."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harness.api import Answer, Drafts, EngineSpec, Identity, InputError

CHUNK = 1024
"""Prompts of one `generate`.

It returns all answers at its end, so a killed process loses this many.
"""

Generated = tuple[str, str, Sequence[int], Sequence[float | None]]
"""An answer of the engine: its text, why it ended, its tokens and their log probabilities."""


def options_for(
    engine: EngineSpec,
    flag: str,
    value: str | None,
    choices: Mapping[str, Mapping[str, object]],
    words: str = "",
) -> Mapping[str, Any]:
    """The engine's options for the value of a flag; none if the flag is not given.

    Raises InputError for a value that is not among the `choices`; `words` are the choices in the
    message, where more is to be said.
    """
    if value is None:
        return {}
    if value not in choices:
        raise InputError(f"{flag} {value}: {engine.title} takes {words or ', '.join(choices)}")
    return choices[value]


class EngineBackend(ABC):
    """One engine for the whole run, so that slots of its KV cache are recycled between epochs.

    Answers are not deterministic: the batch changes the rounding of kernels.
    """

    def __init__(self, engine: EngineSpec, path: str, module: str) -> None:
        """Import a module of the engine. Raises InputError if it cannot be imported."""
        try:
            self._module: Any = importlib.import_module(module)
            self._version = str(importlib.import_module(engine.package).__version__)
        except ImportError as error:
            how = "install it, or use server:URL"
            where = f"--model {engine.name}:{path}"
            raise InputError(
                f"{where}: {engine.title} cannot be imported here ({error}); {how}"
            ) from None
        self._spec = engine
        self._path = path

    def describe(self, vocab_size: int, dtype: object, cache: object) -> None:
        """Note what runs: the types of the model and of its cache, as the engine names them."""
        self._vocab_size = vocab_size
        of_model = str(dtype).removeprefix("torch.")
        of_cache = str(cache)
        self.identity = Identity.of_model(
            self._path,
            engine=self._spec.name,
            dtype=of_model if of_cache in ("auto", of_model) else f"{of_model}, kv {of_cache}",
            release=f"{self._spec.title} {self._version}",
        )

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int,
        stop: Sequence[str],
        on_answer: Callable[[int, Answer], None] | None = None,
    ) -> list[Answer]:
        """Greedy answers in the order of `prompts`.

        An answer with a NaN in its log probabilities is invalid.
        """
        answers: list[Answer] = []
        words = [word for word in stop if word]
        for start in range(0, len(prompts), CHUNK):
            for generated in self._generated(
                list(prompts[start : start + CHUNK]), max_tokens, words
            ):
                answers.append(self._answer(generated, stop))
                if on_answer:
                    on_answer(len(answers) - 1, answers[-1])
        return answers

    def drafts(self) -> Drafts | None:
        return None

    @abstractmethod
    def _generated(
        self, prompts: list[str], max_tokens: int, stop: list[str]
    ) -> Iterable[Generated]:
        """What the engine gives to some prompts, in their order."""

    def _answer(self, generated: Generated, stop: Sequence[str]) -> Answer:
        text, finish, tokens, logprobs = generated
        # A NaN in the logits makes every log probability of its row NaN.
        is_bad = finish == "abort" or any(
            value is None or not math.isfinite(value) for value in logprobs
        )
        outside = any(not 0 <= token < self._vocab_size for token in tokens)
        return Answer.of_text(text, finish, len(tokens), stop, is_invalid=is_bad or outside)
