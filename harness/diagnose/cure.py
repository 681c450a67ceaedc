"""Whether a proposed cure removes the cause of a failure or hides it.

A failure that is gone proves little. PR 37442 filled an output with zeros: the NaN was gone, its cause stayed (PR
38359). So the case runs again with the cure. One site at a time is filled with several patterns, and the results of
each kernel launch are compared. A result that differs depends on uninitialised memory, even if the answer does not.
A site that the cure fills is filled with other finite values: if a result changes, the site is still read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from harness.core.cases import AskReaders, Job
from harness.core.catalog import SITES, SYSTEMS
from harness.core.cure_names import CureName
from harness.core.errors import HarnessError, InputError
from harness.core.records import CaseResult, CureResult, Finding, Reading, Verdict
from harness.diagnose.blame import primary
from harness.run.pool import Pool

REMOVES, HIDES, NO_HELP = "removes", "hides", "does not help"


def why_not(job: Job) -> str:
    """Why a cure cannot be judged on a job, in a sentence; empty when it can be."""
    if not job.case.kind.shows_launches:
        able = " or ".join(spec.name for spec in SYSTEMS if spec.shows_launches)
        return f"launches of system {job.case.system} are not seen; choose a case of {able}"
    return "" if job.device == "cpu" else "launches inside CUDA graphs are not seen; use --device cpu"


def judge_cure(pool: Pool, job: Job, cures: Sequence[CureName], *, oracle: str | None = None) -> CureResult:
    """The verdict on `cures`, applied together to the failing `job`.

    The symptom is the finding of `oracle`, or else the primary finding. Raises InputError if the job does not fail, and
    HarnessError if it cannot be judged.
    """
    if reason := why_not(job):
        raise InputError(f"{job.case.id}: {reason}")
    started = time.monotonic()
    (before,) = pool.run_in_order([job.model_copy(update={"key": f"{job.key}~before"})])
    symptom = _symptom(job, before, oracle)
    update = {"key": f"{job.key}~cured", "cures": tuple(cure.text for cure in cures)}
    cured = _without_blind_oracles(job, before).model_copy(update=update)
    (after,) = pool.run_in_order([cured])
    if after.verdict in (Verdict.ERROR, Verdict.SKIP):
        raise _unjudged(after)
    read_before, _ = _search(pool, job)
    read_after, num_compared = _search(pool, cured)
    verdict, statement = _verdict(symptom.oracle, after, read_before, read_after)
    return CureResult(
        case=job.case.id,
        faults=job.faults,
        cures=cured.cures,
        verdict=verdict,
        statement=statement,
        oracle=symptom.oracle,
        before=read_before,
        after=read_after,
        left=after.findings,
        num_compared=num_compared,
        seconds=round(time.monotonic() - started, 3),
    )


def _without_blind_oracles(job: Job, before: CaseResult) -> Job:
    """The job without the oracles that had nothing to judge because of the bug, such as `zeroed` with an empty list.

    In a case that does not fail, such an oracle is an error.
    """
    blind = {name for name, count in before.looked_at.items() if count == 0}
    oracles = tuple(name for name in job.case.oracles if name not in blind)
    return job.model_copy(update={"case": job.case.model_copy(update={"oracles": oracles})})


def _search(pool: Pool, job: Job) -> tuple[tuple[Reading, ...], int]:
    """The first reader of each site of uninitialised memory, and the number of live tensors that were compared.

    First all sites are filled together. A set of sites with a reader is halved, until each site stands alone.
    """
    shown = pool.run_in_order([_reader(job, tuple(SITES.names()))])
    num_compared = _num_compared(shown)
    shown = [result for result in shown if _readings([result])]
    found: list[CaseResult] = []
    while shown:
        groups = [result.sites or () for result in shown]
        halves = [half for group in groups for half in (group[: len(group) // 2], group[len(group) // 2 :])]
        results = pool.run_in_order([_reader(job, half) for half in halves])
        num_compared += _num_compared(results)
        pairs = [results[place : place + 2] for place in range(0, len(results), 2)]
        shown, parents = [], shown
        for parent, pair in zip(parents, pairs, strict=True):
            read = [result for result in pair if _readings([result])]
            # Without a reader in either half, only several sites together have one.
            found += [result for result in read if len(result.sites or ()) == 1] if read else [parent]
            shown += [result for result in read if len(result.sites or ()) > 1]
    place_of = {site: place for place, site in enumerate(SITES.names())}
    readings = sorted(_readings(found), key=lambda reading: place_of.get(reading.site, len(place_of)))
    return tuple(readings), num_compared


def _num_compared(results: Sequence[CaseResult]) -> int:
    return sum(sum(result.looked_at.values()) for result in results)


def _reader(job: Job, sites: tuple[str, ...]) -> Job:
    """The job that finds the readers of `sites`. Nothing else is filled."""
    label = sites[0] if len(sites) == 1 else f"{sites[0]} to {sites[-1]}"
    return job.model_copy(update={"key": f"{job.key}~reads:{label}", "sites": sites, "ask": AskReaders(sites=sites)})


def _symptom(job: Job, before: CaseResult, oracle: str | None) -> Finding:
    if before.verdict is Verdict.ERROR:
        raise _unjudged(before)
    if not before.has_failed:
        reason = f" ({before.reason})" if before.reason else ""
        raise InputError(
            f"{job.case.id}: ends in {before.verdict.value}{reason} without the cure, so there is nothing to cure; "
            "inject a bug with --fault"
        )
    return next((found for found in before.findings if found.oracle == oracle), primary(before.findings))


def _readings(results: Sequence[CaseResult]) -> tuple[Reading, ...]:
    found: list[Reading] = []
    for result in results:
        if result.verdict is Verdict.ERROR:
            raise _unjudged(result)
        for finding in result.findings:
            place = {"tensor": finding.tensor, "where": finding.where, "how": finding.bits or ""}
            # A worker that died has read the site as well, but the finding of its death names none.
            sites = result.sites or ()
            site = finding.site or (sites[0] if len(sites) == 1 else "several sites together")
            found.append(Reading(site=site, reader=finding.message, **place))
    return tuple(found)


def _verdict(oracle: str, after: CaseResult, before: Sequence[Reading], readings: Sequence[Reading]) -> tuple[str, str]:
    still = "; ".join(reading_clause(reading) for reading in readings)
    others = list(dict.fromkeys(f"`{found.oracle}`" for found in after.findings if found.oracle != oracle))
    if any(found.oracle == oracle for found in after.findings):
        return NO_HELP, f"`{oracle}` fires as before" + (f"; {still}" if still else "")
    if readings:
        return HIDES, f"`{oracle}` is silent, but {still}" + (f"; {_fire(others)}" if others else "")
    if others:
        return NO_HELP, f"`{oracle}` is silent, but {_fire(others)}"
    if not before:
        return REMOVES, f"`{oracle}` is silent; no uninitialised memory was read, neither before nor now"
    sites = ", ".join(reading.site for reading in before)
    return REMOVES, f"`{oracle}` is silent, and {sites} is not read any more"


def _fire(oracles: list[str]) -> str:
    return f"{' and '.join(oracles)} {'fires' if len(oracles) == 1 else 'fire'}"


def reading_clause(reading: Reading) -> str:
    """A reading as a clause: ``router.ids is still read, first by apply_experts (ids, step 0)``."""
    place = ", ".join(part for part in (reading.tensor, reading.where) if part)
    return f"{reading.site} is still read, first by {reading.reader}" + (f" ({place})" if place else "")


def _unjudged(result: CaseResult) -> HarnessError:
    reason = result.reason or "no reason given"
    # A worker reports a wrong file of the user with the text of an InputError.
    return InputError(reason) if reason.startswith(("cure ", "@cure", "plug-in ")) else HarnessError(reason)
