"""Axes -> points: the labels of each point, and its parameters."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue, ValidationError

from harness.core.catalog import ENGINES, KERNELS, SITES, SYSTEMS
from harness.core.engine_params import AccuracyParams
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.core.params import ILLEGAL, Params
from harness.core.registry import nearest
from harness.scenario.cover import STRENGTHS, Exceptions, covering
from harness.scenario.known_names import unknown_names
from harness.scenario.schema import (
    LABEL,
    PATTERNS,
    SCHEMA,
    AccuracySettings,
    Given,
    Location,
    Problem,
    Scenario,
    explain_problems,
)

ACCURACY = "accuracy"
"""The system of cases that measure accuracy, and their axis, with tasks as labels."""

POISON_AXES: dict[str, tuple[str, ...]] = {"pattern": PATTERNS, "site": tuple(SITES.names())}
"""Axes that vary the poison instead of a parameter -> their labels."""

MAX_POINTS = 20_000
"""Combinations of labels in one scenario at most: each case takes some kilobytes, in memory and in
every report.
"""

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class MatrixPoint:
    """One point: its label on each axis, in file order, and its parameters."""

    labels: Labels
    params: Params

    @property
    def patterns(self) -> tuple[str, ...]:
        """The pattern of the axis `pattern`, compared with zeros, its control; empty without the
        axis.
        """
        return (
            tuple(dict.fromkeys((self.labels["pattern"], "zeros")))
            if "pattern" in self.labels
            else ()
        )

    @property
    def sites(self) -> tuple[str, ...]:
        """The only site that is filled, from the axis `site`; empty without it."""
        return (self.labels["site"],) if "site" in self.labels else ()


def is_selected(labels: Labels, selector: Mapping[str, Any]) -> bool:
    """Whether each axis of `selector` has the label, or a list that holds it."""
    return all(labels.get(axis) in as_labels(wanted) for axis, wanted in selector.items())


def is_long(scenario: Scenario, labels: Labels) -> bool:
    """Whether a run without a selector leaves a point out."""
    return any(is_selected(labels, one) for one in scenario.long)


def case_id(scenario: str, labels: dict[str, str]) -> str:
    """The stable id of a case, such as `merge-kernel[empty_lse=-inf]`; the bare name without a
    matrix.
    """
    inner = ",".join(f"{axis}={label}" for axis, label in labels.items())
    return f"{scenario}[{inner}]" if inner else scenario


def as_label(value: Any) -> str:
    """A scalar of a file as a case id has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_labels(wanted: Any) -> list[str]:
    """The labels of one axis in `except` or `on`, where the file has one label or a list."""
    return (
        [as_label(item) for item in wanted]
        if isinstance(wanted, list | tuple)
        else [as_label(wanted)]
    )


def accuracy_points(scenario: Scenario) -> Iterator[MatrixPoint]:
    """The measurements of a scenario's accuracy: for each task a small one, and one of all
    questions.
    """
    settings = scenario.accuracy
    if settings is None:
        return
    common = settings.model_dump(exclude={"tasks", "limit", "nightly"})
    nightly = {**common, **settings.nightly.model_dump(exclude_none=True), "limit": None}
    for task in settings.tasks:
        yield MatrixPoint(
            {ACCURACY: task}, AccuracyParams(**common, task=task, limit=settings.limit)
        )
        yield MatrixPoint({ACCURACY: task, "limit": "full"}, AccuracyParams(**nightly, task=task))


def points(scenario: Scenario) -> list[MatrixPoint]:
    """The points of a checked scenario, without the excepted ones, the last axis varying
    fastest.
    """
    return [
        MatrixPoint(labels, scenario.model.model_validate(given))
        for labels, given in _given(scenario)
    ]


def num_points(scenario: Scenario) -> int:
    """The number of :func:`points` and :func:`accuracy_points`. Does not validate them."""
    settings = scenario.accuracy
    times = 1
    if scenario.cover == "all" and not any(
        axis in POISON_AXES for selector in scenario.exclude for axis in selector
    ):
        # Most points differ in their poison only.
        times = math.prod(
            len(values) for axis, values in scenario.matrix.items() if axis in POISON_AXES
        )
        of_call = {
            axis: values for axis, values in scenario.matrix.items() if axis not in POISON_AXES
        }
        scenario = scenario.but(matrix=of_call)
    return times * len(_given(scenario)) + (2 * len(settings.tasks) if settings else 0)


def _given(scenario: Scenario) -> list[tuple[Labels, Given]]:
    """The labels of each point, and its parameters as in the file."""
    # `kernel: [all]` depends on the kernels that plug-ins register.
    return _given_with(
        scenario,
        tuple(s for s in KERNELS if s.op == scenario.op) if scenario.has_all_kernels else (),
    )


@functools.lru_cache(maxsize=256)
def _given_with(scenario: Scenario, kernels: tuple[KernelSpec, ...]) -> list[tuple[Labels, Given]]:
    """As `_given`. A scenario is checked, counted and expanded in turn."""
    axes = {axis: dict(_axis(scenario, axis)) for axis in scenario.matrix}
    of_call = [axis for axis in axes if axis not in POISON_AXES]
    for spec in kernels:
        if scenario.device not in ("any", *spec.devices) or not _is_installed(spec.origin):
            # `all` stands for the kernels that can run here, and no case of another one is skipped.
            del axes["kernel"][spec.short_name]
    specs = {spec.short_name: spec for spec in kernels}
    found = []
    # Many points differ in their poison only, and many others in their kernel only.
    made: dict[tuple[str, ...], Given | None] = {}
    without_kernel: dict[tuple[str, ...], tuple[Given, Params | None]] = {}
    for labels in _chosen(scenario, {axis: list(values) for axis, values in axes.items()}):
        key = tuple([labels[axis] for axis in of_call])
        if key not in made:
            others = (
                tuple([labels[axis] for axis in of_call if axis != "kernel"]) if kernels else key
            )
            if others not in without_kernel:
                merged = dict(scenario.params)
                for axis in of_call:
                    merged.update(axes[axis][labels[axis]])
                without_kernel[others] = (merged, _valid(scenario, merged) if kernels else None)
            given, params = without_kernel[others]
            if kernels:
                given = {**given, **axes["kernel"][labels["kernel"]]}
            runs = params is None or not specs[labels["kernel"]].why_not_params(params)
            made[key] = given if runs else None
        if (known := made[key]) is not None:
            found.append((labels, known))
    return found


def _chosen(scenario: Scenario, axes: dict[str, list[str]]) -> Iterable[Labels]:
    """The labels of each point that is not excluded: of all points, or of few that hold every
    pair.
    """
    exceptions = Exceptions(
        {axis: as_labels(wanted) for axis, wanted in one.items()} for one in scenario.exclude
    )
    if (strength := STRENGTHS.get(scenario.cover)) and all(axes.values()):
        return covering(axes, strength, exceptions, scenario.name)
    every = (dict(zip(axes, labels, strict=True)) for labels in itertools.product(*axes.values()))
    return (labels for labels in every if not exceptions.exclude(labels)) if exceptions else every


def check(scenario: Scenario, *, whole: bool = True) -> Iterator[Problem]:
    """Yield all problems that the schema does not find, the most basic first; with `whole` also of
    parameters.
    """
    yield from _check_system(scenario)
    kind = scenario.kind if scenario.system else None
    if kind is None or kind.unusable or (kind.with_op and scenario.op not in kind.ops()):
        return
    found = list(_check_params(scenario, scenario.params, ("params",))) if whole else []
    for axis in scenario.matrix:
        found += _check_axis(scenario, axis, whole)
    found += _check_accuracy(scenario)
    if not found:
        # Before the points are made: too many would take all memory.
        found += _check_size(scenario)
    # Points are made of values that are right one by one, so that an error is told once and at its
    # place.
    if whole and not found:
        found += _check_points(scenario)
    yield from found


def _valid(scenario: Scenario, given: Given) -> Params | None:
    """The parameters of a point, or None if they are not legal, which the check of all points
    reports.
    """
    with contextlib.suppress(ValidationError):
        return scenario.model.model_validate(given)
    return None


@functools.cache
def _is_installed(origin: str) -> bool:
    return (
        origin not in ENGINES or importlib.util.find_spec(ENGINES.get(origin).package) is not None
    )


def _axis(scenario: Scenario, axis: str) -> list[tuple[str, Given]]:
    values = scenario.matrix[axis]
    if axis in POISON_AXES:
        return [(as_label(value), {}) for value in values]
    if axis == "kernel" and scenario.has_all_kernels:
        values = [spec.short_name for spec in KERNELS if spec.op == scenario.op]
    pairs = (
        values.items()
        if isinstance(values, dict)
        else ((as_label(value), value) for value in values)
    )
    # An axis that is a parameter takes each value as it is: nothing is an instance of `()`.
    several = () if axis in scenario.model.model_fields else dict
    return [
        (label, dict(value) if isinstance(value, several) else {axis: value})
        for label, value in pairs
    ]


def _check_system(scenario: Scenario) -> Iterator[Problem]:
    if scenario.fuzz is not None:
        for key in ("system", "op", "params", "matrix", "exclude", "long", "accuracy"):
            if getattr(scenario, key):
                name = "except" if key == "exclude" else key
                yield Problem(
                    (name,),
                    f"{name!r} has no meaning beside 'fuzz'; remove one of them",
                    at_key=True,
                )
        return
    if scenario.system is None:
        yield Problem((), "'system' is missing; add 'system: kernel' or 'system: engine'")
        return
    ops = scenario.kind.ops()
    if ops and scenario.op is None:
        yield Problem(
            ("system",), "'op' is missing; a kernel scenario names the op it judges", at_key=True
        )
    elif scenario.accuracy is not None and not scenario.kind.has_accuracy:
        yield Problem(
            ("accuracy",), "'accuracy' is measured through the engine; remove it", at_key=True
        )
    elif scenario.op is not None and not ops:
        yield Problem(
            ("op",), f"'op' has no meaning for system {scenario.system}; remove it", at_key=True
        )
    elif scenario.op is not None and scenario.op not in ops:
        planned = [op.name for op in OPS if (op.planned_keyword or ("", ""))[1] == scenario.op]
        why = f"is judged through {' or '.join(planned)}, not alone"
        yield Problem(("op",), f"op {scenario.op!r} {why}; {nearest(scenario.op, ops)}")


def _check_params(
    scenario: Scenario, given: Mapping[str, JsonValue], at: Location, *, is_whole: bool = False
) -> Iterator[Problem]:
    """Yield problems of each parameter, and of their combination if `given` is all of a case."""
    model = scenario.model
    try:
        # By way of JSON, as the whole file is checked: lists are right, and numbers are no texts.
        model.model_validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        found = explain_problems(error, model, at)
        for problem in found:
            if is_whole or problem.kind != ILLEGAL:
                message = problem.message.replace("unknown key", "unknown parameter")
                yield Problem(problem.location, message, problem.at_key)
        if any(problem.kind != ILLEGAL for problem in found):
            return
    for name, message in unknown_names(scenario.kind.kernels_of(scenario.op), scenario.op, given):
        yield Problem((*at, name), message)


def _check_accuracy(scenario: Scenario) -> Iterator[Problem]:
    settings = scenario.accuracy
    if settings is None:
        return
    kernels = SYSTEMS.get(ACCURACY).kernels
    for name, message in unknown_names(kernels, None, settings.model_dump(exclude_unset=True)):
        yield Problem(("accuracy", name), message)
    if not settings.tasks:
        yield Problem(("accuracy", "tasks"), "expected at least one task, not none; add it")
    for index, task in enumerate(settings.tasks):
        if task in settings.tasks[:index]:
            message = (
                f"the task {task!r} is there twice, which gives duplicate case ids; remove one"
            )
            yield Problem(("accuracy", "tasks", index), message)
    if ACCURACY in scenario.matrix:
        message = (
            f"{ACCURACY!r} is no axis beside an accuracy section, as its cases have it; rename the"
            " axis"
        )
        yield Problem(("matrix", ACCURACY), message, at_key=True)


def _check_axis(scenario: Scenario, axis: str, whole: bool) -> Iterator[Problem]:
    values = scenario.matrix[axis]
    at = ("matrix", axis)
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
            yield Problem(
                here, "a list, mapping or fraction needs a label; write the axis as 'label: value'"
            )
        elif not re.match(LABEL, label):
            yield Problem(
                here, f"the label {label!r} may hold letters, digits and _ . + - only", at_key=True
            )
        elif label in labels:
            yield Problem(
                here,
                f"the label {label!r} is there twice, which gives duplicate case ids; remove one",
            )
        elif axis == "kernel" and scenario.has_all_kernels:
            continue
        elif not whole:
            pass
        elif is_parameter:
            for problem in _check_params(scenario, {axis: value}, here):
                # The problem's place ends with the parameter, which in the file is the axis itself.
                yield Problem((*here, *problem.location[len(here) + 1 :]), problem.message)
        elif not isinstance(value, dict):
            known = list(scenario.model.model_fields)
            yield Problem(
                at, f"unknown parameter {axis!r}; {nearest(axis, known, see=SCHEMA)}", at_key=True
            )
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
            hint = nearest(str(value), known, see=SCHEMA)
            yield Problem((*at, index), f"unknown {axis} {str(value)!r}; {hint}")
        elif value in values[:index]:
            yield Problem((*at, index), f"the label {value!r} is there twice; remove one")


def _check_size(scenario: Scenario) -> Iterator[Problem]:
    """Yield a problem if the axes make more combinations than a scenario may have, or than one can
    cover.

    The axis `kernel: [all]` counts once, as the kernels are not the file's.
    """
    sizes = [
        1 if axis == "kernel" and scenario.has_all_kernels else len(v)
        for axis, v in scenario.matrix.items()
    ]

    def count(strength: int) -> int:
        """The combinations of labels of so many axes."""
        return sum(map(math.prod, itertools.combinations(sizes, min(strength, len(sizes)))))

    strength = STRENGTHS.get(scenario.cover, len(sizes))
    if count(strength) > MAX_POINTS:
        what = "cases" if strength == len(sizes) else f"{scenario.cover} of labels"
        mend = ", or write 'cover: pairs'" if count(2) <= MAX_POINTS else ""
        message = (
            f"the axes make {count(strength):,} {what}, and a scenario has {MAX_POINTS:,} at most"
        )
        yield Problem(("matrix",), f"{message}; leave values out{mend}", at_key=True)


def _check_points(scenario: Scenario) -> Iterator[Problem]:
    if wrong := list(_check_selectors(scenario)):
        yield from wrong
        return
    found = _given(scenario)
    if not found:
        yield Problem(
            ("except",), "every point of the matrix is excepted; leave one in", at_key=True
        )
    # Points that differ in their poison share one dictionary, which is checked once.
    for given in {id(given): given for _, given in found}.values():
        yield from _check_params(scenario, given, ("matrix",), is_whole=True)
    for index, use in enumerate(scenario.faults):
        at: Location = ("faults", index, "on")
        tried: Labels | None
        if ACCURACY in use.on:
            tried = {ACCURACY: as_label(use.on[ACCURACY])}
        else:
            tried = next((labels for labels, _ in found if is_selected(labels, use.on)), None)
        if tried is None:
            yield Problem(at, f"no case is left on which to try {use.name!r}; name another point")
        elif is_long(scenario, tried):
            yield Problem(
                at, f"{use.name!r} is tried on a long case, so a selftest needs it; name another"
            )


def _check_selectors(scenario: Scenario) -> Iterator[Problem]:
    selectors: list[tuple[Location, dict[str, Any]]] = [
        *((("except", index), selector) for index, selector in enumerate(scenario.exclude)),
        *((("long", index), selector) for index, selector in enumerate(scenario.long)),
        *((("faults", index, "on"), use.on) for index, use in enumerate(scenario.faults)),
        *((("known", index, "on"), use.on) for index, use in enumerate(scenario.known)),
    ]
    for at, selector in selectors:
        if not selector and at[0] in ("except", "long"):
            yield Problem(at, "an empty point leaves out every case; name an axis")
        for axis, wanted in selector.items():
            if axis == ACCURACY and at[0] in ("faults", "long") and scenario.accuracy is not None:
                yield from _check_task(scenario.accuracy, selector, at)
                break
            if axis not in scenario.matrix:
                message = (
                    f"{axis!r} is no axis of the matrix;"
                    f" {nearest(axis, list(scenario.matrix), see='')}"
                )
                yield Problem((*at, axis), message, at_key=True)
                continue
            known = [label for label, _ in _axis(scenario, axis)]
            for label in as_labels(wanted):
                if label not in known:
                    yield Problem(
                        (*at, axis),
                        f"{label!r} is no label of {axis!r}; {nearest(label, known, see='')}",
                    )


def _check_task(
    settings: AccuracySettings, selector: Mapping[str, Any], at: Location
) -> Iterator[Problem]:
    task = selector[ACCURACY]
    if other := next((axis for axis in selector if axis != ACCURACY), ""):
        message = f"a measurement of accuracy is no point of the matrix; leave out {other!r}"
        yield Problem((*at, other), message, at_key=True)
    elif task not in settings.tasks:
        message = (
            f"{task!r} is no task of the accuracy section;"
            f" {nearest(str(task), list(settings.tasks), see='')}"
        )
        yield Problem((*at, ACCURACY), message)
