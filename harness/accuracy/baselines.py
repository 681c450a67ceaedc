"""Stored accuracies, `fixtures/baselines/*.yaml`: the outcome of each question on one model, engine
and dtype.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, field_validator

from harness.accuracy.acceptance import MARGIN, read_drafts
from harness.accuracy.answer_log import MEASURED_VERSION, AccuracyRun, Measured
from harness.core.errors import InputError
from harness.core.files import BASELINES, load_yaml, write_atomic
from harness.core.stored import check_version, read_text

_HASHES_A_LINE = 8


class Baseline(Measured):
    """One baseline.

    `right` and `wrong` are the hashes of its questions, each in the task's order.
    """

    name: str = Field(default="", exclude=True)
    accuracy: float
    num_questions: int
    seed: int = 0
    recorded: str = ""
    acceptance: float | None = None
    """The share of drafts that the server accepted; None without drafts."""
    right: tuple[str, ...]
    wrong: tuple[str, ...]

    @field_validator("right", "wrong", mode="before")
    @classmethod
    def _from_lines(cls, value: Any) -> Any:
        return tuple(value.split()) if isinstance(value, str) else value

    @property
    def outcomes(self) -> dict[str, bool]:
        return dict.fromkeys(self.right, True) | dict.fromkeys(self.wrong, False)


@dataclass(frozen=True)
class BaselineChange:
    """The effect of an update. `write_baseline` writes it."""

    path: Path
    old: Baseline | None
    new: Baseline
    lost: tuple[str, ...]
    gained: tuple[str, ...]
    dropped: tuple[str, ...]
    objections: tuple[str, ...]
    """Reasons to refuse it without `--allow-regression`."""

    def lines(self) -> list[str]:
        new = f"{self.new.accuracy:.4f} of {self.new.num_questions:,} questions"
        if self.old is None:
            return [f"{self.path.name}: new, {new}"]
        shown = [
            (
                f"{self.path.name}: {self.old.accuracy:.4f} of {self.old.num_questions:,} questions"
                f" -> {new}"
            ),
            (
                f"  {len(self.lost)} lost, {len(self.gained)} gained, {len(self.dropped)} no longer"
                " asked"
            ),
        ]
        if self.old.model_hash != self.new.model_hash:
            shown.append(f"  model {self.old.model_hash} -> {self.new.model_hash}")
        for word, hashes in (("lost", self.lost), ("gained", self.gained)):
            if hashes:
                more = f" and {len(hashes) - 10} more" if len(hashes) > 10 else ""
                shown.append(f"  {word}: {' '.join(hashes[:10])}{more}")
        return shown


def read_baseline(path: Path) -> Baseline:
    """Read one file. Raises InputError with the file's name when it is no baseline."""
    text = read_text(path)
    try:
        loaded = load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    check_version(loaded, path, MEASURED_VERSION)
    try:
        baseline = Baseline.model_validate(loaded).but(name=path.stem)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(
            f"{path}: no baseline: {where}: {first['msg']}; make it with `baseline update`"
        ) from None
    if len(baseline.outcomes) != baseline.num_questions:
        raise InputError(
            f"{path}: {len(baseline.outcomes)} outcomes for {baseline.num_questions} questions"
        )
    # An accuracy of NaN is no number of answers either.
    if not abs(baseline.accuracy * baseline.num_questions - len(baseline.right)) <= 0.5:
        raise InputError(
            f"{path}: accuracy {baseline.accuracy} is not {len(baseline.right)} right answers"
        )
    return baseline


def read_baselines(directory: Path = BASELINES) -> list[Baseline]:
    return [read_baseline(path) for path in sorted(directory.glob("*.yaml"))]


def baseline_of(run: AccuracyRun, directory: Path = BASELINES) -> Baseline | None:
    """The baseline of the run's task, filter, model, engine and dtype; None when there is none.

    The reference engine must answer on a GPU ("engine on cuda") as on a CPU ("engine"). So the
    baseline of the CPU counts where the GPU has none.
    """
    header = run.header
    engines = (header.engine, header.engine.partition(" on ")[0])
    key = (header.task, header.filter, header.model_hash, header.dtype)
    fitting = [
        found
        for found in read_baselines(directory)
        if (found.task, found.filter, found.model_hash, found.dtype) == key
        and found.engine in engines
    ]
    return min(fitting, key=lambda found: engines.index(found.engine), default=None)


def plan_update(run: AccuracyRun, directory: Path = BASELINES) -> BaselineChange:
    """The change that makes the run's first epoch the baseline: no page was recycled before it.

    Raises InputError when that epoch is not complete.
    """
    header = run.header
    first = run.epoch(1)
    if len(first) < len(header.questions):
        raise InputError(
            f"{run.path}: epoch 1 holds {len(first)} of {len(header.questions)} questions; finish"
            " it with --resume"
        )
    right = tuple(result.question for result in first if result.correct)
    drafts = read_drafts(run.path.parent).get(1)
    new = Baseline(
        **header.model_dump(include=set(Measured.model_fields)),
        accuracy=round(len(right) / len(first), 6),
        num_questions=len(first),
        seed=header.seed,
        recorded=datetime.datetime.now(datetime.UTC).date().isoformat(),
        acceptance=round(drafts.share, 4) if drafts and drafts.drafted else None,
        right=right,
        wrong=tuple(result.question for result in first if not result.correct),
    )
    parts = (new.task, new.model, new.engine, new.dtype)
    name = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "-", part).strip("-") for part in parts)
    path = directory / f"{name}.yaml"
    old = read_baseline(path) if path.exists() else None
    return _change(path, old, new, sum(result.unanswered is not None for result in first))


def write_baseline(change: BaselineChange, *, allow_regression: bool = False) -> Path:
    """Write the change; returns the file.

    Raises InputError for a change with objections that are not allowed.
    """
    if change.objections and not allow_regression:
        why = "; ".join(change.objections)
        raise InputError(
            f"{change.path.name}: not written: {why}; if that is meant, add --allow-regression"
        )
    change.path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(change.path, _to_yaml(change.new))
    return change.path


def _change(path: Path, old: Baseline | None, new: Baseline, unanswered: int) -> BaselineChange:
    objections = [f"{unanswered} questions were not answered"] if unanswered else []
    if old is None:
        return BaselineChange(path, None, new, (), (), (), tuple(objections))
    before = old.outcomes
    after = new.outcomes
    lost = tuple(q for q in before if before[q] and after.get(q) is False)
    gained = tuple(q for q in before if not before[q] and after.get(q) is True)
    dropped = tuple(q for q in before if q not in after)
    if new.accuracy < old.accuracy:
        objections.append(f"accuracy falls from {old.accuracy:.4f} to {new.accuracy:.4f}")
    # None now: the server no longer drafts, so it accepts nothing.
    if old.acceptance is not None and (new.acceptance or 0.0) < old.acceptance - MARGIN:
        objections.append(
            f"acceptance falls from {old.acceptance:.4f} to {new.acceptance or 0.0:.4f}"
        )
    if dropped:
        objections.append(f"{len(dropped)} of its questions were not asked")
    return BaselineChange(path, old, new, lost, gained, dropped, tuple(objections))


def _to_yaml(baseline: Baseline) -> str:
    data = baseline.model_dump(exclude_none=True)
    hashes = {name: data.pop(name) for name in ("right", "wrong")}
    text = yaml.safe_dump(data, sort_keys=False)
    # YAML's own list would have a line for each question.
    for name, values in hashes.items():
        rows = [values[i : i + _HASHES_A_LINE] for i in range(0, len(values), _HASHES_A_LINE)]
        lines = "".join(f"  {' '.join(row)}\n" for row in rows)
        text += f"{name}: |-\n{lines}" if rows else f'{name}: ""\n'
    return text
