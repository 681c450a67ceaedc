"""What lm-eval calls: any backend as its model, and a task that makes its prompts once.

Imports lm-eval.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lm_eval.api.model import LM  # type: ignore[import-untyped]
from lm_eval.api.task import ConfigurableTask  # type: ignore[import-untyped]

from harness.accuracy.backends import Answer, AnswerBackend
from harness.core.errors import InputError

DEFAULT_MAX_TOKENS = 256
"""lm-eval's own default where a task names none."""

OnInstance = Callable[[Any, Answer], None]


class BackendLM(LM):  # type: ignore[misc]
    """Greedy generation through a backend.

    One instance serves all epochs, because its backend keeps its state.

    `order` maps the requests of a call to a permutation of their positions. `on_answer` is called
    with the lm-eval instance and its answer as soon as the answer arrives. `seconds_generating` is
    the time in the backend, without the time in `on_answer`.
    """

    def __init__(self, backend: AnswerBackend, max_tokens: int | None = None) -> None:
        super().__init__()
        self.backend = backend
        self.max_tokens = max_tokens
        self.order: Callable[[list[Any]], list[int]] | None = None
        self.on_answer: OnInstance | None = None
        self.seconds_generating = 0.0
        self._resumed = 0.0

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """One call of the backend for all requests of one stop list and length limit."""
        # The order is a condition of the test: other neighbours in the batch, other pages of the
        # cache.
        positions = self.order(requests) if self.order else list(range(len(requests)))
        groups: dict[tuple[int, tuple[str, ...]], list[int]] = defaultdict(list)
        for position in positions:
            groups[self._settings(requests[position].args[1])].append(position)
        texts = [""] * len(requests)
        # Sent together, so that the server batches them as it would in use.
        for (max_tokens, stop), members in groups.items():
            # `members` is bound here, as the loop gives it another value.
            def note(i: int, answer: Answer, members: list[int] = members) -> None:
                paused = time.perf_counter()
                # What is done with an answer meanwhile, such as writing it down, is not the
                # engine's time.
                self.seconds_generating += paused - self._resumed
                if self.on_answer:
                    self.on_answer(requests[members[i]], answer)
                self._resumed = time.perf_counter()

            prompts = [requests[i].args[0] for i in members]
            self._resumed = time.perf_counter()
            answers = self.backend.generate(
                prompts, max_tokens=max_tokens, stop=stop, on_answer=note
            )
            self.seconds_generating += time.perf_counter() - self._resumed
            for i, answer in zip(members, answers, strict=True):
                texts[i] = answer.text
        return texts

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Raises InputError: only answers are measured."""
        raise InputError(
            "the harness measures answers, not log probabilities: choose a task that generates text"
        )

    loglikelihood_rolling = loglikelihood

    def _settings(self, kwargs: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
        # lm-eval passes what the task's YAML says, with its own mixture of types.
        if kwargs.get("do_sample") or float(kwargs.get("temperature") or 0.0) > 0.0:
            raise InputError(
                "this task samples its answers; epochs are compared question by question and need"
                " greedy ones"
            )
        until = kwargs.get("until") or ()
        stop = (until,) if isinstance(until, str) else tuple(until)
        requested = int(
            kwargs.get("max_gen_toks") or kwargs.get("max_tokens") or DEFAULT_MAX_TOKENS
        )
        return min(requested, self.max_tokens or requested), stop


class KeptPrompts(ConfigurableTask):  # type: ignore[misc]
    """Each prompt draws its few-shot examples from one generator.

    Prompts made again for another epoch, or for the rest of an epoch after a kill, would differ.
    """

    kept: list[Any]
    """The instances of all questions."""

    @classmethod
    def of(cls, task: Any, limit: int | None) -> KeptPrompts:
        """Make `task` one of this class, with the prompts of its first `limit` questions."""
        # lm-eval takes a class only from a Python file beside a task's YAML.
        task.__class__ = cls
        task._targets = {}
        super(cls, task).build_all_requests(limit=limit)
        task.kept = list(task.instances)
        kept: KeptPrompts = task
        return kept

    @property
    def filter_names(self) -> list[str]:
        return [ensemble.name for ensemble in self._filters]

    def build_all_requests(self, *, samples: list[int] | None = None, **_: Any) -> None:
        """Use the kept prompts of the questions `samples`, numbered as lm-eval expects."""
        chosen = range(len(self.kept)) if samples is None else samples
        self._instances = [
            replace(
                self.kept[i], resps=[], filtered_resps={}, metadata=(self.config.task, number, 1)
            )
            for number, i in enumerate(chosen)
        ]

    def filtered(self, instance: Any, text: str) -> dict[str, Any]:
        """What each filter takes from one answer.

        The instances of a running evaluation stay as they are.
        """
        alone = replace(instance, resps=[text], filtered_resps={})
        running = self._instances
        self._instances = [alone]
        try:
            self.apply_filters()
        finally:
            self._instances = running
        return dict(alone.filtered_resps)

    def doc_to_target(self, doc: Any, doc_to_target: Any = None) -> Any:
        """Keeps each target: lm-eval compiles its template three times an answer, a third of a fast
        engine's time.
        """
        key = json.dumps([doc, doc_to_target], sort_keys=True, default=str)
        if key not in self._targets:
            self._targets[key] = super().doc_to_target(doc, doc_to_target)
        return self._targets[key]
