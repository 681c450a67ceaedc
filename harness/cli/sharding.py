"""`--shard I/N`: one part of a plan, cut by the ids of its cases."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.cases import Job
from harness.core.errors import InputError
from harness.scenario.shard import Shard, split
from harness.store.run_folder import Control, ShardNote


def cut(text: str, jobs: Sequence[Job], controls: Sequence[Control]) -> tuple[list[Job], list[Control], ShardNote]:
    """The jobs and controls of shard `text` (``I/N``), and the note that merging it needs.

    A control stays in the shard of its clean measurement. Raises InputError for a malformed or an empty shard.
    """
    shard = Shard.parsed(text)
    part = set(split([job.key for job in jobs], shard.count)[shard.index - 1])
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
