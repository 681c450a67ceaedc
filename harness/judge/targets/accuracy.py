"""A target of questions: a canary answers a task in every epoch on one engine."""

from __future__ import annotations

import tempfile
from pathlib import Path

from torch_poison.patterns import Poison

from harness.core import extras
from harness.core.cases import Case
from harness.core.cause_codes import WhyNot
from harness.core.engine_params import AccuracyParams
from harness.core.files import FIXTURES
from harness.core.serving_params import ServingParams
from harness.evidence.answers import Answered
from harness.evidence.records import Run
from harness.judge.target import Target

ORDER_SEED = 0
"""Seed of the order of questions in each epoch: the same for all cases, so that curves are
comparable.
"""


class AccuracyTarget(Target):
    """Asks a canary a task's questions, `epochs` times.

    `directory` keeps the answers of a killed run.
    """

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> WhyNot | None:
        if reason := extras.why_not(extras.ACCURACY):
            return reason
        canary = _canary(case.params_as(AccuracyParams))
        if (canary / "config.json").is_file():
            return None
        return WhyNot(f"{canary} is not there: train one with `canary train`")

    def run(self, poison: Poison) -> Run:
        """Answer the questions without a stored answer in the directory."""
        # The import of lm-eval needs seconds, and a worker may never get such a case.
        from harness.accuracy.epochs import run_epochs
        from harness.accuracy.tasks import load_task
        from harness.judge.served_engine import open_engine

        params = self.case.params_as(AccuracyParams)
        options = params.model_dump(include=set(ServingParams.model_fields) - {"max_num_seqs"})
        backend = open_engine(
            str(_canary(params)),
            concurrency=params.max_num_seqs,
            poison=poison,
            device=self.device,
            **options,
        )
        with tempfile.TemporaryDirectory() as scratch:
            task = load_task(params.task, Path(scratch), limit=params.limit)
            found = run_epochs(
                backend,
                task,
                Path(self.directory or scratch),
                resume=True,
                num_epochs=params.epochs,
                seed=ORDER_SEED,
                max_tokens=params.max_tokens,
            )
        return Run(poison.pattern, [Answered(found)])


def _canary(params: AccuracyParams) -> Path:
    return FIXTURES / f"canary-{params.canary}"
