"""A check of a running server: accuracy in every epoch, and whether greedy answers repeat."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.accuracy.backends import Backend
from harness.accuracy.epochs import run_epochs
from harness.accuracy.judge import judge
from harness.accuracy.server_backend import ServerBackend
from harness.accuracy.tasks import load_task
from harness.core.finding_words import few
from harness.core.params import Record
from harness.core.records import AccuracyLimits, AccuracyRecord, CaseResult, Finding, Verdict

SCENARIO = "serve-check"


class Check(Record):
    """A server and the questions for it."""

    url: str
    task: str = "gsm_symbolic"
    num_epochs: int = 3
    limit: int = 64
    concurrency: int = 32
    repeats: int = 16
    max_tokens: int = 112
    least: float | None = None
    served_model: str | None = None
    timeout: float = 120.0


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check."""

    record: AccuracyRecord
    num_repeated: int
    different: tuple[int, ...]
    """Numbers of the prompts with another second answer."""

    @property
    def ok(self) -> bool:
        """Whether accuracy held and every repeat gave the same answer."""
        return self.record.verdict is Verdict.PASS and not self.different

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "model": self.record.model,
            "accuracy": [epoch.accuracy for epoch in self.record.epochs],
            "verdict": self.record.verdict.value,
            "statement": self.record.judgement.statement,
            "num_repeated": self.num_repeated,
            "different": self.different,
        }

    def result(self) -> CaseResult:
        """The check as a case, for run folders and reports."""
        record, name = self.record, f"{SCENARIO}[task={self.record.task},model={self.record.model}]"
        findings = [Finding(oracle="accuracy", message=reason) for reason in record.judgement.reasons]
        if self.different:
            which = few([str(number) for number in self.different], "more")
            message = f"{len(self.different)} of {self.num_repeated} greedy answers differ the second time: {which}"
            findings.append(Finding(oracle="repeats", message=message))
        return CaseResult(
            key=name,
            id=name,
            scenario=SCENARIO,
            verdict=Verdict.PASS if self.ok else record.verdict if not self.different else Verdict.FAIL,
            reason=record.judgement.statement,
            findings=() if self.ok else tuple(findings),
            looked_at={"accuracy": sum(epoch.num_questions for epoch in record.epochs), "repeats": self.num_repeated},
            accuracy=record,
        )

    def lines(self) -> list[str]:
        curve = ", ".join(f"{epoch.accuracy:.4f}" for epoch in self.record.epochs)
        same = self.num_repeated - len(self.different)
        lines = [
            f"model: {self.record.model}",
            f"accuracy by epoch: {curve} ({self.record.verdict.value}: {self.record.judgement.statement})",
            f"repeated greedy answers: {same} of {self.num_repeated} the same",
        ]
        if self.different:
            lines.append(f"prompts with a different second answer: {', '.join(map(str, self.different))}")
        return lines


def check_server(check: Check) -> Checked:
    """Ask a server all questions. Raises InputError for a wrong address, HarnessError for a server that is gone."""
    backend, alone = (
        ServerBackend(check.url, concurrency=concurrency, served_model=check.served_model, timeout=check.timeout)
        for concurrency in (check.concurrency, 1)
    )
    return check_backend(backend, alone, check)


def check_backend(backend: Backend, alone: Backend, check: Check) -> Checked:
    """Check through two backends. `alone` asks one prompt at a time, so that no batch changes its rounding."""
    with tempfile.TemporaryDirectory() as scratch:
        task = load_task(check.task, Path(scratch), limit=check.limit)
        run = run_epochs(backend, task, Path(scratch) / "run", num_epochs=check.num_epochs, max_tokens=check.max_tokens)
        record = judge(run, limits=AccuracyLimits(accuracy=check.least), scenario=SCENARIO)
    prompts = [f"Question: {n}. What is {n} plus {7 * n}?\nAnswer:" for n in range(check.repeats)]
    first, second = ([a.text for a in alone.generate(prompts, max_tokens=32, stop=())] for _ in range(2))
    return Checked(
        record=record,
        num_repeated=len(prompts),
        different=tuple(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b),
    )
