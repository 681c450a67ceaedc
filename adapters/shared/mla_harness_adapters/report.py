"""What the processes of a served engine say of themselves after the questions, and its check.

A process without the fault, the poison or the recorder would look like an engine without the bug.
So each one reports what is installed in it, and a case in which one lacks something is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.api import FirstNan, HarnessError, Record, write_atomic
from mla_harness_adapters.plan import Plan, ServedMemory, ServePoison

REPORT_FILE = "poison.json"
"""The report of all processes, in the folder of the answers."""
FIRST_NAN_FILE = "first-nan-rank{rank}.json"
"""The report of a rank's recorder of the first NaN."""


class ProcessReport(Record):
    """What is installed in the process of one rank, and what its poison has filled."""

    rank: int
    process: int
    """The process id."""
    fault: str = ""
    routing: str = ""
    """The strategy that chooses the experts, if the process knows one."""
    counts: dict[str, int]
    """Steps, sweeps, and what else was filled, by the names of the engine's adapter."""
    races: tuple[tuple[str, str], ...] = ()
    """The lines of a copy, and of a change of its source before the copy had ended."""


class Report(Record):
    """What all processes of one serving process say, in the order of ranks."""

    ranks: tuple[ProcessReport, ...]

    @classmethod
    def of(cls, told: Iterable[Mapping[str, Any]]) -> Report:
        """The report of what processes told, in any order."""
        ranks = [ProcessReport.model_validate(one) for one in told]
        return cls(ranks=tuple(sorted(ranks, key=lambda one: one.rank)))

    def total(self, count: str) -> int:
        """The sum of a count over all processes."""
        return sum(one.counts.get(count, 0) for one in self.ranks)

    def keep(self, folder: Path) -> None:
        """Write the report, with the sums of its counts, to the folder."""
        names = dict.fromkeys(name for one in self.ranks for name in one.counts)
        content = {"counts": {name: self.total(name) for name in names}} | self.model_dump()
        (folder / REPORT_FILE).write_text(json.dumps(content), encoding="utf-8")

    def check(self, plan: Plan, memory: ServedMemory, num_ranks: int, who: str) -> None:
        """Raise HarnessError if a process lacks the fault, the routing or the poison of the plan,
        so that the case proves nothing.

        `who` is what the engine calls the process of a rank, such as "worker".
        """
        if [one.rank for one in self.ranks] != list(range(num_ranks)):
            found = ", ".join(str(one.rank) for one in self.ranks) or "none"
            raise HarnessError(
                f"{len(self.ranks)} of {num_ranks} {who}s reported what is installed in them;"
                f" their ranks: {found}"
            )
        for one in self.ranks:
            name = f"the {who} of rank {one.rank} (process {one.process})"
            if one.fault != plan.fault:
                raise HarnessError(
                    f"{name} runs with {one.fault or 'no fault'}, not with {plan.fault or 'none'}"
                )
            if plan.routing and one.routing != plan.routing:
                raise HarnessError(f"{name} does not know the routing strategy of this case")
            for count in memory.always:
                if not one.counts.get(count):
                    raise HarnessError(f"{name} counted no {count} in the harness's hook")
            # A recorded run asks too few questions to reach every site.
            if plan.poison is not None and not plan.records:
                _check_filled(one, plan.poison, memory)


def _check_filled(one: ProcessReport, poison: ServePoison, memory: ServedMemory) -> None:
    if not poison.is_for(one.rank):
        if any(one.counts.get(count) for count in memory.counts):
            raise HarnessError(
                f"the poison {poison.text()} is not for rank {one.rank}, and filled: {one.counts}"
            )
    elif missing := memory.unfilled(poison, one.counts):
        raise HarnessError(
            f"the poison {poison.text()} filled nothing of {', '.join(missing)} on rank"
            f" {one.rank}: {one.counts}"
        )


def keep_first_nan(folder: Path, rank: int, found: FirstNan | None) -> None:
    """Write the report of a rank's recorder to the folder, also that nothing was found."""
    content = (found or FirstNan(rank=rank)).model_dump_json(indent=1) + "\n"
    write_atomic(folder / FIRST_NAN_FILE.format(rank=rank), content)


def first_nan_of_ranks(folder: Path, num_ranks: int, title: str, failure: str = "") -> FirstNan:
    """The first writer over all ranks, from the reports of their recorders in `folder`.

    `failure` is how the engine failed, if it did. Then reports may be missing. Raises HarnessError
    if a report is missing without a failure, because that rank ran without the recorder.
    """
    files = [folder / FIRST_NAN_FILE.format(rank=rank) for rank in range(num_ranks)]
    reports = [
        FirstNan.model_validate_json(file.read_text(encoding="utf-8"))
        for file in files
        if file.is_file()
    ]
    missing = ", ".join(str(rank) for rank, file in enumerate(files) if not file.is_file())
    if missing and not failure:
        raise HarnessError(f"no recorder reported from rank {missing}, though {title} did not fail")
    who = f"rank {missing}" if num_ranks > 1 else title
    missing_report = f"{who} ended before its recorder reported: {failure}" if missing else ""
    if not reports:
        return FirstNan(num_ranks=num_ranks, missing_report=missing_report)
    return FirstNan.of_ranks(reports).model_copy(
        update={"num_ranks": num_ranks, "missing_report": missing_report}
    )
