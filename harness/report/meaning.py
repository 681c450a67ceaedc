"""What a run says: what it judged, on what, under which poison, and, if it is green, what that
covers and what it does not.

Each sentence is worked out from the plan and the results. Terminal, page and Markdown show the same
sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.core.cases import Job
from harness.core.catalog import SYSTEMS
from harness.core.conditions.model import Combination
from harness.core.conditions.table import ENGINE
from harness.core.records import AccuracyRecord, CaseResult
from harness.core.systems import engine_versions
from harness.report.causes import kernel_of
from harness.report.run_view import JUDGED, RunView
from harness.report.wording import num
from harness.store.coverage import EVERY_KERNEL, Coverage

MAX_NAMED = 3
"""Kernels, ops or subjects that a sentence names; of more it has the number."""
TOLD_PATTERNS = {
    "nan": "NaN",
    "inf": "infinity",
    "max": "the largest finite values",
    "random": "random bits",
    "zeros": "zeros",
}
"""A pattern of the poison -> what the memory holds then."""
TELLING = {"tokens", "heads", "batch", "kv"}
"""Conditions that a reader understands without a table, for the example in a sentence."""
NEVER_SEEN = (
    "sizes that no case has, races inside a kernel, errors within the tolerances, and speed"
)
"""What no green of this harness covers; `docs/index.md` has the list."""

OF_THE_JUDGED = ("judged", "on", "poison")
"""Names of the lines that every run has; the others are about a green."""


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence with its name, such as `judged` or `not covered`."""

    name: str
    sentence: str


def meaning(view: RunView) -> list[Line]:
    """The sentences of a run, in the order of reading.

    A run that is not green covers nothing, so it gets no sentence of that. Reasons of skips are
    `RunView.skips`.
    """
    judged = [result for result in view.results if result.verdict in JUDGED]
    if not judged:
        refused = _refused(view)
        nothing = f"0 of {num(len(view.results), 'case')}"
        return [Line("judged", nothing + refused)] if refused else []
    jobs = [view.jobs[result.key] for result in judged]
    said = {
        "judged": _judged(view, judged, jobs),
        "on": ", ".join(where(view, jobs)),
        "poison": _poison(judged, jobs),
    }
    if view.headline[1] == "pass":
        said |= {"covered": _covered(view), "not covered": _not_covered(view, jobs)}
    return [Line(name, sentence) for name, sentence in said.items() if sentence]


def _judged(view: RunView, judged: Sequence[CaseResult], jobs: Sequence[Job]) -> str:
    """`71 of 126 cases: 71 of mla_decode/mine; the kernel refused 4`."""
    by_system = Counter(job.case.system for job in jobs)
    own = bool(view.plan.options.get("plugins") or view.plan.options.get("kernel"))
    parts = [
        f"{count:,} of {_subject(name, jobs, own=own)}" for name, count in by_system.most_common()
    ]
    of_all = f" of {len(view.results):,}" if len(judged) < len(view.results) else ""
    every = f"{len(judged):,}{of_all} case{'s' * (len(view.results) != 1)}"
    # One subject has all the cases that were counted already.
    told = f"{every} of {_subject(jobs[0].case.system, jobs, own=own)}" if len(parts) == 1 else ""
    sentence = told or f"{every}: {', '.join(parts)}"
    return sentence + _refused(view)


def _refused(view: RunView) -> str:
    count = sum(result.is_refused for result in view.results)
    return f"; the kernel refused {count}" if count else ""


def _subject(system: str, jobs: Sequence[Job], *, own: bool = False) -> str:
    """What the cases of a system are about: their kernels, or what the table of systems calls it,
    with the kernels that a user brought if they are the user's `own`.
    """
    kind = SYSTEMS.get(system)
    cases = [job.case for job in jobs if job.case.system == system]
    if not kind.with_op:
        # A scenario names other kernels too; the user's is in every case.
        named = [{case.kernels()[field] for field in case.named} for case in cases]
        shared = set.intersection(*named) if own and named else set()
        kernels = f" with {', '.join(sorted(shared))}" if shared else ""
        return (kind.subject or kind.summary) + kernels
    kernels_of = list(dict.fromkeys(map(kernel_of, cases)))
    if len(kernels_of) <= MAX_NAMED:
        return ", ".join(kernels_of)
    ops = {case.op for case in cases}
    return f"{len(kernels_of)} kernels of {num(len(ops), 'op')}"


def where(view: RunView, jobs: Iterable[Job]) -> list[str]:
    """The devices of the jobs and the versions of what ran there.

    Of a model that was asked, its engine and its dtype: the machine that asks says nothing about
    it.
    """
    jobs = list(jobs)
    if jobs and all(job.case.kind.is_asked for job in jobs):
        return list(dict.fromkeys(f"{one.engine}, {one.dtype}" for one in view.accuracy))
    environment = view.plan.environment
    devices = {device for job in jobs for device in (job.device, job.kernel_device)}
    gpus = ", ".join(dict.fromkeys(gpu["name"] for gpu in environment.get("gpus") or ()))
    # A served case starts a process that takes the GPU, so its own job is one of the CPU.
    has_gpu = "cuda" in devices or any(job.case.kind.needs_gpu for job in jobs)
    found = [f"GPU ({gpus})" if gpus else "GPU"] if has_gpu else []
    if "cpu" in devices:
        cpu = environment.get("cpu")
        found.append(f"CPU ({cpu})" if cpu else "CPU")
    versions = {"torch": environment.get("torch")} | engine_versions(environment)
    versions["mla-harness"] = environment.get("harness")
    return found + [f"{name} {version}" for name, version in versions.items() if version]


def _poison(judged: Sequence[CaseResult], jobs: Sequence[Job]) -> str:
    """What unwritten memory held in the first run of the cases, and when they ran again."""
    poisoned = [job.case.poison.patterns for job in jobs if job.case.poison.sites]
    if not poisoned:
        return "none: no memory was filled"
    first = Counter(patterns[0] for patterns in poisoned)
    again = Counter(name for patterns in poisoned for name in patterns[1:])
    kinds = len({site for result in judged for site in result.filled})
    memory = f"memory that nothing had written ({num(kinds, 'kind')})" if kinds else "memory"
    held = _counted(first)
    if len(first) == 1:
        held = next(TOLD_PATTERNS.get(name, name) for name in first)
    sentence = f"{memory} held {held}"
    if again:
        sentence += f"; second runs with {_counted(again)}"
    bare = len(jobs) - len(poisoned)
    return sentence + (f"; {num(bare, 'case')} filled none" if bare else "")


def _counted(patterns: Counter[str]) -> str:
    """`NaN (1,250 cases), infinity (4)`: what the memory held."""
    told = [(TOLD_PATTERNS.get(name, name), count) for name, count in patterns.most_common()]
    (words, count), *others = told
    return ", ".join(
        [f"{words} ({count:,} case{'s' * (count != 1)})", *(f"{w} ({n:,})" for w, n in others)]
    )


def _covered(view: RunView) -> str:
    """Which combinations of conditions the passing calls had, and which drop of accuracy would have
    been seen.
    """
    every = [one for one in view.coverages if one.kernel == EVERY_KERNEL]
    drop = smallest_drop(view.accuracy)
    parts = []
    if every:
        parts.append(_combinations(every))
    if drop is not None:
        parts.append(f"a drop of accuracy of {100 * drop:.0f} % or more (80 % power)")
    return "; ".join(parts) or "these cases alone: no conditions are counted for them"


def _combinations(every: Sequence[Coverage]) -> str:
    """`every two conditions of a call that can occur together, such as "heads 128" with "kv bf16",
    in 14 ops; and 90 to 92 % of every three`.
    """
    whole = [one for one in every if one.share(2) == "100 %"]
    rest = [one for one in every if one not in whole]
    clauses = [("every pair", _names(whole))] if whole else []
    clauses += [(f"{_met_of(one)} pairs", _name(one)) for one in rest[:MAX_NAMED]]
    if len(rest) > MAX_NAMED:
        clauses.append(("some of the pairs", f"{len(rest) - MAX_NAMED} more"))
    such = " with ".join(f'"{name} {label}"' for name, label in _example(every))
    # The first clause says what a pair is, for all of them.
    pairs, names = clauses[0]
    clauses[0] = (f"{pairs} of conditions that a call can have at once, such as {such},", names)
    triples = sorted(_percent(one, 3) for one in every)
    low, high = triples[0], triples[-1]
    share = f"{low} %" if low == high else f"{low} to {high} %"
    return "; ".join([*(f"{one} in {of}" for one, of in clauses), f"{share} of the triples"])


def _example(every: Sequence[Coverage]) -> Combination:
    """A pair that was shown, of conditions whose names say what they are if there is one."""
    first: list[Combination] = []
    for one in every:
        met = [pair for pair in one.shown.space.combinations(2) if one.shown.has(pair)]
        telling = [pair for pair in met if {name for name, _ in pair} <= TELLING]
        if telling:
            # The last classes of a dimension are the large ones, which say more.
            return telling[-1]
        first = first or met
    return first[-1] if first else ()


def _met_of(one: Coverage) -> str:
    met, every = one.shown.counts(2)
    return f"{met:,} of {every:,}"


def _percent(one: Coverage, strength: int) -> int:
    met, every = one.shown.counts(strength)
    return 100 * met // every if every else 100


def _names(whole: Sequence[Coverage]) -> str:
    if len(whole) <= MAX_NAMED:
        return ", ".join(map(_name, whole))
    ops = [one for one in whole if one.op != ENGINE]
    also = " and in the steps of the reference engine" if len(ops) < len(whole) else ""
    return num(len(ops), "op") + also


def _name(one: Coverage) -> str:
    return "the steps of the reference engine" if one.op == ENGINE else one.op


def _not_covered(view: RunView, jobs: Sequence[Job]) -> str:
    """What the green says nothing about: devices, engines, combinations, and what no judge sees."""
    parts = []
    served = any(job.case.kind.needs_gpu or job.case.kind.is_asked for job in jobs)
    if not served and all(job.kernel_device != "cuda" for job in jobs):
        parts.append("any GPU")
    planned = dict.fromkeys(job.case.system for job in view.plan.jobs)
    left = [name for name in planned if all(job.case.system != name for job in jobs)]
    parts += [_subject(name, view.plan.jobs) for name in left]
    if view.plan.num_long:
        parts.append(f"{num(view.plan.num_long, 'long case')}, which `-m long` runs")
    if view.coverages:
        parts.append("the other combinations, which `mla-harness coverage` lists")
    return "; ".join([*parts, NEVER_SEEN])


def smallest_drop(records: Iterable[AccuracyRecord]) -> float | None:
    """The smallest drop that all measurements without a fault would have seen; None without any."""
    drops = [one.judgement.smallest_drop for one in records if not one.fault]
    known = [drop for drop in drops if drop is not None]
    return max(known) if known else None
