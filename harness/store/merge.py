"""Several run directories, each a shard of one plan, put together into the run that one machine would have made."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import InputError
from harness.store.run_folder import RunStore


def merge(shards: Sequence[RunStore], root: Path, *, command: str) -> RunStore:
    """Write the run directory of the whole plan below `root`.

    Raises InputError when the directories are not the shards of one plan, or when anything of the plan has no result: a
    gap would read as a pass.
    """
    ordered = _checked(shards)
    first = ordered[0].plan
    whole = first.shard
    assert whole is not None
    jobs = {job.key: job for shard in ordered for job in shard.plan.jobs}
    controls = {control.job.key: control for shard in ordered for control in shard.plan.controls}
    merged = RunStore.create(
        root,
        [jobs[key] for key in whole.keys],
        command=command,
        options=first.options,
        controls=[controls[key] for key in whole.controls],
    )
    merged.note_environment(_environment(shard.plan.environment for shard in ordered))
    merged.note_source(first.source)
    merged.add_seconds(sum(shard.plan.seconds for shard in ordered))
    found = {result.key: result for shard in ordered for result in shard.results()}
    for key in whole.keys:
        merged.add(found[key])
    for shard in ordered:
        for key, blame in shard.blames().items():
            merged.add_blame(key, blame)
        for shrunk in shard.shrunk().values():
            merged.add_shrunk(shrunk)
    faults = [fault for shard in ordered for fault in shard.faults()]
    for fault in sorted(faults, key=lambda fault: (fault.scenario, fault.fault, fault.case)):
        merged.add_fault(fault)
    for shard in ordered:
        _copy_answers(shard.path, merged.path)
    return merged


def _checked(shards: Sequence[RunStore]) -> list[RunStore]:
    """The shards in their order, all of one plan and complete."""
    for shard in shards:
        if shard.plan.shard is None:
            raise InputError(f"{shard.path}: not a shard of a run; make shards with: mla-harness run --shard I/N")
    ordered = sorted(shards, key=_index)
    if not ordered:
        raise InputError("merge: no run given; give the directories of all shards")
    first = ordered[0]
    for shard in ordered[1:]:
        _check_alike(first, shard)
    _check_numbers(ordered)
    _check_cover(ordered)
    for shard in ordered:
        left = [job.key for job in shard.unfinished()] + [c.job.key for c in shard.unfinished_controls()]
        if left:
            raise InputError(
                f"{shard.path}: {len(left)} cases have no result, {left[0]} first; finish it with: mla-harness run "
                f"--resume {shard.path}"
            )
    return ordered


def _check_alike(first: RunStore, other: RunStore) -> None:
    one, two = first.plan, other.plan
    assert one.shard is not None and two.shard is not None
    differing = [
        what
        for what, left, right in (
            ("the number of shards", one.shard.count, two.shard.count),
            ("the planned cases", one.shard.keys, two.shard.keys),
            ("the faults tried beside them", one.shard.controls, two.shard.controls),
            ("the options", one.options, two.options),
            ("the code under test", (one.source.commit, one.source.changes), (two.source.commit, two.source.changes)),
        )
        if left != right
    ]
    if differing:
        raise InputError(
            f"{other.path}: {', '.join(differing)} differ from those of {first.path}; merge the shards of one plan"
        )


def _check_numbers(ordered: Sequence[RunStore]) -> None:
    whole = ordered[0].plan.shard
    assert whole is not None
    present = [_index(shard) for shard in ordered]
    twice = [index for index in set(present) if present.count(index) > 1]
    if twice:
        paths = " and ".join(str(shard.path) for shard in ordered if _index(shard) == twice[0])
        raise InputError(f"merge: shard {twice[0]}/{whole.count} is given twice, {paths}; give each once")
    missing = sorted(set(range(1, whole.count + 1)) - set(present))
    if missing:
        names = ", ".join(f"{index}/{whole.count}" for index in missing)
        raise InputError(f"merge: shard {names} is missing; give the directories of all {whole.count}")


def _check_cover(ordered: Sequence[RunStore]) -> None:
    whole = ordered[0].plan.shard
    assert whole is not None
    planned = [job.key for shard in ordered for job in shard.plan.jobs]
    planned += [control.job.key for shard in ordered for control in shard.plan.controls]
    wanted = {*whole.keys, *whole.controls}
    twice = sorted(key for key, times in Counter(planned).items() if times > 1)
    lost = sorted(wanted - set(planned))
    if lost or twice:
        key, how = (lost[0], "no shard") if lost else (twice[0], "two shards")
        raise InputError(
            f"merge: {key} is in {how}: they were cut by different histories; give every shard the same --history"
        )


def _index(shard: RunStore) -> int:
    assert shard.plan.shard is not None
    return shard.plan.shard.index


def _environment(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the machines have in common, and both values of what they have not."""
    machines = list(found)
    merged: dict[str, Any] = {}
    for name in machines[0]:
        values = [machine.get(name) for machine in machines]
        same = all(value == values[0] for value in values)
        merged[name] = values[0] if same else " / ".join(dict.fromkeys(str(value) for value in values))
    return merged


def _copy_answers(shard: Path, merged: Path) -> None:
    """What measurements of accuracy noted on their way."""
    if (shard / "accuracy").is_dir():
        shutil.copytree(shard / "accuracy", merged / "accuracy", dirs_exist_ok=True)
