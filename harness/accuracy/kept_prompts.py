"""A task of lm-eval that makes its prompts once. Imports lm-eval."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from lm_eval.api.task import ConfigurableTask  # type: ignore[import-untyped]


class KeptPrompts(ConfigurableTask):  # type: ignore[misc]
    """Each prompt draws its few-shot examples from one generator. Prompts made again for another epoch, or for the rest
    of an epoch after a kill, would differ.
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
            replace(self.kept[i], resps=[], filtered_resps={}, metadata=(self.config.task, number, 1))
            for number, i in enumerate(chosen)
        ]

    def filtered(self, instance: Any, text: str) -> dict[str, Any]:
        """What each filter takes from one answer. The instances of a running evaluation stay as they are."""
        alone = replace(instance, resps=[text], filtered_resps={})
        running, self._instances = self._instances, [alone]
        try:
            self.apply_filters()
        finally:
            self._instances = running
        return dict(alone.filtered_resps)

    def doc_to_target(self, doc: Any, doc_to_target: Any = None) -> Any:
        """Keeps each target: lm-eval compiles its template three times an answer, a third of a fast engine's time."""
        key = json.dumps([doc, doc_to_target], sort_keys=True, default=str)
        if key not in self._targets:
            self._targets[key] = super().doc_to_target(doc, doc_to_target)
        return self._targets[key]
