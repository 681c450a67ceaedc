"""The answers to the kinds of ask: a verdict, the first reader of some sites, and the writer of the first NaN.

`verdict` runs the case under each of its patterns, and lets the oracles judge.

`first_reader` runs the case with only these sites filled, with one pattern after another. The results of its launches
are compared with a run in zeroed memory. The first launch with another live result has read that memory.

`first_nan` runs the case once under its own poison, which shows the writer. The first reader of the blamed sites needs
visible launches, so it is searched on a CPU only.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence

import torch

from harness.core.cases import AskFirstNan, AskReaders, Case, Job, PoisonPlan
from harness.core.catalog import KERNELS, ORACLES
from harness.core.cuda_failures import in_one_line, is_device_failure
from harness.core.cure_names import filled_sites
from harness.core.errors import KernelError
from harness.core.oracles import most_telling_first
from harness.core.records import Finding, Verdict
from harness.judge.oracles.crash import CRASHES
from harness.judge.probes.trace import Event, Trace, first_difference
from harness.judge.run_records import Evidence, Outcome, Run
from harness.judge.target import Target, target_of
from harness.kernels.call import counting_launches
from harness.memory.bounds import bad_index
from harness.memory.poison.patterns import FILLED, Poison

LOG_TAIL = 4000
"""Characters of a traceback that a result keeps."""


def verdict(job: Job) -> Outcome:
    """Run the case and judge it."""
    target = target_of(job)
    evidence = Evidence(job.case, list(_runs(target, job)))
    if target.may_differ:
        evidence.repeat = lambda: next(_runs(target, job))
    outcome = judge(evidence)
    outcome.runs, outcome.launched = evidence.runs, evidence.runs[0].launched
    outcome.filled = evidence.runs[0].filled
    never = never_called(job.case, evidence.runs) if outcome.verdict is Verdict.PASS and job.sites is None else []
    if never:
        outcome.verdict, outcome.reason = Verdict.SKIP, f"never called: {', '.join(never)}"
        return outcome
    if outcome.verdict is Verdict.PASS and job.sites is None and (wanted := job.case.params.must_happen):
        _note_events(outcome, wanted)
    if outcome.verdict is Verdict.CRASH and job.device == "cuda":
        # The driver's log lists errors of many processes, so the message names its case.
        outcome.findings = [
            finding.model_copy(update={"message": f"{job.case.id}: {finding.message.removeprefix(f'{job.case.id}: ')}"})
            for finding in outcome.findings
        ]
        outcome.reason = outcome.findings[0].message
    if outcome.verdict is not Verdict.PASS:
        outcome.log = next((log for run in evidence.runs if (log := run.log or _stack(run.error))), "")
    return outcome


def _note_events(outcome: Outcome, wanted: Sequence[str]) -> None:
    """Note the least that a run had of each event that must happen. Without one of them, nothing is proved."""
    counts = {event: min(run.events.get(event, 0) for run in outcome.runs) for event in wanted}
    if missing := [event for event, count in counts.items() if not count]:
        outcome.verdict, outcome.reason = Verdict.SKIP, f"never happened: {', '.join(missing)}"
        return
    happened = "happened: " + ", ".join(f"{event} {count}" for event, count in counts.items())
    outcome.reason = "; ".join(filter(None, (outcome.reason, happened)))


def _stack(error: Exception | None) -> str:
    """The traceback of an error that a kernel's own code raised; empty for any other error."""
    if error is None or not getattr(error, "at", ""):
        return ""
    return "".join(traceback.format_exception(error.__cause__ or error))[-LOG_TAIL:]


def judge(evidence: Evidence) -> Outcome:
    """Ask the oracles of the case in order. After a crash no other oracle is asked, as the runs are not complete."""
    crash = ORACLES.get("crash").judge(evidence)
    if crash.findings:
        return Outcome(Verdict.CRASH, crash.findings[0].message, crash.findings, {"crash": crash.looked_at})
    outcome = Outcome(Verdict.PASS)
    blind: list[str] = []
    notes: list[str] = []
    for name in dict.fromkeys((*evidence.case.oracles, "crash")):
        judgement = crash if name == "crash" else ORACLES.get(name).judge(evidence)
        outcome.findings.extend(judgement.findings)
        outcome.looked_at[name] = judgement.looked_at
        outcome.accuracy = judgement.accuracy or outcome.accuracy
        notes.extend(judgement.notes)
        if judgement.looked_at == 0:
            blind.append(name)
    outcome.reason = "; ".join(notes)
    if blind:
        outcome.verdict = Verdict.ERROR
        outcome.reason = f"{', '.join(blind)} judged no element, so this case proves nothing"
    if outcome.findings:
        outcome.findings = most_telling_first(outcome.findings)
        outcome.verdict = Verdict.FAIL
        outcome.reason = outcome.findings[0].message
    return outcome


def never_called(case: Case, runs: Sequence[Run]) -> list[str]:
    """The kernels that the case's id names and no run launched. One name may stand for kernels of several ops."""
    launched = {name for run in runs for name in run.launched}
    groups: dict[str, list[str]] = {}
    for name in (case.kernels()[field] for field in case.named):
        groups.setdefault(name.partition("/")[2], []).append(name)
    return [name for group in groups.values() if launched.isdisjoint(group) for name in group]


def _runs(target: Target, job: Job) -> Iterator[Run]:
    """One run for each poison pattern, the main one first. A crashed run is the last one."""
    plan = job.case.poison
    for pattern in plan.patterns:
        FILLED.clear()
        with counting_launches() as launched:
            try:
                run = target.run(poison_of(plan, pattern, sites_of(job), job.case.seed))
            except CRASHES as error:
                # An earlier finding of a bounds check explains the crash.
                run = Run(pattern, error=bad_index() or error)
            except RuntimeError as error:
                # Memory that ran out outside a kernel says nothing about it.
                if isinstance(error, torch.OutOfMemoryError) or not is_device_failure(error):
                    raise
                run = Run(pattern, error=bad_index() or KernelError(f"{job.case.id}: {in_one_line(error)}"))
        run.launched, run.filled = dict(launched), dict(FILLED)
        yield run
        if run.error is not None:
            return


def sites_of(job: Job) -> frozenset[str]:
    """The sites that a run of the job poisons. A proposed fix may fill others itself."""
    return frozenset(job.poisoned_sites) - frozenset(filled_sites(job.cures))


def poison_of(plan: PoisonPlan, pattern: str, sites: frozenset[str], seed: int) -> Poison:
    """The poison of one run of a case."""
    return Poison(pattern, sites, strict=plan.strict, seed=seed, ignore_contracts=plan.ignore_contracts)


READING = "reading"
"""The `oracle` of findings that name a reader."""
LOOKED_AT = "compared"
FRIENDLY = "zeros"
FILLS = ("nan", "random", "max")
"""Patterns to compare with zeros, in order, until a reader is found."""
FINITE_FILLS = ("random", "max")
"""Patterns for a site that a fix fills: if they matter, something reads the fill."""
INDEX_SITES = frozenset({"block_table.pad", "router.ids", "sched_meta", "workspace"})


def first_reader(job: Job) -> Outcome:
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
            return _found(_reading(sites, event, f"{FRIENDLY} / {fill}", error), num_compared)
    indices = frozenset(sites) & INDEX_SITES
    if indices and not _looks_up_padding(job.case):
        _, error = _trace(job, Poison("nan", indices, strict=True, seed=job.case.seed))
        if error is not None:
            return _found(_reading(sites, None, "as an index out of range", error), num_compared)
    if not num_compared:
        return Outcome(Verdict.ERROR, "no live tensor was compared, so this proves nothing")
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


def _reading(sites: tuple[str, ...], event: Event | None, fills: str, error: str | None) -> Finding:
    site = sites[0] if len(sites) == 1 else None
    if event is None:
        return Finding(oracle=READING, site=site, tensor="", where="", message=error or "", bits=fills)
    step = f"step {event.step}" if event.step >= 0 else ""
    return Finding(oracle=READING, site=site, tensor=event.tensor, where=step, message=event.reader, bits=fills)


def _looks_up_padding(case: Case) -> bool:
    """Whether the decode kernel of a case needs table entries that exist."""
    decode = [name for name in case.kernels().values() if name.startswith("mla_decode/")]
    return any(name in KERNELS and KERNELS.get(name).needs_valid_table for name in decode)


def first_nan(job: Job) -> Outcome:
    """Run the case with the recorder. Its report is `first_nan` of the outcome."""
    assert isinstance(job.ask, AskFirstNan)
    plan = job.case.poison
    found = target_of(job).first_writer(poison_of(plan, plan.patterns[0], sites_of(job), job.case.seed))
    found = found.model_copy(update={"sites": job.ask.sites})
    if job.case.kind.shows_launches and job.device == "cpu" and job.ask.sites:
        found = found.model_copy(update=_reader_and_place(job, job.ask.sites))
    return Outcome(Verdict.FAIL if found.writer else Verdict.PASS, first_nan=found)


def _reader_and_place(job: Job, sites: tuple[str, ...]) -> dict[str, str]:
    """The first launch with a live result that depends on the sites, and its place; empty without one."""
    found = first_reader(job.model_copy(update={"ask": AskReaders(sites=sites)}))
    if not found.findings:
        return {}
    finding = found.findings[0]
    return {
        "reader": finding.message,
        "reader_at": ", ".join(part for part in (finding.tensor, finding.where) if part),
    }
