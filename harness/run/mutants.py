"""The trials of mutants, as their parent sees them: one child that forks for each mutant."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.mutants import MutantResult, SurveyedCase, Trials
from harness.run.child import ONE_THREAD, Child

MODULE = "harness.judge.mutants.trials"


class MutantTrials:
    """Tries mutants on cases. `cases` is set once the cases were surveyed."""

    def __init__(self, request: Trials) -> None:
        self.cases: list[SurveyedCase] = []
        self._request = request
        self._child: Child | None = None

    def results(self) -> Iterator[MutantResult]:
        """The result of each mutant, in the order of the files. Raises HarnessError if the child fails."""
        with Child(MODULE, name="the trials of mutants", environ=ONE_THREAD) as self._child:
            self._child.send(self._request)
            while (reply := self._child.answer()).result is None:
                found = reply.progress or {}
                self.cases += [SurveyedCase.model_validate(case) for case in found.get("cases", ())]
                if "mutant" in found:
                    yield MutantResult.model_validate(found["mutant"])

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
