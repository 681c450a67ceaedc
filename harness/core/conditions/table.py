"""The spaces of conditions, by op, and a space as one kernel sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.core.catalog import planner_of
from harness.core.conditions.model import Space
from harness.core.conditions.rows import space_of
from harness.core.files import read_rows
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import OPS, OPS_FOLDER, PartsOfOps, part_of
from harness.core.shapes import ANY, sizes_of

ENGINE = "engine"
"""The name of the space of the steps of the reference engine."""
CHANGES = "changes"
"""The name of the space of what happened to it: state changes, preemptions, aborts, hits."""


def _space(op: str) -> Space:
    if op == ENGINE:
        # Only a case of the engine has its steps.
        from harness.core.conditions import engine

        return engine.SPACE
    if op == CHANGES:
        from harness.core.conditions import changes

        return changes.SPACE
    rows = read_rows(OPS_FOLDER / op / "conditions.yaml")
    return space_of(op, rows, part_of(op, "conditions:read"))


SPACES: Mapping[str, Space] = PartsOfOps("conditions.yaml", _space, others=(ENGINE, CHANGES))
"""Op -> its space, as its `conditions.yaml` says; ENGINE and CHANGES -> those of the engine.

A space is made when it is first used.
"""


def shown_by(
    op: str, args: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """The points of a call, under its op and the mark of the classes; empty for an op without
    conditions.
    """
    if op not in SPACES:
        return {}
    arguments = dict(zip(OPS.get(op).positional, args, strict=True)) | dict(keywords)
    return {key_of(SPACES[op]): SPACES[op].shown(arguments)}


def space_at(key: str) -> Space | None:
    """The space whose points a result keeps under a name of :func:`key_of`.

    None if other classes coded them.
    """
    space = SPACES.get(key.partition(":")[0])
    return space if space is not None and key == key_of(space) else None


def key_of(space: Space) -> str:
    """The name under which a result keeps the points of a space."""
    return f"{space.op}:{space.mark}"


def space_for(spec: KernelSpec) -> Space:
    """The space of a kernel's op without the classes that its promises rule out.

    They are `refused`, with the reason.

    A kernel that declares no sizes is taken to accept all.
    """
    space = SPACES[spec.op]
    model = KERNEL_PARAMS[spec.op]
    refused: dict[tuple[str, str], str] = {}
    # An example has the default cache type and sizes, unless it says others. A kernel that lacks
    # them gets its own.
    field = model.model_fields.get("kv")
    given: dict[str, Any] = (
        {"kv": spec.kv[0]} if field and spec.kv and field.default not in spec.kv else {}
    )
    shapes = spec.shapes or ANY
    sizes = sizes_of(spec.op, model())
    given |= {
        size: getattr(shapes, size)[0]
        for size, value in sizes.items()
        if not shapes.accepts(size, value)
    }
    if "plan" in (dimension.name for dimension in space.dimensions) and planner_of(spec) is None:
        refused["plan", "given"] = f"{spec.name} has no planner"
    for dimension in space.dimensions:
        # Few numbers of a class are examples of it. A kernel may declare another one.
        declared = getattr(shapes, dimension.param, ())
        always = [word for word in dimension.words.values() if word in spec.takes]
        for label in dimension.classes:
            word = dimension.words.get(label)
            numbers = dimension.numbers.get(label, ())
            examples = [
                *dimension.shown_by(label),
                *({dimension.param: n} for n in declared if n in numbers),
            ]
            found = [
                # Not validated: an example need not be a legal call by itself. Only the kernel's
                # promises are asked.
                spec.why_not_params(model.model_construct(**{**given, **example}))
                for example in examples
            ]
            if word and word not in spec.takes:
                refused[dimension.name, label] = spec.lacks(word).sentence
            elif always and not word:
                refused[dimension.name, label] = f"{spec.name} always gets `{always[0]}`"
            elif found and found[0] is not None and all(found):
                refused[dimension.name, label] = found[0].sentence
    return replace(space, refused=refused) if refused else space
