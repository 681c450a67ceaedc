"""The memory to blame for a failure: the case runs again with other sets of poisoned sites.

A trial fails for the same reason if the oracle of the primary finding fires again. A round runs
only if the round before gave no answer:
1. Nothing is poisoned. If this fails too, no poison is to blame, and the findings name the memory.
   Without such a name, no uninitialised memory is involved if two contents of it gave the same
   bits, or the same error.
2. Each site alone is poisoned. A site that fails alone is to blame.
3. All sites but one are poisoned. If this passes, that site is necessary. All necessary sites are
   to blame.
4. The case is repeated as it was, and so are the trials that name a site. If one ends otherwise
   now, the same inputs give different results: a state that is kept from call to call is to blame,
   and no memory. Injected faults keep none.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.cases import Job
from harness.core.catalog import ORACLES
from harness.core.cause_codes import Code
from harness.core.finding_words import kind_of
from harness.core.findings import Finding
from harness.core.ops import OPS
from harness.core.oracles import BETWEEN_PATTERNS
from harness.core.records import Blame, CaseResult
from harness.diagnose.budget import Budget
from harness.diagnose.reduce import primary, same_failure, without_each
from harness.run.pool import JobPool

Failure = tuple[Job, CaseResult]

NO_MEMORY = "fails without poison too: no uninitialised memory is involved"
MAY_BE_MEMORY = (
    "fails without poison too, so poison does not tell whether uninitialised memory is involved"
)
NOT_FILLED = (
    "the case fills no memory, so it does not tell whether stale or uninitialised memory is"
    " involved"
)
OUT_OF_TIME = "the search for the memory to blame ran out of time"
REFERENCE = "reference"
OF_MEMORY = ("finite", "sentinel")
"""Oracles that fire for what memory held. The rows may be wrong besides."""
_REPEATED_ERRORS = (Code.RAISED, Code.UNDECLARED_SHAPES, Code.BAD_OUTPUT, Code.ILLEGAL_ADDRESS)
"""Crashes with an error of their own.

A process that died, or ran into its time limit, has none to compare.
"""


def plan_trials(job: Job, result: CaseResult, done: Sequence[CaseResult] = ()) -> list[Job]:
    """The next round of trials for a failed `result` of `job`; empty if the trials `done` are
    enough.
    """
    sites = job.poisoned_sites
    tried = {trial.sites for trial in done}
    failed = {trial.sites for trial in done if fails_alike(result, trial)}
    # A case that poisons nothing has been its own trial.
    if not result.has_failed or not sites or () in failed:
        return []
    # Without poison first: if that fails too, no site is to blame, and one trial is enough.
    if () not in tried:
        return [_trial(job, result, ())]
    singles: list[tuple[str, ...]] = [(site,) for site in sites] if len(sites) > 1 else []
    rests = without_each(sites) if len(sites) > 2 else []
    if failed:
        named = [site for site in singles if site in failed] or [
            rest for rest in rests if rest not in failed
        ]
        # A site is named only if its trial fails twice: a bug that fails by chance would name any.
        again = [_trial(job, result, chosen, "again") for chosen in named]
        # An injected fault repeats by construction, so its trials need no second round.
        return [] if job.fault or sites in tried else [_trial(job, result, sites), *again]
    # From the cheapest answer on: one site alone, then all but one, then whether it repeats at all.
    for group in (singles, rests, [sites]):
        if group and not tried & set(group):
            return [_trial(job, result, chosen) for chosen in group]
    return []


def fails_alike(result: CaseResult, trial: CaseResult) -> bool:
    """Whether `trial` fails for the reason of `result`: the oracle of its primary finding fires
    again.
    """
    return same_failure(primary(result.findings), trial, lambda finding: finding.oracle) is not None


def conclude(job: Job, result: CaseResult, trials: Sequence[CaseResult]) -> Blame:
    """The blame that the finished rounds of `trials` allow for the failed `result` of `job`."""
    verdicts = {trial.key.partition("~blame:")[2]: trial.verdict.value for trial in trials}
    sites, cause, how = _sites_to_blame(job.poisoned_sites, result, trials, job.case.op)
    return Blame(sites=sites, cause=cause, how=how, trials=verdicts)


def _sites_to_blame(
    sites: tuple[str, ...], result: CaseResult, trials: Sequence[CaseResult], op: str | None
) -> tuple[tuple[str, ...], Code, str]:
    """The sites to blame, the code of how they were found, and a sentence that says why."""
    failed = {trial.sites for trial in trials if fails_alike(result, trial)}
    passed = {trial.sites for trial in trials if not fails_alike(result, trial)}
    if sites in passed or failed & passed:
        return (
            (),
            Code.NOT_REPEATED,
            "differs from call to call with the same inputs: a repeated trial ends otherwise",
        )
    oracle = primary(result.findings).oracle
    if () in failed or not sites:
        telling = [finding for finding in result.findings if not _is_of_output(finding, op)]
        own = [finding.site for finding in telling if finding.oracle == oracle and finding.site]
        named = tuple(dict.fromkeys(own or [finding.site for finding in telling if finding.site]))
        if named:
            return (
                named,
                Code.WITHOUT_POISON,
                f"`{oracle}` fires without poison too; its findings name {_words(named)}",
            )
        if not sites:
            return (), Code.NOT_FILLED, NOT_FILLED
        return (
            (),
            Code.WITHOUT_POISON,
            NO_MEMORY if _has_shown_no_influence(result, trials) else MAY_BE_MEMORY,
        )
    if len(sites) == 1:
        return (
            sites,
            Code.ONLY_SITE,
            f"{sites[0]} is the only poisoned site, and without it the case is clean",
        )
    alone = tuple(site for site in sites if (site,) in failed)
    absent = [site for site in sites if site not in result.filled]
    if alone == sites and result.filled and absent:
        # Poison of a site that the case does not have changes nothing: that call is the one without
        # poison, and ended otherwise.
        return (
            (),
            Code.NOT_REPEATED,
            "differs from call to call with the same inputs: it fails with any one site poisoned,"
            f" also {absent[0]}, which this case does not have",
        )
    if alone:
        how = (
            f"`{oracle}` fires when only {_words(alone, 'or')} is poisoned, and not without poison"
        )
        bare = next((trial for trial in trials if trial.sites == ()), None)
        if bare is not None and any(finding.oracle == REFERENCE for finding in bare.findings):
            # Such as the scale of a padded row that stands beside a live one (ROCm/aiter#4506).
            how += f"; `{REFERENCE}` fires without it, so that memory is not all that is wrong"
        return alone, Code.ALONE, how
    # Of two sites that do not fail alone, both are necessary.
    necessary = tuple(
        site for site, rest in zip(sites, without_each(sites), strict=True) if rest in passed
    )
    if necessary:
        how = f"no single site makes it fail; `{oracle}` needs {_words(necessary)} to be poisoned"
        return necessary, Code.NECESSARY, how
    return (
        sites,
        Code.TOGETHER,
        "no single site makes it fail, and none is needed: several together are to blame",
    )


def _is_of_output(finding: Finding, op: str | None) -> bool:
    """Whether a finding names the memory of an output of `op` for a value that is not finite.

    It names that memory for want of a better. Where the value is there without poison too, the
    kernel computed it.
    """
    if op is None or finding.cause not in (Code.NAN, Code.INF):
        return False
    return finding.site in {output.site for output in OPS.get(op).outputs}


def _has_shown_no_influence(result: CaseResult, trials: Sequence[CaseResult]) -> bool:
    """Whether two contents of the undefined memory gave the same: equal bits, or the same error."""
    # This oracle compared the bits of runs under different patterns, in the case itself.
    if result.looked_at.get("non_interference"):
        return all(finding.oracle != "non_interference" for finding in result.findings)
    finding = primary(result.findings)
    bare = next((trial for trial in trials if trial.sites == ()), None)
    return (
        finding.cause in _REPEATED_ERRORS
        and bare is not None
        and same_failure(finding, bare, kind_of) is not None
    )


def _trial(job: Job, result: CaseResult, sites: tuple[str, ...], again: str = "") -> Job:
    """The job with other poisoned sites, judged by the oracle in question, with as few patterns as
    it needs.

    A site that is not poisoned holds zeros. So the pattern zeros repeats the trial without poison,
    and all patterns are equal where no memory is poisoned.
    """
    case = job.case
    oracle = primary(result.findings).oracle
    patterns = case.poison.patterns
    is_between_patterns = oracle in ORACLES and ORACLES.get(oracle).needs == BETWEEN_PATTERNS
    # An index is the poison's only if the run over zeros has another.
    if not is_between_patterns and primary(result.findings).cause != Code.POISON_INDEX:
        telling = (
            tuple(pattern for pattern in patterns if pattern != "zeros") if sites else patterns[:1]
        )
        patterns = telling or patterns
    plan = case.poison.but(patterns=patterns)
    wanted = {oracle}
    if not sites and oracle in OF_MEMORY:
        # Whether the rows are wrong whatever the memory holds.
        wanted.add(REFERENCE)
    judged_by = tuple(name for name in case.oracles if name in wanted)
    return job.but(
        key=f"{job.key}~blame:{_label(job.poisoned_sites, sites)} {again}".rstrip(),
        case=case.but(poison=plan, oracles=judged_by),
        sites=sites,
    )


def _label(full: tuple[str, ...], sites: tuple[str, ...]) -> str:
    """A set of poisoned sites as text: ``nothing``, ``kv.tail``, or ``all but kv.tail``."""
    if sites in ((), full):
        return "the same again" if sites else "nothing"
    missing = [site for site in full if site not in sites]
    return f"all but {missing[0]}" if len(missing) == 1 and len(full) > 2 else "+".join(sites)


def _words(sites: Sequence[str], joint: str = "and") -> str:
    return sites[0] if len(sites) == 1 else f"{', '.join(sites[:-1])} {joint} {sites[-1]}"


def find_blame(
    pool: JobPool, failures: Sequence[Failure], budget: Budget | None = None
) -> dict[str, tuple[Blame, float]]:
    """Key of each failing job -> its blame, and the seconds of its trials.

    The trials of all failures run together, so that no worker is idle. Each is charged to `budget`.
    If they are not done when it is spent, the blame says so and names no memory.
    """
    budget = budget or Budget()
    trials: dict[str, list[CaseResult]] = {job.key: [] for job, _ in failures}
    undecided = {job.key: (job, result) for job, result in failures}
    while undecided:
        rounds = {
            key: plan_trials(job, result, trials[key]) for key, (job, result) in undecided.items()
        }
        for key in [key for key, jobs in rounds.items() if not jobs]:
            del undecided[key]
        found: dict[str, CaseResult] = {}
        for result in pool.run([trial for jobs in rounds.values() for trial in jobs]):
            found[result.key] = result
            budget.charge(result, pool.num_workers)
            if budget.is_spent:
                break
        # The budget was spent within a round, and half a round decides nothing.
        if any(trial.key not in found for jobs in rounds.values() for trial in jobs):
            break
        for key in undecided:
            trials[key] += [found[trial.key] for trial in rounds[key]]
    blames = {}
    for job, result in failures:
        own = trials[job.key]
        blame = conclude(job, result, own)
        if job.key in undecided:
            blame = Blame(cause=Code.OUT_OF_TIME, how=OUT_OF_TIME, trials=blame.trials)
        blames[job.key] = (blame, sum(trial.seconds for trial in own))
    return blames
