"""The spaces of conditions, by op, and a space as one kernel sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.core.conditions import engine, mla_decode
from harness.core.conditions.model import Space
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import OPS

SPACES: dict[str, Space] = {space.op: space for space in (mla_decode.SPACE, engine.SPACE)}
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
    for dimension in space.dimensions:
        for label, examples in dimension.examples.items():
            found = [spec.why_not_params(model.model_validate(_legal(example))) for example in examples]
            if found and all(found):
                refused[dimension.name, label] = found[0]
    return replace(space, refused=refused) if refused else space


def _legal(example: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an example. Lengths grow with the query tokens, so that it is legal."""
    return {**example, "seq_lens": [example["query_len"]]} if "query_len" in example else dict(example)
