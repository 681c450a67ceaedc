"""`--shard I/N`: one part of a plan, cut by the times of its cases in the history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.cli.output import warn
from harness.core.cases import Job
from harness.core.errors import HarnessError, InputError
from harness.scenario.shard import Shard, split
from harness.store.history.trends import durations
from harness.store.run_folder import Control, ShardNote


def cut(
    text: str, jobs: Sequence[Job], controls: Sequence[Control], history: Path | None
) -> tuple[list[Job], list[Control], ShardNote]:
    """The jobs and controls of shard `text` (``I/N``), and the note that merging it needs.

    A control stays in the shard of its clean measurement. Without a history, all cases count as equally long.
    Raises InputError for a malformed or an empty shard.
    """
    shard = Shard.parsed(text)
    seconds = _durations(history, [*(job.key for job in jobs), *(control.job.key for control in controls)])
    beside: dict[str, list[Control]] = {}
    for control in controls:
        beside.setdefault(control.job.case.id, []).append(control)
    times = {job.key: seconds[job.key] for job in jobs if job.key in seconds}
    for job in jobs:
        if job.key in times:
            # A control without a time asks the same questions as the clean measurement.
            clean = times[job.key]
            times[job.key] += sum(seconds.get(control.job.key, clean) for control in beside.get(job.case.id, ()))
    part = set(split([job.key for job in jobs], shard.count, times)[shard.index - 1])
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


def _durations(history: Path | None, keys: Sequence[str]) -> dict[str, float]:
    if history is None or not history.is_file():
        return {}
    try:
        return durations(history, keys)
    except HarnessError as error:
        warn(f"the shards are cut without times: {error}")
        return {}
