"""The answer to `AskFirstNan`: the op that wrote the first value that is not finite, and the reader of blamed memory.

One run under the case's own poison shows the writer. The first reader of the blamed sites is found by runs that differ
only in the content of these sites. This needs visible launches, so it works on a CPU only.
"""

from __future__ import annotations

from harness.core.cases import AskFirstNan, AskReaders, Job
from harness.core.records import Verdict
from harness.judge import readers
from harness.judge.run_records import Outcome
from harness.judge.target import target_of
from harness.judge.verdict import poison_of, sites_of


def answer(job: Job) -> Outcome:
    """Run the case with the recorder. Its report is `first_nan` of the outcome."""
    assert isinstance(job.ask, AskFirstNan)
    plan = job.case.poison
    found = target_of(job).first_writer(poison_of(plan, plan.patterns[0], sites_of(job), job.case.seed))
    found = found.model_copy(update={"sites": job.ask.sites})
    if job.case.kind.shows_launches and job.device == "cpu" and job.ask.sites:
        found = found.model_copy(update=_first_reader(job, job.ask.sites))
    return Outcome(Verdict.FAIL if found.writer else Verdict.PASS, first_nan=found)


def _first_reader(job: Job, sites: tuple[str, ...]) -> dict[str, str]:
    """The first launch with a live result that depends on the sites, and its place; empty without one."""
    found = readers.answer(job.model_copy(update={"ask": AskReaders(sites=sites)}))
    if not found.findings:
        return {}
    finding = found.findings[0]
    return {
        "reader": finding.message,
        "reader_at": ", ".join(part for part in (finding.tensor, finding.where) if part),
    }
