"""A survey of an engine's options: which sets lose answers, what the engine refuses, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from harness.core.cases import Case
from harness.core.records import CaseResult, OptionSet, Verdict
from harness.core.registry import attribute_at
from harness.report.console import table
from harness.report.wording import printable
from harness.scenario.variant import shown

MOST = 300
"""Characters of a finding or a refusal in the terminal."""


def sets_table(results: Sequence[CaseResult], found: Sequence[OptionSet]) -> Table:
    """The sets of options that fail, each with its command, and why others were skipped (the engine refuses some)."""
    made = table("combinations", "verdict", "options", "what was seen")
    for one in found:
        seen = one.result.findings[0].message if one.result.findings else one.result.reason
        made.add_row(str(len(one.keys)), one.result.verdict.value, words_of(one), printable(seen)[:MOST])
        made.add_row("", "", "", command_of(one.case))
    refusals = Counter(result.reason for result in results if result.verdict is Verdict.SKIP)
    for reason, count in refusals.most_common():
        made.add_row(str(count), "skipped", "", printable(reason)[:MOST])
    return made


def words_of(one: OptionSet) -> str:
    """`backend=TRITON_MLA graph=default`: the options that fail together."""
    text = " ".join(f"{name}={shown(value)}" for name, value in one.options.items()) or "plain options"
    return text if one.is_smallest else f"{text} (perhaps fewer: the time was up)"


def command_of(case: Case) -> str:
    """The shell command that starts the engine with the options of `case`; empty if the engine has none."""
    path = case.kind.serve_command
    return str(attribute_at(path)(case)) if path else ""


def to_object(one: OptionSet) -> dict[str, Any]:
    return {
        "options": one.options,
        "verdict": one.result.verdict.value,
        "case": one.case.id,
        "combinations": one.keys,
        "trials": one.num_trials,
        "is_smallest": one.is_smallest,
        "command": command_of(one.case),
    }
