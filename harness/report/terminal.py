"""A run in a terminal: a live line while it lasts, then tables, failures, totals, accuracy and the smallest case."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from harness.core.cases import Job
from harness.core.mutants import MutantResult, SurveyedCase
from harness.core.records import (
    BAD,
    AccuracyRecord,
    Blame,
    CaseResult,
    EpochAccuracy,
    FaultResult,
    Finding,
    ShrinkStep,
    Shrunk,
    Verdict,
)
from harness.report.wording import (
    accuracy_title,
    blame_lines,
    describe_faulty,
    known_line,
    model_sentence,
    num,
    one_line,
    printable,
    reproduce,
    reproduce_case,
)
from harness.store.mutants import score, tables
from harness.store.run_folder import NEVER_RAN, RunStore
from harness.store.summary import accuracy_records, by_scenario, totals

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "crash": "bold magenta",
    "skip": "dim",
    "error": "bold yellow",
    "known": "cyan",
}
MAX_FAILURES = 20
MAX_FINDINGS = 3
MAX_LOG_LINES = 12
PIPE_WIDTH = 140
MAX_RECORDS = 30
SHOWN_EPOCHS = 20
MAX_VALUE = 60


def console_for(stream: IO[str] | None = None, *, moves: bool = True) -> Console:
    """A console without markup, so that a kernel's message cannot colour or break a line. It `moves` in a terminal."""
    target = stream or sys.stdout
    # A file or a CI log has no width of its own.
    width = None if target.isatty() else PIPE_WIDTH
    is_forced = None if moves else False
    return Console(file=target, markup=False, highlight=False, emoji=False, width=width, force_terminal=is_forced)


class _Bar:
    """A bar with a count, the time and a note, for the length of a `with`. It shows nothing without a terminal."""

    def __init__(self, console: Console, what: str, *, total: int | None = None, note: str = "") -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(what, total=total, note=note)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()


class LiveProgress(_Bar):
    """A progress bar with counts while the cases run; without a terminal only bad results are printed, a line each."""

    def __init__(self, console: Console, num_jobs: int) -> None:
        super().__init__(console, "cases", total=num_jobs, note="starting workers")
        self._running: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def on_start(self, job: Job) -> None:
        """A worker took a job."""
        self._running[job.key] = job.case.id
        self._update(0)

    def on_result(self, result: CaseResult, *, announce: bool = True) -> None:
        """A job ended; a bad one is printed above the bar at once when `announce`."""
        self._running.pop(result.key, None)
        self._counts[result.verdict.value] += 1
        if announce and result.verdict in BAD:
            verdict = verdict_text(result.verdict.value)
            self._console.print(verdict, one_line(result.id, 200), one_line(result.reason, 200), soft_wrap=True)
        self._update(1)

    def _update(self, advance: int) -> None:
        counts = " ".join(f"{verdict.value} {n}" for verdict in Verdict if (n := self._counts[verdict.value]))
        running = one_line(next(iter(self._running.values()), ""), 50)
        self._progress.update(self._task, advance=advance, note=f"{counts}  {running}")


def verdict_text(verdict: str) -> Text:
    """A verdict in its colour, in capitals when it needs a look."""
    return Text(verdict.upper() if verdict in BAD else verdict, style=STYLES[verdict])


def print_run(console: Console, store: RunStore) -> None:
    """Print a finished run: table, failures with blame and command, totals, the path of the page."""
    results, blames = store.results(), store.blames()
    console.print(verdict_table(results))
    print_accuracy(console, accuracy_records([*results, *store.faults()]))
    print_failures(console, store, results, blames)
    for fault in store.faults():
        console.print(fault_line(fault), soft_wrap=True)
    print_known(console, results)
    print_skips(console, [*results, *store.tried().values()])
    print_lost(console, results)
    console.print(totals_line(results, store.plan.seconds))
    console.print(f"report: {store.path / 'report.html'}", soft_wrap=True)


def verdict_table(results: Sequence[CaseResult]) -> Table:
    """Counts of verdicts, a row for each scenario in the order they ran."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("scenario", no_wrap=True)
    verdicts = list(totals(results))
    for verdict in verdicts:
        table.add_column(verdict, justify="right")
    table.add_column("s", justify="right")
    table.add_column("references", style="dim", overflow="fold")
    for name, group in by_scenario(results).items():
        found = totals(group)
        counts = [count_text(verdict, found.get(verdict, 0)) for verdict in verdicts]
        seconds = f"{sum(result.seconds for result in group):.1f}"
        table.add_row(printable(name), *counts, seconds, ", ".join(group[0].refs))
    return table


def count_text(verdict: str, count: int) -> Text:
    """A count in the colour of its verdict, and a dim dot for 0."""
    return Text(str(count), style=STYLES[verdict]) if count else Text("·", style="dim")


def print_mutants(console: Console, results: Sequence[MutantResult], unused: Sequence[SurveyedCase]) -> None:
    """Print the tables of mutants, the cases that could not judge any, and the score."""
    for head, rows in tables(results):
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for title in head:
            table.add_column(title, overflow="fold")
        for row in rows:
            table.add_row(*map(printable, row))
        console.print(table)
    for case in unused:
        console.print(f"not used: {printable(case.id)}: {one_line(case.why_not, 200)}", soft_wrap=True)
    console.print(score(results).statement, soft_wrap=True)


def print_failures(console: Console, store: RunStore, results: Sequence[CaseResult], blames: dict[str, Blame]) -> None:
    """The first bad results in full. Of several with one reason, only the first shows its log."""
    bad = [result for result in results if result.verdict in BAD]
    never_ran = [result for result in bad if result.reason == NEVER_RAN]
    shown: set[str] = set()
    ran = [result for result in bad if result.reason != NEVER_RAN]
    smallest = store.shrunk()
    for result in ran[:MAX_FAILURES]:
        command = reproduce(result, store.plan.options)
        print_failure(console, result, blames.get(result.key), command, with_log=result.reason not in shown)
        if result.key in smallest:
            case = smallest[result.key].case
            again = reproduce_case(case.id, result.fault, store.plan.options)
            console.print(f"  smallest: {again}\n", markup=False, soft_wrap=True)
        shown.add(result.reason)
    if len(ran) > MAX_FAILURES:
        console.print(f"and {len(ran) - MAX_FAILURES} more: see {store.path / 'report.html'}\n", soft_wrap=True)
    if never_ran:
        console.print(f"{num(len(never_ran), 'case')} never ran: the run ended before", style=STYLES["error"])


def print_failure(
    console: Console, result: CaseResult, blame: Blame | None, command: str, *, with_log: bool = True
) -> None:
    """Print one failing case: findings, memory to blame, command. A line of code stands for the end of its log."""
    console.print(verdict_text(result.verdict.value), printable(result.id), soft_wrap=True)
    if result.refs:
        console.print("  refs:", ", ".join(result.refs), soft_wrap=True)
    if result.verdict is not Verdict.FAIL and result.reason:
        console.print("  reason:", one_line(result.reason), soft_wrap=True)
    for finding in result.findings[:MAX_FINDINGS]:
        console.print("  " + finding_line(finding), soft_wrap=True)
        if finding.at:
            console.print("    at " + one_line(finding.at), soft_wrap=True)
    if len(result.findings) > MAX_FINDINGS:
        console.print(f"  and {num(len(result.findings) - MAX_FINDINGS, 'more finding')}")
    for line in blame_lines(blame):
        console.print("  " + line, soft_wrap=True)
    is_placed = any(finding.at for finding in result.findings)
    if with_log and result.log and result.verdict is not Verdict.FAIL and not is_placed:
        for line in printable(result.log).strip().splitlines()[-MAX_LOG_LINES:]:
            console.print("  | " + line, style="dim", soft_wrap=True)
    console.print("  again:", command, "\n", soft_wrap=True)


def finding_line(finding: Finding) -> str:
    """A finding on one line: which oracle, which tensor and where, its bits, its site, and the sentence."""
    place = " ".join(part for part in (finding.tensor, finding.where) if part)
    facts = [place, finding.bits and f"bits {finding.bits}", finding.site and f"site {finding.site}"]
    found = ", ".join(one_line(fact, 120) for fact in facts if fact)
    return f"{finding.oracle}: " + (f"{found}: " if found else "") + one_line(finding.message)


def print_known(console: Console, results: Sequence[CaseResult]) -> None:
    """The known failures, a line each. Nothing when there is none."""
    known = [result for result in results if result.verdict is Verdict.KNOWN]
    if known:
        console.print(f"known failures: {len(known)}", style=STYLES["known"])
    for result in known[:MAX_FAILURES]:
        console.print("  " + known_line(result), soft_wrap=True)
    if len(known) > MAX_FAILURES:
        console.print(f"  and {len(known) - MAX_FAILURES} more in results.csv")


def print_skips(console: Console, results: Sequence[CaseResult]) -> None:
    """Why cases were skipped, each reason once."""
    reasons = Counter(result.reason for result in results if result.verdict is Verdict.SKIP)
    for reason, count in reasons.items():
        console.print(f"skipped {num(count, 'case')}: {one_line(reason)}", style="dim", soft_wrap=True)


def print_lost(console: Console, results: Sequence[CaseResult]) -> None:
    """The cases that a cluster planned again, with the lost nodes."""
    for result in [result for result in results if result.lost_nodes][:MAX_FAILURES]:
        nodes = ", ".join(result.lost_nodes)
        console.print(f"planned again after the loss of {nodes}: {one_line(result.id, 200)}", soft_wrap=True)


def totals_line(results: Sequence[CaseResult], seconds: float) -> Text:
    """`12 pass, 1 fail in 4.2 s`, in the colour of the worst."""
    counts = {name: count for name, count in totals(results).items() if count}
    worst = next((name for name in ("fail", "crash", "error", "pass", "known") if name in counts), "skip")
    words = ", ".join(f"{count} {name}" for name, count in counts.items()) or "no cases"
    return Text(f"{words} in {seconds:.1f} s", style=STYLES[worst])


def fault_line(fault: FaultResult) -> Text:
    """One line about one fault: caught or not, by what, blaming what, in how many seconds."""
    by, blamed = ", ".join(fault.by) or "nothing", ", ".join(fault.blamed) or "no site"
    line = Text("caught " if fault.caught else "MISSED ", style=STYLES["pass" if fault.caught else "fail"])
    line.append(f"{fault.fault} ", style="bold")
    line.append(printable(f"by {by}, blaming {blamed} ({fault.case}, {fault.seconds:.1f} s)"), style="default")
    if not fault.caught:
        line.append(f"\n       {one_line(fault.reason)}", style="default")
    return line


class EpochProgress(_Bar):
    """A bar for the epoch that runs; without a terminal, a line at the end of each epoch."""

    def __init__(self, console: Console, num_epochs: int) -> None:
        super().__init__(console, f"epoch 1 of {num_epochs}")
        self._num_epochs = num_epochs
        self._ended: set[int] = set()

    def update(self, state: dict[str, int]) -> None:
        """Show the progress in `state`."""
        epoch, answered, total = state["epoch"], state["answered"], state["num_questions"]
        share = f"accuracy {state['num_correct'] / answered:.4f}"
        note = share + (f", {state['unanswered']} unanswered" if state["unanswered"] else "")
        description = f"epoch {epoch} of {self._num_epochs}"
        self._progress.update(self._task, description=description, completed=answered, total=total, note=note)
        if answered == total and epoch not in self._ended:
            self._ended.add(epoch)
            self._console.print(f"{description}: {total:,} questions, {note}{_speed(state)}", soft_wrap=True)


def _speed(state: dict[str, int]) -> str:
    tokens, seconds = state.get("num_tokens", 0), state.get("milliseconds", 0) / 1e3
    return f", {tokens:,} tokens in {seconds:.2f} s, {tokens / seconds:,.0f} a second" if tokens and seconds else ""


def print_accuracy(console: Console, records: Sequence[AccuracyRecord]) -> None:
    """Print the epochs of each record with their intervals, and the judgement."""
    for record in records[:MAX_RECORDS]:
        console.print(Text(one_line(accuracy_title(record), 300), style="bold"), soft_wrap=True)
        if sentence := model_sentence(record):
            console.print("  " + one_line(sentence), soft_wrap=True)
        console.print(_table(record))
        if record.judgement.statement:
            console.print(" " + one_line(record.judgement.statement, 1000) + "\n", soft_wrap=True)
    if len(records) > MAX_RECORDS:
        console.print(f"and {len(records) - MAX_RECORDS} more measurements of accuracy in results.csv\n")


def _table(record: AccuracyRecord) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=True)
    for name in ("epoch", "right", "accuracy", "95 % interval", "lost", "gained", "p", "changed"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("not usable", overflow="fold")
    if use := record.baseline:
        table.add_row("baseline", f"of {use.num_shared:,}", f"{use.accuracy:.4f}", _interval(use.interval))
    for epoch in record.epochs[:SHOWN_EPOCHS]:
        table.add_row(*_row(epoch))
    if len(record.epochs) > SHOWN_EPOCHS:
        table.add_row("…", f"{len(record.epochs) - SHOWN_EPOCHS} more")
    return table


def _row(epoch: EpochAccuracy) -> tuple[str, ...]:
    if not epoch.num_questions:
        return (str(epoch.epoch), "not asked")
    flips = epoch.flips
    compared = (str(flips.lost), str(flips.gained), f"{flips.p_value:.2g}") if flips else ("·", "·", "·")
    return (
        str(epoch.epoch),
        f"{epoch.num_correct:,} of {epoch.num_questions:,}",
        f"{epoch.accuracy:.4f}",
        _interval(epoch.interval),
        *compared,
        str(epoch.changed),
        printable(describe_faulty(epoch)),
    )


def _interval(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.4f} to {interval[1]:.4f}"


def step_row(step: ShrinkStep) -> tuple[str, str]:
    """What was reduced, and from what to what."""
    change = f"{one_line(step.before, MAX_VALUE)} -> {one_line(step.after, MAX_VALUE)}"
    return printable(step.what), printable(change)


def outcome_line(shrunk: Shrunk) -> str:
    """How the search ended: ``18 steps, 89 trials, 5.4 s; no smaller case fails alike``."""
    end = "no smaller case fails alike" if shrunk.is_smallest else "the time was up; a smaller one may exist"
    return f"{num(len(shrunk.steps), 'step')}, {num(shrunk.num_trials, 'trial')}, {shrunk.seconds:.1f} s; {end}"


def print_shrunk(console: Console, shrunk: Shrunk, command: str) -> None:
    """The way to the smallest case, its finding, and the `command` that runs it."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for place, step in enumerate(shrunk.steps, 1):
        table.add_row(str(place), *(Text(cell) for cell in step_row(step)))
    console.print(Padding(table, (0, 0, 0, 2)))
    console.print(f"  {outcome_line(shrunk)}", soft_wrap=True)
    console.print(Text("smallest: ", style="bold") + Text(printable(shrunk.case.id)), soft_wrap=True)
    console.print(Text("  " + finding_line(shrunk.finding)), soft_wrap=True)
    console.print(f"  again: {command}", markup=False, soft_wrap=True)
