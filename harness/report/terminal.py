"""A run in a terminal: a live line while it lasts, then tables, failures, totals, accuracy and the
smallest case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.core.crash_stack import innermost
from harness.core.fault_outcomes import CAUGHT, MISSED, WRONG_BLAME
from harness.core.finding_words import few
from harness.core.findings import Finding
from harness.core.records import (
    BAD,
    AccuracyRecord,
    CaseResult,
    EpochAccuracy,
    FaultResult,
    Shrunk,
    Verdict,
)
from harness.report.causes import RootCause, facts
from harness.report.console import say, table
from harness.report.meaning import OF_THE_JUDGED, meaning
from harness.report.run_view import RunView
from harness.report.wording import (
    EPOCHS,
    accuracy_title,
    describe_faulty,
    fault_counts,
    fault_word,
    first_nan_lines,
    interval_text,
    known_line,
    model_sentence,
    num,
    one_line,
    outcome_line,
    printable,
)
from harness.store.summary import totals

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "crash": "bold magenta",
    "skip": "dim",
    "error": "bold yellow",
    "known": "cyan",
    "not-run": "dim",
    CAUGHT: "green",
    WRONG_BLAME: "bold red",
    MISSED: "bold red",
}
MAX_FAILURES = 20
MAX_FINDINGS = 3
MAX_LOG_LINES = 12
MAX_FRAMES = 5
MAX_RECORDS = 30
SHOWN_EPOCHS = 20
MAX_VALUE = 60


def verdict_text(verdict: str) -> Text:
    """A verdict, or what became of a fault, in its colour; in capitals when it needs a look."""
    word = fault_word(verdict)
    return Text(
        word.upper() if verdict in (*BAD, WRONG_BLAME, MISSED) else word, style=STYLES[verdict]
    )


def failure_line(result: CaseResult) -> Text:
    """One line about a bad result: verdict, case, reason, and the line of the user's code if one is
    known.
    """
    at = next((finding.at for finding in result.findings if finding.at), "")
    why = one_line(result.reason or next((finding.message for finding in result.findings), ""), 200)
    where = f", at {one_line(at, 120)}" if at and at not in why else ""
    return Text.assemble(
        verdict_text(result.verdict.value), f" {one_line(result.id, 200)}: {why}{where}"
    )


def print_run(console: Console, view: RunView, *, with_table: bool = False) -> None:
    """Print a finished run: root causes with their commands, skips, totals, the path of the page.

    The table of scenarios, and accuracy that is as it should be, are printed on request.
    """
    if with_table:
        console.print(verdict_table(view))
    is_wanted = with_table or EPOCHS in view.plan.options
    # With a fault accuracy is meant to fall. What became of the fault has a line of its own.
    measured = view.accuracy if is_wanted else [one for one in view.accuracy if not one.fault]
    print_accuracy(
        console, [one for one in measured if is_wanted or one.verdict is not Verdict.PASS]
    )
    print_failures(console, view)
    if view.num_unjudged:
        console.print(
            f"{num(view.num_unjudged, 'fault')} not judged: the run ended before",
            style=STYLES["error"],
        )
    for result in view.lost[:MAX_FAILURES]:
        nodes = ", ".join(result.lost_nodes)
        console.print(
            f"planned again after the loss of {nodes}: {one_line(result.id, 200)}", soft_wrap=True
        )
    if view.faults:
        console.print(f"faults {fault_counts(view.faults)}", markup=False)
    console.print(totals_line(view))
    print_meaning(console, view)
    # Not wrapped: a path in two lines can neither be clicked nor copied.
    console.print(f"report: {view.path / 'report.html'}", soft_wrap=True)


def print_meaning(console: Console, view: RunView) -> None:
    """Print what was judged, on what, and under which poison; what was not judged and why; and what
    a green covers.
    """
    lines = meaning(view)
    for line in lines:
        if line.name in OF_THE_JUDGED:
            say(console, f"{line.name}: {line.sentence}")
    print_skips(console, dict(view.skips.most_common()))
    for remark, count in view.remarks.items():
        say(console, f"remark on {num(count, 'case')} that pass: {one_line(remark)}")
    print_skips(console, view.refusals, word="refused")
    for line in lines:
        if line.name not in OF_THE_JUDGED:
            say(console, f"{line.name}: {line.sentence}")


def verdict_table(view: RunView) -> Table:
    verdicts = list(view.counts)
    made = table(
        "scenario", *verdicts, "s", "references", no_wrap={"scenario"}, numbers={*verdicts, "s"}
    )
    for name, group in view.scenarios.items():
        found = totals(group)
        counts = [count_text(verdict, found.get(verdict, 0)) for verdict in verdicts]
        seconds = f"{sum(result.seconds for result in group):.1f}"
        made.add_row(printable(name), *counts, seconds, Text(", ".join(group[0].refs), style="dim"))
    return made


def count_text(verdict: str, count: int) -> Text:
    return Text(str(count), style=STYLES[verdict]) if count else Text("·", style="dim")


def print_failures(console: Console, view: RunView) -> None:
    """The root causes, how many cases did not run, the judged faults, and the known failures."""
    for cause, words in view.causes[:MAX_FAILURES]:
        print_cause(console, cause, words)
    if len(view.causes) > MAX_FAILURES:
        say(
            console,
            f"and {len(view.causes) - MAX_FAILURES} more causes: see {view.path / 'report.html'}",
        )
    if view.num_not_run:
        console.print(
            f"{num(view.num_not_run, 'case')} not run: the run ended before", style=STYLES["error"]
        )
    for fault in view.faults:
        console.print(fault_line(fault), soft_wrap=True)
    if view.known:
        console.print(f"known failures: {len(view.known)}", style=STYLES["known"])
    for result in view.known[:MAX_FAILURES]:
        console.print("  " + known_line(result), soft_wrap=True)
    if len(view.known) > MAX_FAILURES:
        console.print(f"  and {len(view.known) - MAX_FAILURES} more in results.csv")


def print_cause(console: Console, cause: RootCause, words: Mapping[str, str]) -> None:
    """Print one root cause: its findings, the memory to blame, and the commands for its smallest
    case.
    """
    console.print(verdict_text(cause.verdict.value), printable(cause.title), soft_wrap=True)
    if not cause.finding:
        say(console, f"reason: {one_line(cause.first.reason)}", indent="  ")
    for finding, others in facts(cause.first.findings)[:MAX_FINDINGS]:
        also = f" (also seen by {', '.join(others)})" if others else ""
        say(console, finding_line(finding) + also, indent="  ")
        if finding.at:
            console.print("    at " + one_line(finding.at), soft_wrap=True)
    if cause.blame_line:
        say(console, f"blame: {cause.blame_line}", indent="  ")
    for line in first_nan_lines(cause.blame):
        say(console, line, indent="  ")
    for line in log_lines(cause.first):
        console.print("  | " + printable(line), style="dim", soft_wrap=True)
    if len(cause.members) > 1:
        counted = [f"{name} {count}" for name, count in cause.scenarios.items()]
        say(console, f"scenarios: {few(counted, 'more scenarios')}", indent="  ")
    if cause.first.refs:
        say(console, f"refs: {', '.join(cause.first.refs)}", indent="  ")
    for name, command in words.items():
        console.print(f"  {name}: {command}", soft_wrap=True)
    console.print()


def log_lines(result: CaseResult) -> list[str]:
    """What a report shows of the log of a crash or an error: the innermost frames of a stack, or
    its last lines.
    """
    if stack := innermost(result.log, MAX_FRAMES):
        return ["innermost call first:", *stack]
    is_placed = any(finding.at for finding in result.findings)
    # The finding of a failure says more than what its worker printed, and a line of code more than
    # a traceback.
    is_shown = result.verdict is not Verdict.FAIL and not is_placed
    return result.log.strip().splitlines()[-MAX_LOG_LINES:] if is_shown else []


def finding_line(finding: Finding) -> str:
    """A finding on one line: which oracle, which tensor and where, its bits, its site, and the
    sentence.
    """
    place = " ".join(part for part in (finding.tensor, finding.where) if part)
    facts = [
        place,
        finding.bits and f"bits {finding.bits}",
        finding.site and f"site {finding.site}",
    ]
    found = ", ".join(one_line(fact, 120) for fact in facts if fact)
    return f"{finding.oracle}: " + (f"{found}: " if found else "") + one_line(finding.message)


def print_skips(
    console: Console,
    reasons: Mapping[str, int],
    scenario: str = "",
    *,
    word: Literal["skipped", "refused"] = "skipped",
) -> None:
    """Why cases were skipped, each reason once with its number of cases; of the `scenario` that is
    named.
    """
    for reason, count in reasons.items():
        say(
            console,
            f"{word} {num(count, 'case')}{scenario and f' of {scenario}'}: {one_line(reason)}",
            style="dim",
        )


def totals_line(view: RunView) -> Text:
    """`12 pass, 1 fail in 4.2 s`, in the colour of the worst.

    What a kernel refused is apart from other skips.
    """
    counts = {name: count for name, count in view.counts.items() if count}
    if num_refused := sum(result.is_refused for result in view.results):
        # A refusal is a skip with a cause of its own, so there is a count of skips.
        skipped = {"skip": rest} if (rest := counts.pop(Verdict.SKIP.value) - num_refused) else {}
        counts |= {"refused": num_refused} | skipped
    worst = next(
        (name for name in ("fail", "crash", "error", "not-run", "pass", "known") if name in counts),
        "skip",
    )
    words = (
        ", ".join(f"{count} {name.replace('-', ' ')}" for name, count in counts.items())
        or "no cases"
    )
    return Text(f"{words} in {view.plan.seconds:.1f} s", style=STYLES[worst])


def fault_line(fault: FaultResult) -> Text:
    """One line about one fault: what became of it, by what, blaming what, in how many seconds."""
    by = ", ".join(fault.by) or "nothing"
    blamed = ", ".join(fault.blamed) or "no site"
    line = Text.assemble(verdict_text(fault.outcome), (f" {fault.fault} ", "bold"))
    line.append(
        printable(f"by {by}, blaming {blamed} ({fault.case}, {fault.seconds:.1f} s)"),
        style="default",
    )
    if not fault.caught:
        line.append(f"\n       {one_line(fault.reason)}", style="default")
    return line


def print_accuracy(console: Console, records: Sequence[AccuracyRecord]) -> None:
    for record in records[:MAX_RECORDS]:
        console.print(Text(one_line(accuracy_title(record), 300), style="bold"), soft_wrap=True)
        if sentence := model_sentence(record):
            console.print("  " + one_line(sentence), soft_wrap=True)
        console.print(accuracy_table(record))
        if record.judgement.statement:
            console.print(" " + one_line(record.judgement.statement, 1000) + "\n", soft_wrap=True)
    if len(records) > MAX_RECORDS:
        console.print(
            f"and {len(records) - MAX_RECORDS} more measurements of accuracy in results.csv\n"
        )


def accuracy_table(record: AccuracyRecord) -> Table:
    numbers = ("epoch", "right", "accuracy", "95 % interval", "lost", "gained", "p", "changed")
    made = table(*numbers, "not usable", no_wrap=numbers, numbers=numbers)
    if use := record.baseline:
        made.add_row(
            "baseline",
            f"{use.num_correct:,} of {use.num_shared:,}",
            f"{use.accuracy:.4f}",
            interval_text(use.interval),
        )
    for epoch in record.epochs[:SHOWN_EPOCHS]:
        made.add_row(*_row(epoch))
    if len(record.epochs) > SHOWN_EPOCHS:
        made.add_row("…", f"{len(record.epochs) - SHOWN_EPOCHS} more")
    return made


def _row(epoch: EpochAccuracy) -> tuple[str, ...]:
    if not epoch.num_questions:
        return (str(epoch.epoch), "not asked")
    flips = epoch.flips
    compared = (
        (str(flips.lost), str(flips.gained), f"{flips.p_value:.2g}") if flips else ("·", "·", "·")
    )
    return (
        str(epoch.epoch),
        f"{epoch.num_correct:,} of {epoch.num_questions:,}",
        f"{epoch.accuracy:.4f}",
        interval_text(epoch.interval),
        *compared,
        str(epoch.changed),
        printable(describe_faulty(epoch)),
    )


def print_shrunk(console: Console, shrunk: Shrunk, command: str) -> None:
    """The way to the smallest case, its finding, and the `command` that runs it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for place, step in enumerate(shrunk.steps, 1):
        change = f"{one_line(step.before, MAX_VALUE)} -> {one_line(step.after, MAX_VALUE)}"
        table.add_row(str(place), Text(printable(step.what)), Text(printable(change)))
    console.print(Padding(table, (0, 0, 0, 2)))
    console.print(f"  {outcome_line(shrunk)}", soft_wrap=True)
    console.print(
        Text("smallest: ", style="bold") + Text(printable(shrunk.case.id)), soft_wrap=True
    )
    console.print(Text("  " + finding_line(shrunk.finding)), soft_wrap=True)
    console.print(f"  again: {command}", markup=False, soft_wrap=True)
