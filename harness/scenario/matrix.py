"""Axes -> points: what each point is called, and the parameters it stands for."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from harness.core.catalog import KERNELS, SITES
from harness.core.params import ENGINE_KERNEL_FIELDS, KERNEL_PARAMS
from harness.core.registry import nearest
from harness.scenario import explain
from harness.scenario.explain import Location, Problem
from harness.scenario.schema import LABEL, PATTERNS, AccuracySettings, Scenario

ACCURACY = "accuracy"
"""The axis of cases that measure accuracy; its labels are tasks."""

VLLM = ("vllm", "vllm-host")
"""Systems that are vLLM itself: its code decides which kernel runs."""

POISON_AXES: dict[str, tuple[str, ...]] = {"pattern": PATTERNS, "site": tuple(SITES.names())}
"""Axes that vary the poison instead of a parameter, with the labels that they may have."""


@dataclass(frozen=True, slots=True)
class MatrixPoint:
    """One point: its label on each axis, in file order, and the parameters that these labels stand for."""

    labels: dict[str, str]
    params: dict[str, Any]
    poison: dict[str, Any] = field(default_factory=dict)
    """What the axes of the poison say: `patterns` and `sites`, where there are such axes."""

    def matches(self, selector: dict[str, Any]) -> bool:
        """Whether each axis of `selector` has this point's label, or a list that holds it."""
        return all(self.labels.get(axis) in as_labels(wanted) for axis, wanted in selector.items())


def case_id(scenario: str, labels: dict[str, str]) -> str:
    """The stable id of a case, such as `merge-kernel[empty_lse=-inf]`; the bare name without a matrix."""
    inner = ",".join(f"{axis}={label}" for axis, label in labels.items())
    return f"{scenario}[{inner}]" if inner else scenario


def as_label(value: Any) -> str:
    """How a scalar of a file is written in a case id."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_labels(wanted: Any) -> list[str]:
    """The labels that one axis of `except` or `on` names: one, or a list of them."""
    return [as_label(item) for item in wanted] if isinstance(wanted, list | tuple) else [as_label(wanted)]


def accuracy_points(scenario: Scenario) -> list[MatrixPoint]:
    """The measurements of a scenario's accuracy: for each task a small one, and one of all questions."""
    settings = scenario.accuracy
    if settings is None:
        return []
    common = settings.model_dump(exclude={"tasks", "limit", "nightly"})
    nightly = {**common, **settings.nightly.model_dump(exclude_none=True), "limit": None}
    found = []
    for task in settings.tasks:
        labels: dict[str, str] = {ACCURACY: task}
        found.append(MatrixPoint(labels, {**common, "task": task, "limit": settings.limit}))
        found.append(MatrixPoint({**labels, "limit": "full"}, {**nightly, "task": task}))
    return found


def points(scenario: Scenario) -> list[MatrixPoint]:
    """The points of a checked scenario, without the excepted ones, the last axis varying fastest."""
    axes = [[(axis, label, params) for label, params in _axis(scenario, axis)] for axis in scenario.matrix]
    found = []
    for choice in itertools.product(*axes):
        merged = dict(scenario.params)
        for _, _, params in choice:
            merged.update(params)
        labels = {axis: label for axis, label, _ in choice}
        point = MatrixPoint(labels, merged, _poison_of(labels))
        if not any(point.matches(exception) for exception in scenario.exclude):
            found.append(point)
    return found


def _poison_of(labels: dict[str, str]) -> dict[str, Any]:
    """The fields of a PoisonPlan that the axes of the poison decide."""
    fields: dict[str, Any] = {}
    if "pattern" in labels:
        fields["patterns"] = tuple(dict.fromkeys((labels["pattern"], "zeros")))
    if "site" in labels:
        fields["sites"] = (labels["site"],)
    return fields


def check(scenario: Scenario) -> Iterator[Problem]:
    """Everything wrong with a scenario that its schema alone cannot see, first things first."""
    yield from _check_system(scenario)
    if scenario.system is None or (scenario.system == "kernel" and scenario.op not in KERNEL_PARAMS):
        return
    found = list(_check_params(scenario, scenario.params, ("params",)))
    for axis in scenario.matrix:
        found += _check_axis(scenario, axis)
    found += _check_accuracy(scenario)
    if not found:
        found += _check_points(scenario)
    yield from found


def _axis(scenario: Scenario, axis: str) -> list[tuple[str, dict[str, Any]]]:
    """The labels of an axis, each with the parameters it sets."""
    values = scenario.matrix[axis]
    if axis in POISON_AXES:
        return [(as_label(value), {}) for value in values]
    pairs = values.items() if isinstance(values, dict) else ((as_label(value), value) for value in values)
    is_parameter = axis in scenario.model.model_fields
    return [(label, {axis: value} if is_parameter else dict(value)) for label, value in pairs]


def _check_system(scenario: Scenario) -> Iterator[Problem]:
    if scenario.fuzz is not None:
        for key in ("system", "op", "params", "matrix", "exclude", "accuracy"):
            if getattr(scenario, key):
                name = "except" if key == "exclude" else key
                yield Problem((name,), f"{name!r} has no meaning beside 'fuzz'; remove one of them", at_key=True)
    elif scenario.system is None:
        yield Problem((), "'system' is missing; add 'system: kernel' or 'system: engine'")
    elif scenario.system == "kernel" and scenario.op is None:
        yield Problem(("system",), "'op' is missing; a kernel scenario names the op it judges", at_key=True)
    elif scenario.system == "kernel" and scenario.accuracy is not None:
        yield Problem(("accuracy",), "'accuracy' is measured through the engine; remove it", at_key=True)
    elif scenario.system in VLLM and scenario.accuracy is not None:
        yield Problem(("accuracy",), "'accuracy' is of the reference engine; a vllm case has 'task'", at_key=True)
    elif scenario.system in VLLM and scenario.op is not None:
        yield Problem(("op",), "'op' has no meaning for vllm; remove it", at_key=True)
    elif scenario.system == "engine" and scenario.op is not None:
        yield Problem(("op",), "'op' has no meaning for the engine; remove it", at_key=True)
    elif scenario.system == "kernel" and scenario.op not in KERNEL_PARAMS:
        hint = nearest(scenario.op or "", list(KERNEL_PARAMS))
        yield Problem(("op",), f"op {scenario.op!r} is judged through mla_decode, not alone; {hint}")


def _check_params(scenario: Scenario, params: dict[str, Any], at: Location) -> Iterator[Problem]:
    model = scenario.model
    try:
        model.model_validate_json(json.dumps(params), strict=True)
    except ValidationError as error:
        for problem in explain.problems(error, model, at):
            message = problem.message.replace("unknown key", "unknown parameter")
            yield Problem(problem.location, message, problem.at_key)
        return
    yield from _check_kernels(kernel_fields(scenario.system, scenario.op), params, at)


def _check_kernels(fields: dict[str, str], params: dict[str, Any], at: Location) -> Iterator[Problem]:
    for name, op in fields.items():
        if name in params and f"{op}/{params[name]}" not in KERNELS:
            known = [spec.short_name for spec in KERNELS if spec.op == op]
            message = f"unknown kernel {params[name]!r} of {op}; {nearest(params[name], known)}"
            yield Problem((*at, name), message)


def _check_accuracy(scenario: Scenario) -> Iterator[Problem]:
    settings = scenario.accuracy
    if settings is None:
        return
    yield from _check_kernels(kernel_fields("accuracy", None), settings.model_dump(exclude_unset=True), ("accuracy",))
    if not settings.tasks:
        yield Problem(("accuracy", "tasks"), "expected at least one task, not none; add it")
    for index, task in enumerate(settings.tasks):
        if task in settings.tasks[:index]:
            message = f"the task {task!r} is there twice, which gives duplicate case ids; remove one"
            yield Problem(("accuracy", "tasks", index), message)
    if ACCURACY in scenario.matrix:
        message = f"{ACCURACY!r} is no axis beside an accuracy section, whose cases have it; rename the axis"
        yield Problem(("matrix", ACCURACY), message, at_key=True)


def kernel_fields(system: str | None, op: str | None) -> dict[str, str]:
    """Which parameters of a system name a kernel, and of which op."""
    if system in ("engine", "accuracy"):
        return {field: op_name for op_name, field in ENGINE_KERNEL_FIELDS.items()}
    return {} if system in VLLM else {"kernel": op or ""}


def cuda_twins(params: dict[str, Any], system: str | None) -> dict[str, str]:
    """The kernels that take the place of those in `params` on a GPU, by parameter: twins that a graph can capture."""
    named = {field: f"{op}/{params.get(field)}" for field, op in kernel_fields(system, None).items()}
    twins = {field: KERNELS.get(name).cuda_twin for field, name in named.items() if name in KERNELS}
    return {field: twin for field, twin in twins.items() if twin}


def _check_axis(scenario: Scenario, axis: str) -> Iterator[Problem]:
    values, at = scenario.matrix[axis], ("matrix", axis)
    is_parameter = axis in scenario.model.model_fields
    if not isinstance(values, dict | list):
        yield Problem(at, "an axis is a list of values or a mapping from label to value")
        return
    if not values:
        yield Problem(at, f"the axis {axis!r} is empty; give it a value or remove it", at_key=True)
        return
    if axis in POISON_AXES:
        yield from _check_poison_axis(axis, values, at)
        return
    labels: set[str] = set()
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        here: Location = (*at, key)
        label = key if isinstance(key, str) else as_label(value)
        if isinstance(key, int) and not isinstance(value, str | int | bool):
            yield Problem(here, "a list, mapping or fraction needs a label; write the axis as 'label: value'")
        elif not re.match(LABEL, label):
            yield Problem(here, f"the label {label!r} may hold letters, digits and _ . + - only", at_key=True)
        elif label in labels:
            yield Problem(here, f"the label {label!r} is there twice, which gives duplicate case ids; remove one")
        elif is_parameter:
            yield from _relocated(_check_params(scenario, {axis: value}, ("x",)), here, axis)
        elif not isinstance(value, dict):
            known = list(scenario.model.model_fields)
            yield Problem(at, f"unknown parameter {axis!r}; {nearest(axis, known, see=explain.SCHEMA)}", at_key=True)
            return
        else:
            yield from _check_params(scenario, value, here)
        labels.add(label)


def _check_poison_axis(axis: str, values: Any, at: Location) -> Iterator[Problem]:
    known = list(POISON_AXES[axis])
    if not isinstance(values, list):
        yield Problem(at, f"the axis {axis!r} is a list of {axis}s")
        return
    for index, value in enumerate(values):
        if value not in known:
            hint = nearest(str(value), known, see=explain.SCHEMA)
            yield Problem((*at, index), f"unknown {axis} {str(value)!r}; {hint}")
        elif value in values[:index]:
            yield Problem((*at, index), f"the label {value!r} is there twice; remove one")


def _relocated(found: Iterator[Problem], here: Location, axis: str) -> Iterator[Problem]:
    """Problems of a one-parameter check, placed at the axis's own value."""
    for problem in found:
        rest = tuple(part for part in problem.location if part not in ("x", axis))
        yield Problem(here + rest, problem.message)


def _check_points(scenario: Scenario) -> Iterator[Problem]:
    wrong = list(_check_selectors(scenario))
    if wrong:
        yield from wrong
        return
    found = points(scenario)
    if not found:
        yield Problem(("except",), "every point of the matrix is excepted; leave one in", at_key=True)
    for point in found:
        yield from _check_params(scenario, point.params, ("matrix",))
    for index, use in enumerate(scenario.faults):
        if ACCURACY not in use.on and not any(point.matches(use.on) for point in found):
            yield Problem(("faults", index, "on"), f"no case is left on which to try {use.name!r}; name another point")


def _check_selectors(scenario: Scenario) -> Iterator[Problem]:
    selectors: list[tuple[Location, dict[str, Any]]] = [
        (("except", index), selector) for index, selector in enumerate(scenario.exclude)
    ]
    selectors += [(("faults", index, "on"), use.on) for index, use in enumerate(scenario.faults)]
    for at, selector in selectors:
        if not selector:
            if at[0] == "except":
                yield Problem(at, "an empty exception leaves out every case; name an axis")
            continue
        for axis, wanted in selector.items():
            if axis == ACCURACY and at[0] == "faults" and scenario.accuracy is not None:
                yield from _check_task(scenario.accuracy, selector, at)
                break
            if axis not in scenario.matrix:
                message = f"{axis!r} is no axis of the matrix; {nearest(axis, list(scenario.matrix), see='')}"
                yield Problem((*at, axis), message, at_key=True)
                continue
            known = [label for label, _ in _axis(scenario, axis)]
            for label in as_labels(wanted):
                if label not in known:
                    yield Problem((*at, axis), f"{label!r} is no label of {axis!r}; {nearest(label, known, see='')}")


def _check_task(settings: AccuracySettings, selector: dict[str, Any], at: Location) -> Iterator[Problem]:
    """A fault tried on a measurement of accuracy names one task and nothing else."""
    task = selector[ACCURACY]
    others = [axis for axis in selector if axis != ACCURACY]
    if others:
        message = f"a measurement of accuracy is no point of the matrix; leave out {others[0]!r}"
        yield Problem((*at, others[0]), message, at_key=True)
    elif task not in settings.tasks:
        message = f"{task!r} is no task of the accuracy section; {nearest(str(task), list(settings.tasks), see='')}"
        yield Problem((*at, ACCURACY), message)
