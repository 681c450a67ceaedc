"""The first launch that reads memory of some sites, and the writer of the first NaN.

`first_nan` runs the case once under its own poison, which shows the writer. The first reader of the
blamed sites needs visible launches, so it is searched on a CPU only.

`first_reader` runs the case with only these sites filled, with one pattern after another. The
results of its launches are compared with a run in zeroed memory. The first launch with another live
result has read that memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch_poison.patterns import Poison

from harness.core.cases import AskFirstNan, Job
from harness.core.errors import SystemUnderTestError
from harness.core.records import Verdict
from harness.judge.outcome import Outcome
from harness.judge.probes.trace import Trace, first_difference
from harness.judge.target import target_of
from harness.judge.verdict import poison_of, sites_of

FRIENDLY = "zeros"
FILLS = ("nan", "random", "max")
"""Patterns to compare with zeros, in order, until a reader is found."""
INDEX_SITES = frozenset({"block_table.pad", "router.ids", "sched_meta", "workspace"})


@dataclass(frozen=True, slots=True)
class Reading:
    """The launch that read the memory, or the error that this led to, with the changed tensor and
    its step.
    """

    reader: str
    tensor: str = ""
    step: int = -1

    @property
    def place(self) -> str:
        """`out, step 1`; empty for an error."""
        return ", ".join(filter(None, (self.tensor, f"step {self.step}" if self.step >= 0 else "")))


def first_reader(job: Job, sites: tuple[str, ...]) -> Reading | None:
    """The first reader of `sites`.

    None without one, and for a case that fails in zeroed memory too.
    """
    friendly, error = _trace(job, Poison(FRIENDLY, frozenset(), seed=job.case.seed))
    if error:
        return None
    for fill in FILLS:
        trace, error = _trace(job, Poison(fill, frozenset(sites), seed=job.case.seed))
        event = first_difference(friendly, trace)
        if event is not None:
            return Reading(event.reader, event.tensor, event.step)
        if error:
            return Reading(error)
    indices = frozenset(sites) & INDEX_SITES
    looks_up_padding = any(spec.needs_valid_table for spec in job.case.known_kernels())
    if indices and not looks_up_padding:
        # A trap is a legal index, and what it leads to may change no live value. An index out of
        # range raises where it is used.
        _, error = _trace(job, Poison("nan", indices, strict=True, seed=job.case.seed))
        if error:
            return Reading(error)
    return None


def _trace(job: Job, poison: Poison) -> tuple[Trace, str]:
    """The trace of one run, and the error that ended it early; empty for a run that came to its
    end.
    """
    torch.manual_seed(job.case.seed)
    target = target_of(job)
    trace = Trace()
    try:
        run = target.run_traced(poison, trace)
        if run.error is not None:
            raise run.error
    except SystemUnderTestError as error:
        return trace, str(error).partition("\n")[0]
    trace.note_outcome(run, target.reader)
    return trace, ""


def first_nan(job: Job) -> Outcome:
    assert isinstance(job.ask, AskFirstNan)
    plan = job.case.poison
    found = target_of(job).first_writer(
        poison_of(plan, plan.patterns[0], sites_of(job), job.case.seed)
    )
    found = found.but(sites=job.ask.sites)
    if job.case.kind.shows_launches and job.device == "cpu" and job.ask.sites:
        reading = first_reader(job, job.ask.sites)
        found = found.but(
            **{"reader": reading.reader, "reader_at": reading.place} if reading else {}
        )
    return Outcome(Verdict.FAIL if found.writer else Verdict.PASS, first_nan=found)
