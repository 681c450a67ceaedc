"""The answer to `AskReaders`: the first launch that reads the memory of some sites.

The case runs with only these sites filled, with one pattern after another. The results of its launches are compared
with a run in zeroed memory. The first launch with another live result has read that memory.
"""

from __future__ import annotations

import torch

from harness.core.cases import AskReaders, Case, Job
from harness.core.catalog import KERNELS
from harness.core.cure_names import filled_sites
from harness.core.records import Finding, Verdict
from harness.judge.oracles.crash import CRASHES
from harness.judge.probes.trace import Event, Trace, first_difference
from harness.judge.run_records import Outcome
from harness.judge.target import target_of
from harness.memory.poison.patterns import Poison

READING = "reading"
"""The `oracle` of findings that name a reader."""
LOOKED_AT = "compared"
FRIENDLY = "zeros"
FILLS = ("nan", "random", "max")
"""Patterns to compare with zeros, in order, until a reader is found."""
FINITE_FILLS = ("random", "max")
"""Patterns for a site that a fix fills: if they matter, something reads the fill."""
INDEX_SITES = frozenset({"block_table.pad", "router.ids", "sched_meta", "workspace"})


def answer(job: Job) -> Outcome:
    """Search for the first reader. A finding names it. Verdict `skip` means that the run in zeroed memory failed."""
    assert isinstance(job.ask, AskReaders)
    sites = job.ask.sites
    friendly, error = _friendly(job)
    if error is not None:
        # The failure needs no poison, so there is no run to compare with.
        return Outcome(Verdict.SKIP, f"it does not run in friendly memory either: {error}", looked_at={LOOKED_AT: 0})
    num_compared = 0
    for fill in FILLS:
        filled = frozenset(sites) - (frozenset() if fill in FINITE_FILLS else frozenset(filled_sites(job.cures)))
        if not filled:
            continue
        trace, error = _trace(job, Poison(fill, filled, seed=job.case.seed))
        num_compared += len(trace.events)
        event = first_difference(friendly, trace)
        if event is not None or error is not None:
            return _found(_finding(sites, event, f"{FRIENDLY} / {fill}", error), num_compared)
    indices = frozenset(sites) & INDEX_SITES
    if indices and not _looks_up_padding(job.case):
        _, error = _trace(job, Poison("nan", indices, strict=True, seed=job.case.seed))
        if error is not None:
            return _found(_finding(sites, None, "as an index out of range", error), num_compared)
    if not num_compared:
        return Outcome(Verdict.ERROR, "no live tensor was compared; a comparison of nothing proves nothing")
    return Outcome(Verdict.PASS, looked_at={LOOKED_AT: num_compared})


def _found(finding: Finding, num_compared: int) -> Outcome:
    return Outcome(Verdict.FAIL, findings=[finding], looked_at={LOOKED_AT: num_compared})


def _friendly(job: Job) -> tuple[Trace, str | None]:
    """The run without poison. It is the same for all sites, so the last one is kept."""
    key = job.model_copy(update={"key": "", "sites": None, "ask": AskReaders(sites=())}).model_dump_json()
    if key not in _kept:
        _kept.clear()
        _kept[key] = _trace(job, Poison(FRIENDLY, frozenset(), seed=job.case.seed))
    return _kept[key]


_kept: dict[str, tuple[Trace, str | None]] = {}


def _trace(job: Job, poison: Poison) -> tuple[Trace, str | None]:
    """The trace of one run, and the error that ended it early."""
    torch.manual_seed(job.case.seed)
    target = target_of(job)
    trace = Trace()
    try:
        run = target.run_traced(poison, trace)
    except CRASHES as error:
        return trace, str(error).partition("\n")[0]
    if run.error is not None:
        return trace, str(run.error).partition("\n")[0]
    trace.note_outcome(run, target.reader)
    return trace, None


def _finding(sites: tuple[str, ...], event: Event | None, fills: str, error: str | None) -> Finding:
    site = sites[0] if len(sites) == 1 else None
    if event is None:
        return Finding(oracle=READING, site=site, tensor="", where="", message=error or "", bits=fills)
    step = f"step {event.step}" if event.step >= 0 else ""
    return Finding(oracle=READING, site=site, tensor=event.tensor, where=step, message=event.reader, bits=fills)


def _looks_up_padding(case: Case) -> bool:
    """Whether the decode kernel of a case needs table entries that exist."""
    decode = [name for name in case.kernels().values() if name.startswith("mla_decode/")]
    return any(name in KERNELS and KERNELS.get(name).needs_valid_table for name in decode)
