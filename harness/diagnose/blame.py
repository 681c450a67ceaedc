"""Which memory was to blame for a failure: the case again, with other sets of poisoned sites.

A trial fails for the same reason when the oracle of the primary finding fires again. In rounds, each only when
the one before did not answer:
1. nothing poisoned. If this fails too, no poison is to blame, and the findings themselves name the memory.
2. each site alone. Those that fail alone are to blame.
3. all sites but one. A site whose removal cures is necessary, and the necessary ones together are to blame.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.cases import Job
from harness.core.catalog import ORACLES
from harness.core.oracles import most_telling_first
from harness.core.records import Blame, CaseResult, Finding, Verdict

_FAILED = (Verdict.FAIL, Verdict.CRASH)


def primary(findings: Sequence[Finding]) -> Finding:
    """The finding that tells most about the cause. Raises ValueError when there is none."""
    if not findings:
        raise ValueError("a result without findings has nobody to blame")
    return most_telling_first(findings)[0]


def plan_trials(job: Job, result: CaseResult, done: Sequence[CaseResult] = ()) -> list[Job]:
    """The next round of trials for a failed `result` of `job` after those `done`; empty when enough is known."""
    sites = _sites(job)
    # A case that poisons nothing has been its own trial.
    if result.verdict not in _FAILED or not result.findings or not sites:
        return []
    tried = {trial.sites for trial in done}
    failed = {trial.sites for trial in done if fails_alike(result, trial)}
    if () not in tried:
        return [_trial(job, result, ())]
    singles = _singles(sites)
    if () in failed or len(sites) < 2 or failed & set(singles):
        return []
    if not tried & set(singles):
        return [_trial(job, result, single) for single in singles]
    rests = [] if len(sites) == 2 else _all_but_one(sites)
    return [] if tried & set(rests) else [_trial(job, result, rest) for rest in rests]


def fails_alike(result: CaseResult, trial: CaseResult) -> bool:
    """Whether `trial` fails for the reason of `result`: the oracle of its primary finding fires again."""
    oracle = primary(result.findings).oracle
    return trial.verdict in _FAILED and any(finding.oracle == oracle for finding in trial.findings)


def conclude(job: Job, result: CaseResult, trials: Sequence[CaseResult]) -> Blame:
    """The blame that the finished rounds of `trials` allow for the failed `result` of `job`."""
    sites = _sites(job)
    told = {_label(sites, trial.sites or ()): trial.verdict.value for trial in trials}
    failed = {trial.sites for trial in trials if fails_alike(result, trial)}
    oracle = primary(result.findings).oracle
    if () in failed or not sites:
        named = _named_by_findings(oracle, result)
        how = f"`{oracle}` fires with nothing poisoned; " + (
            f"its findings name {_words(named)}" if named else "its findings name no memory"
        )
        return Blame(sites=named, how=how, trials=told)
    if len(sites) == 1:
        return Blame(
            sites=sites, how=f"{sites[0]} is the only poisoned site, and without it the case is clean", trials=told
        )
    alone = tuple(single[0] for single in _singles(sites) if single in failed)
    if alone:
        how = f"`{oracle}` fires when {_words(alone, 'or')} alone is poisoned, and not with nothing poisoned"
        return Blame(sites=alone, how=how, trials=told)
    cured = _cured_by(sites, trials, failed)
    if cured:
        how = f"no site fails alone; `{oracle}` is silent once {_words(cured, 'or')} is left unpoisoned"
        return Blame(sites=cured, how=how, trials=told)
    return Blame(
        sites=sites, how="no site fails alone and none is necessary: several together are to blame", trials=told
    )


def _cured_by(
    sites: tuple[str, ...], trials: Sequence[CaseResult], failed: set[tuple[str, ...] | None]
) -> tuple[str, ...]:
    """Sites without which the case does not fail. Of two sites that do not fail alone, both are necessary."""
    tried = {trial.sites for trial in trials}
    rests = _all_but_one(sites)
    return tuple(site for site, rest in zip(sites, rests, strict=True) if rest in tried and rest not in failed)


def _named_by_findings(oracle: str, result: CaseResult) -> tuple[str, ...]:
    own = [finding.site for finding in result.findings if finding.oracle == oracle and finding.site]
    return tuple(dict.fromkeys(own or [finding.site for finding in result.findings if finding.site]))


def _sites(job: Job) -> tuple[str, ...]:
    return job.case.poison.sites if job.sites is None else job.sites


def _singles(sites: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [(site,) for site in sites]


def _all_but_one(sites: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [sites[:i] + sites[i + 1 :] for i in range(len(sites))]


def _trial(job: Job, result: CaseResult, sites: tuple[str, ...]) -> Job:
    """The job with other poisoned sites, judged by the oracle in question and under no more patterns than it needs.

    Zeros are what a site holds when it is not poisoned, so a trial with zeros repeats the one with nothing poisoned;
    with nothing poisoned all patterns are alike.
    """
    case, oracle = job.case, primary(result.findings).oracle
    patterns = case.poison.patterns
    if oracle not in ORACLES or ORACLES.get(oracle).needs != "patterns":
        telling = tuple(pattern for pattern in patterns if pattern != "zeros") if sites else patterns[:1]
        patterns = telling or patterns
    plan = case.poison.model_copy(update={"patterns": patterns})
    judged_by = tuple(name for name in case.oracles if name == oracle)
    return job.model_copy(
        update={
            "key": f"{job.key}~blame:{_label(_sites(job), sites)}",
            "case": case.model_copy(update={"poison": plan, "oracles": judged_by}),
            "sites": sites,
        }
    )


def _label(full: tuple[str, ...], sites: tuple[str, ...]) -> str:
    """A set of poisoned sites as text: ``nothing``, ``kv.tail``, or ``all but kv.tail``."""
    if not sites:
        return "nothing"
    missing = [site for site in full if site not in sites]
    return f"all but {missing[0]}" if len(missing) == 1 and len(full) > 2 else "+".join(sites)


def _words(sites: Sequence[str], joint: str = "and") -> str:
    return sites[0] if len(sites) == 1 else f"{', '.join(sites[:-1])} {joint} {sites[-1]}"
