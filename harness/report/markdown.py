"""A run in Markdown, for the summary page of a CI job: verdict first, new failures next, all of it cut to size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.core.records import BAD, AccuracyRecord, Blame, CaseResult, FaultResult, Verdict
from harness.report.terminal_history import change_groups, count_line, flaky_line
from harness.report.wording import accuracy_title, known_line, num, one_line, reproduce
from harness.store.history.compare import Comparison
from harness.store.history.trends import Trends
from harness.store.mutants import score
from harness.store.run_folder import NEVER_RAN, RunStore
from harness.store.summary import accuracy_records, by_scenario, totals

MAX_LISTED = 20
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()!|~&$])")


def render(store: RunStore, comparison: Comparison | None = None, trends: Trends | None = None) -> str:
    """The summary of a run; with a comparison also what changed, with trends also what is flaky.

    Text of kernels, findings and branches is escaped: none of it can become HTML, an image or a row of a table. Lists
    are cut, so that it stays far below the 1 MiB that GitHub takes of a step.
    """
    results, faults = store.results(), store.faults()
    blocks = [
        [_headline(store, results, faults)],
        _facts(store),
        _totals(results),
        _changes(comparison),
        _failures(store, results),
        _known(results),
        _faults(faults),
        _mutants(store),
        _accuracy(accuracy_records([*results, *faults])),
        _flaky(trends),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _headline(store: RunStore, results: Sequence[CaseResult], faults: Sequence[FaultResult]) -> str:
    num_bad = sum(result.verdict in BAD for result in results)
    num_missed = sum(not fault.caught for fault in faults)
    bad = [f"{num_bad} of {num(len(results), 'case')} not good"] if num_bad else []
    bad += [f"{num(num_missed, 'fault')} not caught"] if num_missed else []
    num_passed = sum(result.verdict is Verdict.PASS for result in results)
    num_known = sum(result.verdict is Verdict.KNOWN for result in results)
    mutants = store.mutants()
    if not bad and not num_passed and not num_known and not faults and not mutants:
        bad = ["nothing was judged"]
    good = [num(num_passed, "case") + " passed"] if num_passed else []
    good += [num(len(faults), "fault") + " caught"] if faults else []
    good += [num(num_known, "known failure")] if num_known else []
    good += [f"{score(mutants).rate:.1%} of mutants killed"] if mutants else []
    mark = "\u274c" if bad else "\u2705"
    words = one_line(store.plan.command, 120)
    return f"## {mark} {_escaped(words)}: {', '.join(bad or good)}"


def _mutants(store: RunStore) -> list[str]:
    """The score, and the mutants that were not killed."""
    results = store.mutants()
    left = [one for one in results if one.status not in ("killed", "equivalent")]
    lines = [f"- {_escaped(f'{one.file}:{one.line}')} {_code(one.change)}: {one.status}" for one in left[:MAX_LISTED]]
    rest = [f"- and {len(left) - MAX_LISTED} more"] if len(left) > MAX_LISTED else []
    return [f"**Mutants**: {score(results).statement}", "", *lines, *rest] if results else []


def _facts(store: RunStore) -> list[str]:
    source, environment = store.plan.source, store.plan.environment
    code = " ".join(filter(None, [source.branch, source.short_commit]))
    machine = (environment.get("gpus") and environment["gpus"][0].get("name")) or environment.get("cpu")
    torch = f"torch {environment['torch']}" if environment.get("torch") else ""
    facts = (store.plan.run_id, code, f"{store.plan.seconds:.1f} s", torch, str(machine or ""))
    return [_escaped(" · ".join(filter(None, facts)))]


def _totals(results: Sequence[CaseResult]) -> list[str]:
    if not results:
        return []
    groups, verdicts = by_scenario(results), list(totals(results))
    # A scenario in which all is well is one of many; they are counted together.
    shown = {name: group for name, group in groups.items() if any(one.verdict in BAD for one in group)}
    rows = [
        # A bar ends a cell of a table even in a code span.
        [_code(name).replace("|", "\\|"), *_counts(group, verdicts), _seconds(group)]
        for name, group in list(shown.items())[:MAX_LISTED]
    ]
    others = [result for name, group in groups.items() if name not in shown for result in group]
    if others:
        named = num(len(groups) - len(shown), "scenario") + (" without a failure" if shown else "")
        rows.append([named, *_counts(others, verdicts), _seconds(others)])
    if len(groups) > 1 and shown:
        rows.append(["**all**", *_counts(results, verdicts), _seconds(results)])
    return _table(["scenario", *verdicts, "s"], rows)


def _changes(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return []
    before = comparison.before
    code = _escaped(" ".join(filter(None, [before.source.branch, before.source.short_commit])))
    lines = [
        f"### Against {_code(before.run_id)}" + (f" ({code})" if code else ""),
        "",
        _escaped(count_line(comparison)),
    ]
    for title, count, changes in change_groups(comparison):
        if count:
            lines += ["", f"**{title.capitalize()}: {count}**", "", *_list(changes)]
    return lines


def _failures(store: RunStore, results: Sequence[CaseResult]) -> list[str]:
    bad = [result for result in results if result.verdict in BAD and result.reason != NEVER_RAN]
    never_ran = sum(result.reason == NEVER_RAN for result in results)
    blames = store.blames()
    lines = ["### Failures", ""] if bad or never_ran else []
    alike: dict[tuple[str, str], list[CaseResult]] = {}
    for result in bad:
        alike.setdefault((result.scenario, _message(result)), []).append(result)
    for first, *others in list(alike.values())[:MAX_LISTED]:
        lines += _failure(first, blames.get(first.key), reproduce(first, store.plan.options), num_alike=len(others))
    if len(alike) > MAX_LISTED:
        lines.append(f"- and {len(alike) - MAX_LISTED} more kinds: see report.html")
    if never_ran:
        lines.append(f"- {num(never_ran, 'case')} never ran: the run ended before")
    return lines


def _message(result: CaseResult) -> str:
    return result.findings[0].message if result.findings else result.reason


def _failure(result: CaseResult, blame: Blame | None, command: str, *, num_alike: int) -> list[str]:
    refs = f" ({_escaped(', '.join(result.refs))})" if result.refs else ""
    lines = [f"- **{result.verdict.value}** {_code(result.id)}{refs}: {_escaped(one_line(_message(result), 300))}"]
    if num_alike:
        lines.append(f"  <br>and {num(num_alike, 'more case')} of this scenario with the same words")
    if blame and blame.sites:
        lines.append(f"  <br>blame: {', '.join(_code(site) for site in blame.sites)}")
    return [*lines, f"  <br>again: {_code(command)}"]


def _known(results: Sequence[CaseResult]) -> list[str]:
    lines = [known_line(result) for result in results if result.verdict is Verdict.KNOWN]
    return [f"### Known failures: {len(lines)}", "", *_list(lines)] if lines else []


def _faults(faults: Sequence[FaultResult]) -> list[str]:
    missed = [fault for fault in faults if not fault.caught]
    if not missed:
        return []
    lines = [f"{fault.fault} in {fault.case}: {one_line(fault.reason, 200)}" for fault in missed]
    return ["### Faults that were not caught", "", *_list(lines)]


def _accuracy(records: Sequence[AccuracyRecord]) -> list[str]:
    rows = [
        [
            _escaped(accuracy_title(record)),
            ", ".join(f"{epoch.accuracy:.4f}" for epoch in record.epochs),
            f"{record.baseline.accuracy:.4f}" if record.baseline else "",
            record.verdict.value,
        ]
        for record in records[:MAX_LISTED]
    ]
    return ["### Accuracy", "", *_table(["measured", "by epoch", "baseline", "verdict"], rows)] if rows else []


def _flaky(trends: Trends | None) -> list[str]:
    if trends is None or not trends.flaky:
        return []
    lines = [flaky_line(case) for case in trends.flaky]
    return [f"### Flaky in the last {num(len(trends.runs), 'run')}", "", *_list(lines)]


def _list(lines: Sequence[str]) -> list[str]:
    shown = [f"- {_escaped(line)}" for line in lines[:MAX_LISTED]]
    return shown + ([f"- and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else [])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    ruled = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return ruled + ["| " + " | ".join(row) + " |" for row in rows]


def _counts(results: Sequence[CaseResult], verdicts: Iterable[str]) -> list[str]:
    counts = totals(results)
    return [str(counts.get(verdict) or "·") for verdict in verdicts]


def _seconds(results: Sequence[CaseResult]) -> str:
    return f"{sum(result.seconds for result in results):.1f}"


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", one_line(text, 1000))


def _code(text: str) -> str:
    """Text in a code span, fenced by more backticks than it holds in a row."""
    plain = one_line(text, 1000)
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{plain}{pad}{fence}"
