"""`--shard I/N`: one part of a plan, cut by the ids of its cases, or by their times in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.core.cases import Job
from harness.core.errors import InputError
from harness.scenario.shard import Shard, split
from harness.store.history.runs import PastRuns
from harness.store.history.trends import durations
from harness.store.run_folder import Control, ShardNote


def cut(
    text: str, jobs: Sequence[Job], controls: Sequence[Control], times: Path | None
) -> tuple[list[Job], list[Control], ShardNote]:
    """The jobs and controls of shard `text` (``I/N``), and the note that merging it needs.

    A control stays in the shard of its clean measurement. `times` is a folder of earlier runs. Without one, all cases
    count as equally long, so the ids alone decide. Raises InputError for a malformed or an empty shard.
    """
    shard = Shard.parsed(text)
    keys = [*(job.key for job in jobs), *(control.job.key for control in controls)]
    seconds = durations(PastRuns(times), keys) if times else {}
    beside: dict[str, list[Control]] = {}
    for control in controls:
        beside.setdefault(control.job.case.id, []).append(control)
    own = {job.key: seconds[job.key] for job in jobs if job.key in seconds}
    for job in jobs:
        if job.key in own:
            # A control without a time asks the same questions as the clean measurement.
            clean = own[job.key]
            own[job.key] += sum(seconds.get(control.job.key, clean) for control in beside.get(job.case.id, ()))
    part = set(split([job.key for job in jobs], shard.count, own)[shard.index - 1])
    if not part:
        raise InputError(f"--shard {text}: {len(jobs)} cases leave nothing for this shard; cut into fewer")
    mine = [job for job in jobs if job.key in part]
    ids = {job.case.id for job in mine}
    note = ShardNote(
        index=shard.index,
        count=shard.count,
        keys=tuple(job.key for job in jobs),
        controls=tuple(control.job.key for control in controls),
    )
    return mine, [control for control in controls if control.job.case.id in ids], note


def refuse_moving(times: Path, shard: str | None, root: Path) -> None:
    """Raise InputError for `--times` without a shard or a folder, or of the folder of this run: the cut would move."""
    if shard is None:
        raise InputError("--times: is for cutting shards; add --shard I/N")
    if not times.is_dir():
        raise InputError(f"--times {times}: no folder of runs there; name one, or leave it out")
    if root.resolve() == times.resolve():
        raise InputError(f"--times {times}: this run goes there too; give all shards another folder, or another --out")
