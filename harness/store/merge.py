"""The shards of one plan merged into the run that one machine would have made."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import InputError
from harness.core.files import write_atomic
from harness.core.finding_words import few
from harness.core.stored import read_text
from harness.store.run_folder import ANSWERS, RunStore, ShardNote
from harness.store.source import differences

CODE = "the code under test"


def merge(shards: Sequence[RunStore], root: Path, *, command: str) -> RunStore:
    """Write the run directory of the whole plan below `root`.

    Raises InputError when the directories are not the shards of one plan, or when a planned case
    has no result: a gap would read as a pass.
    """
    ordered = _checked(shards)
    first = ordered[0].plan
    whole = _note(ordered[0])
    jobs = {job.key: job for shard in ordered for job in shard.plan.jobs}
    controls = {control.job.key: control for shard in ordered for control in shard.plan.controls}
    merged = RunStore.create(
        root,
        # In the order of the whole plan, so that the report is that of one machine, byte for byte.
        [jobs[key] for key in whole.keys],
        command=command,
        options=first.options,
        num_long=first.num_long,
        controls=[controls[key] for key in whole.controls],
        kernels=tuple(
            {spec.name: spec for shard in ordered for spec in shard.plan.kernels}.values()
        ),
    )
    merged.note_environment(_environment([shard.plan.environment for shard in ordered]))
    merged.note_source(first.source)
    # The machines' time, not the time that passed: it is what the run has cost.
    merged.add_seconds(sum(shard.plan.seconds for shard in ordered))
    found = {result.key: result for shard in ordered for result in shard.results()}
    for key in whole.keys:
        merged.add(found[key])
    for shard in ordered:
        for key, blame in shard.blames().items():
            merged.add_blame(key, blame)
        for tried in shard.tried().values():
            merged.add_tried(tried)
        for shrunk in shard.shrunk().values():
            merged.add_shrunk(shrunk)
        _copy_answers(shard.path, merged.path)
    # The shards end in any order. Sorted, the report is that of one machine.
    faults = [fault for shard in ordered for fault in shard.faults()]
    for fault in sorted(faults, key=lambda fault: (fault.scenario, fault.fault, fault.case)):
        merged.add_fault(fault)
    return merged


def _copy_answers(shard: Path, merged: Path) -> None:
    """Copy what the measured cases of a shard have in folders of their own."""
    for file in sorted((shard / ANSWERS).rglob("*")):
        # A link is read as a file and refused there: it could lead out of the folder.
        if not file.is_dir() or file.is_symlink():
            copy = merged / file.relative_to(shard)
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(copy, read_text(file))


def _checked(shards: Sequence[RunStore]) -> list[RunStore]:
    """The shards in their order, all of one plan and complete."""
    ordered = sorted(shards, key=lambda shard: _note(shard).index)
    if not ordered:
        raise InputError("merge: no run given; give the directories of all shards")
    first, *others = ordered
    wanted = _in_common(first)
    for other in others:
        if differing := [
            name for name, value in _in_common(other).items() if value != wanted[name]
        ]:
            differ = f"{', '.join(differing)} differ from {first.path}"
            if CODE in differing and (told := differences(first.plan.source, other.plan.source)):
                differ += f" ({few(told, 'more files')})"
            raise InputError(f"{other.path}: {differ}; merge the shards of one plan")
    # Numbers before cover: a missing shard would else be told as thousands of missing cases.
    _check_numbers(ordered)
    _check_cover(ordered)
    for shard in ordered:
        left = [job.key for job in shard.unfinished()] + [
            c.job.key for c in shard.unfinished_controls()
        ]
        if left:
            raise InputError(
                f"{shard.path}: no result for {few(left)}; finish it with:"
                f" mla-harness run --resume {shard.path}"
            )
    return ordered


def _note(shard: RunStore) -> ShardNote:
    if shard.plan.shard is None:
        raise InputError(
            f"{shard.path}: not a shard of a run; make shards with: mla-harness run --shard I/N"
        )
    return shard.plan.shard


def _in_common(shard: RunStore) -> dict[str, object]:
    note = _note(shard)
    plan = shard.plan
    return {
        "the number of shards": note.count,
        "the planned cases": note.keys,
        "the faults tried beside them": note.controls,
        "the options": plan.options,
        CODE: (plan.source.commit, plan.source.changes),
    }


def _check_numbers(ordered: Sequence[RunStore]) -> None:
    count = _note(ordered[0]).count
    present = Counter(_note(shard).index for shard in ordered)
    for index, times in present.items():
        if times > 1:
            paths = " and ".join(
                str(shard.path) for shard in ordered if _note(shard).index == index
            )
            raise InputError(
                f"merge: shard {index}/{count} is given twice, {paths}; give each once"
            )
    missing = ", ".join(f"{index}/{count}" for index in range(1, count + 1) if index not in present)
    if missing:
        raise InputError(f"merge: shard {missing} is missing; give the directories of all {count}")


def _check_cover(ordered: Sequence[RunStore]) -> None:
    whole = _note(ordered[0])
    planned = Counter(job.key for shard in ordered for job in shard.plan.jobs)
    planned.update(control.job.key for shard in ordered for control in shard.plan.controls)
    lost = [(key, "no shard") for key in sorted({*whole.keys, *whole.controls} - planned.keys())]
    twice = [(key, "two shards") for key in sorted(planned) if planned[key] > 1]
    for key, how in lost + twice:
        raise InputError(
            f"merge: {key} is in {how}: shards were cut differently; run all of them with one"
            " version"
        )


def _in_words(value: object) -> str:
    return "none" if value is None else str(value)


def _environment(machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The values of the machines: one where all agree, one list of lists, else all of them in one
    text.
    """
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for machine in machines for name in machine):
        values: list[Any] = [machine.get(name) for machine in machines]
        # A machine without a known fact adds nothing to it.
        known = [value for value in values if value is not None]
        if known and all(isinstance(value, dict) for value in known):
            merged[name] = _environment([value or {} for value in values])
        elif known and all(isinstance(value, list) for value in known):
            merged[name] = list(
                {json.dumps(one, sort_keys=True): one for value in known for one in value}.values()
            )
        else:
            same = all(value == values[0] for value in values)
            merged[name] = values[0] if same else " / ".join(dict.fromkeys(map(_in_words, values)))
    return merged
