"""Stored accuracies, `fixtures/baselines/*.yaml`: what a task's questions came to on one model, engine and dtype."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, field_validator

from harness.accuracy.answer_log import AccuracyRun
from harness.core.errors import InputError
from harness.core.files import write_atomic
from harness.core.fixtures import BASELINES
from harness.core.params import Record

_HASHES_A_LINE = 8


class Baseline(Record):
    """One baseline. `right` and `wrong` together are all its questions, by hash, in the task's order each."""

    schema_version: int = 1
    name: str = Field(default="", exclude=True)
    task: str
    filter: str
    model: str
    model_hash: str
    engine: str
    dtype: str
    accuracy: float
    num_questions: int
    seed: int = 0
    recorded: str = ""
    right: tuple[str, ...]
    wrong: tuple[str, ...]

    @field_validator("right", "wrong", mode="before")
    @classmethod
    def _from_lines(cls, value: Any) -> Any:
        return tuple(value.split()) if isinstance(value, str) else value

    @property
    def outcomes(self) -> dict[str, bool]:
        """Question hash -> whether it was answered right."""
        return dict.fromkeys(self.right, True) | dict.fromkeys(self.wrong, False)


@dataclass(frozen=True)
class BaselineChange:
    """What an update would do. Nothing is written before `write_baseline` gets it."""

    path: Path
    old: Baseline | None
    new: Baseline
    lost: tuple[str, ...]
    gained: tuple[str, ...]
    dropped: tuple[str, ...]
    objections: tuple[str, ...]
    """Why it is refused without `--allow-regression`; empty when it is not."""

    def lines(self) -> list[str]:
        """The difference, for people."""
        new = f"{self.new.accuracy:.4f} of {self.new.num_questions:,} questions"
        if self.old is None:
            return [f"{self.path.name}: new, {new}"]
        shown = [
            f"{self.path.name}: {self.old.accuracy:.4f} of {self.old.num_questions:,} questions -> {new}",
            f"  {len(self.lost)} lost, {len(self.gained)} gained, {len(self.dropped)} no longer asked",
        ]
        if self.old.model_hash != self.new.model_hash:
            shown.append(f"  model {self.old.model_hash} -> {self.new.model_hash}")
        for word, hashes in (("lost", self.lost), ("gained", self.gained)):
            if hashes:
                more = f" and {len(hashes) - 10} more" if len(hashes) > 10 else ""
                shown.append(f"  {word}: {' '.join(hashes[:10])}{more}")
        return shown


def read_baseline(path: Path) -> Baseline:
    """Read one file. Raises InputError, with the file's name, for what is no baseline."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        baseline = Baseline.model_validate(loaded).model_copy(update={"name": path.stem})
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{path}: no baseline: {where}: {first['msg']}; make it with `baseline update`") from None
    if len(baseline.outcomes) != baseline.num_questions:
        raise InputError(f"{path}: {len(baseline.outcomes)} outcomes for {baseline.num_questions} questions")
    if round(baseline.accuracy * baseline.num_questions) != len(baseline.right):
        raise InputError(f"{path}: accuracy {baseline.accuracy} is not {len(baseline.right)} right answers")
    return baseline


def read_baselines(directory: Path = BASELINES) -> list[Baseline]:
    """All baselines of a directory, by name."""
    return [read_baseline(path) for path in sorted(directory.glob("*.yaml"))]


def find_baseline(
    *, task: str, filter_name: str, model_hash: str, engine: str, dtype: str, directory: Path = BASELINES
) -> Baseline | None:
    """The baseline of exactly this task, model, engine and dtype; None when there is none."""
    key = (task, filter_name, model_hash, engine, dtype)
    for found in read_baselines(directory):
        if (found.task, found.filter, found.model_hash, found.engine, found.dtype) == key:
            return found
    return None


def baseline_of(run: AccuracyRun, directory: Path = BASELINES) -> Baseline | None:
    """The baseline that `run` is to be compared to by default.

    On a GPU ("engine on cuda") the reference engine must answer what it answers on a CPU: where there is no baseline
    of its own, that one counts.
    """
    header = run.header
    for engine in dict.fromkeys((header.engine, header.engine.partition(" on ")[0])):
        found = find_baseline(
            task=header.task,
            filter_name=header.filter,
            model_hash=header.model_hash,
            engine=engine,
            dtype=header.dtype,
            directory=directory,
        )
        if found is not None:
            return found
    return None


def plan_update(run: AccuracyRun, directory: Path = BASELINES) -> BaselineChange:
    """What it would mean to take the run's first epoch as the baseline: before any page was recycled.

    Raises InputError when that epoch is not complete.
    """
    header = run.header
    first = run.epoch(1)
    if len(first) < len(header.questions):
        raise InputError(
            f"{run.path}: epoch 1 holds {len(first)} of {len(header.questions)} questions; finish it with --resume"
        )
    right = tuple(result.question for result in first if result.correct)
    new = Baseline(
        task=header.task,
        filter=header.filter,
        model=header.model,
        model_hash=header.model_hash,
        engine=header.engine,
        dtype=header.dtype,
        accuracy=round(len(right) / len(first), 6),
        num_questions=len(first),
        seed=header.seed,
        recorded=datetime.datetime.now(datetime.UTC).date().isoformat(),
        right=right,
        wrong=tuple(result.question for result in first if not result.correct),
    )
    path = directory / f"{_file_name(new)}.yaml"
    old = read_baseline(path) if path.exists() else None
    return _change(path, old, new, sum(result.unanswered is not None for result in first))


def write_baseline(change: BaselineChange, *, allow_regression: bool = False) -> Path:
    """Write it. Raises InputError when it would lower the baseline and that is not allowed."""
    if change.objections and not allow_regression:
        raise InputError(
            f"{change.path.name}: not written: {'; '.join(change.objections)}; if that is meant, add --allow-regression"
        )
    write_atomic(change.path, _to_yaml(change.new))
    return change.path


def _change(path: Path, old: Baseline | None, new: Baseline, unanswered: int) -> BaselineChange:
    objections = [f"{unanswered} questions were not answered"] if unanswered else []
    if old is None:
        return BaselineChange(path, None, new, (), (), (), tuple(objections))
    before, after = old.outcomes, new.outcomes
    lost = tuple(q for q in before if before[q] and after.get(q) is False)
    gained = tuple(q for q in before if not before[q] and after.get(q) is True)
    dropped = tuple(q for q in before if q not in after)
    if new.accuracy < old.accuracy:
        objections.append(f"accuracy falls from {old.accuracy:.4f} to {new.accuracy:.4f}")
    if dropped:
        objections.append(f"{len(dropped)} of its questions were not asked")
    return BaselineChange(path, old, new, lost, gained, dropped, tuple(objections))


def _file_name(baseline: Baseline) -> str:
    parts = (baseline.task, baseline.model, baseline.engine, baseline.dtype)
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "-", part).strip("-") for part in parts)


def _to_yaml(baseline: Baseline) -> str:
    data = baseline.model_dump()
    hashes = {name: data.pop(name) for name in ("right", "wrong")}
    text = yaml.safe_dump(data, sort_keys=False)
    for name, values in hashes.items():
        rows = [values[i : i + _HASHES_A_LINE] for i in range(0, len(values), _HASHES_A_LINE)]
        lines = "".join(f"  {' '.join(row)}\n" for row in rows)
        text += f"{name}: |-\n{lines}" if rows else f'{name}: ""\n'
    return text
