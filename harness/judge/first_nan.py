"""The answer to `AskFirstNan`: what wrote the first value that is not finite, and what read the memory to blame.

The writer is found in one run under the case's own poison. The first reader of the sites to blame is found by
comparing runs that differ only in what these sites hold, where launches can be seen: on a CPU.
"""

from __future__ import annotations

from harness.core.cases import AskFirstNan, AskReaders, Job
from harness.core.records import Verdict
from harness.judge import readers
from harness.judge.outcome import Outcome
from harness.judge.target import target_of
from harness.judge.verdict import poison_of, sites_of


def answer(job: Job) -> Outcome:
    """Run the case with the recorder. `first_nan` is what it saw."""
    assert isinstance(job.ask, AskFirstNan)
    plan = job.case.poison
    found = target_of(job).first_writer(poison_of(plan, plan.patterns[0], sites_of(job), job.case.seed))
    found = found.model_copy(update={"sites": job.ask.sites})
    if job.case.kind.shows_launches and job.device == "cpu" and job.ask.sites:
        found = found.model_copy(update=_first_reader(job, job.ask.sites))
    return Outcome(Verdict.FAIL if found.writer else Verdict.PASS, first_nan=found)


def _first_reader(job: Job, sites: tuple[str, ...]) -> dict[str, str]:
    """The first launch with a live result that depends on what the sites hold, and where; empty without one."""
    found = readers.answer(job.model_copy(update={"ask": AskReaders(sites=sites)}))
    if not found.findings:
        return {}
    finding = found.findings[0]
    return {
        "reader": finding.message,
        "reader_at": ", ".join(part for part in (finding.tensor, finding.where) if part),
    }
