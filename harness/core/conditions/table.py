"""The spaces of conditions, by op, and a space as one kernel sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.core.conditions import attention, engine, experts, indexing, mla_decode, writes
from harness.core.conditions.model import Space
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import OPS

_OF_OPS = (*attention.SPACES, *writes.SPACES, *experts.SPACES, *indexing.SPACES)
SPACES: dict[str, Space] = {space.op: space for space in (mla_decode.SPACE, *_OF_OPS, engine.SPACE)}
"""Op, or `engine` for the steps of the reference engine -> its space."""


def shown_by(op: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The points of a call, under its op and the mark of the classes; empty for an op without conditions."""
    if op not in SPACES:
        return {}
    arguments = dict(zip(OPS.get(op).positional, args, strict=True)) | dict(keywords)
    return {key_of(SPACES[op]): SPACES[op].shown(arguments)}


def key_of(space: Space) -> str:
    """The name under which a result keeps the points of a space."""
    return f"{space.op}:{space.mark}"


def space_for(spec: KernelSpec) -> Space:
    """The space of a kernel's op without the classes that its promises rule out. They are `refused`, with the reason.

    A kernel that declares no sizes is taken to accept all.
    """
    space, model = SPACES[spec.op], KERNEL_PARAMS[spec.op]
    refused = {}
    # An example has the default cache type, unless it says another. A kernel that lacks it is asked with one it reads.
    field = model.model_fields.get("kv")
    given: dict[str, Any] = {"kv": spec.kv[0]} if field and spec.kv and field.default not in spec.kv else {}
    for dimension in space.dimensions:
        for label in dimension.classes:
            word, examples = dimension.words.get(label), dimension.shown_by(label)
            found = [spec.why_not_params(model.model_construct(**{**given, **example})) for example in examples]
            if word and word not in spec.takes:
                refused[dimension.name, label] = spec.lacks(word)
            elif found and all(found):
                refused[dimension.name, label] = found[0]
    return replace(space, refused=refused) if refused else space
