"""The sizes that a kernel accepts.

Planning adapts a case to them, or skips it with the reason. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from harness.core.cause_codes import Code, WhyNot
from harness.core.files import rows_beside, with_tuples
from harness.core.ops import OPS, PartsOfOps
from harness.core.params import Count, Params, Record

Dtype = Literal["fp32", "bf16"]
CacheLayout = Literal["contiguous", "block_major", "padded_pages", "manager_blocks", "large"]

SIZES: Mapping[str, tuple[str, ...]] = PartsOfOps("contract.py", lambda op: OPS.get(op).sizes)
"""Op -> the sizes that a kernel of it can declare. Kernels of other ops accept every size."""

RESIZABLE = ("kv_lora_rank", "qk_rope_head_dim", "num_heads", "qk_head_dim", "v_head_dim")
"""Sizes that say nothing about what a case tests, in the order in which they are adapted."""
COUNTS = ("heads_multiple_of", "most_heads")
"""Fields of :class:`Shapes` that are one number."""


class Shapes(Record):
    """The sizes that a kernel accepts.

    An empty tuple accepts every size. See :data:`SIZES` for the sizes of an op.

    `dtype` is the type of queries, keys and new latents. `v_head_dim` and `qk_head_dim` are sizes
    of attention over a context and of its merge; the value of a latent decode is `kv_lora_rank`
    wide. `heads_multiple_of` holds beside `num_heads`, and so does `most_heads`.
    """

    name: str = "own"
    kv_lora_rank: tuple[Count, ...] = ()
    qk_rope_head_dim: tuple[Count, ...] = ()
    qk_head_dim: tuple[Count, ...] = ()
    v_head_dim: tuple[Count, ...] = ()
    num_heads: tuple[Count, ...] = ()
    heads_multiple_of: Count = 1
    most_heads: Count | None = None
    query_len: tuple[Count, ...] = ()
    topk: tuple[Count, ...] = ()
    page_size: tuple[Count, ...] = ()
    layout: tuple[CacheLayout, ...] = ()
    dtype: tuple[Dtype, ...] = ()

    def accepts(self, size: str, value: int | str) -> bool:
        """Whether a call may have `value` as its `size`."""
        allowed: tuple[int | str, ...] = getattr(self, size)
        is_right = not allowed or value in allowed
        if size == "num_heads" and isinstance(value, int):
            is_right &= value % self.heads_multiple_of == 0 and value <= (self.most_heads or value)
        return is_right

    def words(self, size: str) -> str:
        """The accepted values of a size: `512 or 576`, or `a multiple of 16`."""
        values = [str(value) for value in getattr(self, size)]
        if size == "num_heads" and not values:
            values = (
                [f"a multiple of {self.heads_multiple_of}"] if self.heads_multiple_of > 1 else []
            )
            values += [f"at most {self.most_heads}"] if self.most_heads else []
            return ", ".join(values)
        return " or ".join(values)

    def nearest(self, size: str, value: int) -> int:
        """The accepted size that is nearest to `value`, the larger of two."""
        step = self.heads_multiple_of if size == "num_heads" else 1
        # A kernel may declare both a list of heads and a multiple; both hold.
        allowed: list[int] = [found for found in getattr(self, size) if found % step == 0]
        most = self.most_heads if size == "num_heads" else None
        rounded = -(-min(value, most or value) // step) * step
        return min(allowed or [rounded], key=lambda found: (abs(found - value), -found))


NAMED = {name: Shapes(name=name, **with_tuples(row)) for name, row in rows_beside(__file__).items()}
"""The entries of `shapes.yaml`."""
ANY = NAMED["any"]
DEEPSEEK = NAMED["deepseek"]


def shapes_of(given: str | Mapping[str, Any]) -> Shapes:
    """The named shapes, or `{"like": name, size: values}`, like "any" by default.

    Raises KeyError for another name.

    Raises pydantic's ValidationError for an unknown size or value.
    """
    values = {"like": given} if isinstance(given, str) else dict(given)
    # A name alone stands for itself.
    base = NAMED[values.pop("like", ANY.name)]
    listed = {
        size: tuple(value)
        if isinstance(value, list | tuple)
        else value
        if size in (*COUNTS, "name")
        else (value,)
        for size, value in values.items()
    }
    return (
        Shapes.model_validate(base.model_dump() | {"name": "own"} | listed, strict=True)
        if listed
        else base
    )


def sizes_of(op: str, params: Params) -> dict[str, int | str]:
    found = {
        size: getattr(params, size) for size in SIZES.get(op, ()) if size not in params.OPEN_SIZES
    }
    return {size: value for size, value in found.items() if value is not None}


def misfit(shapes: Shapes, sizes: Mapping[str, int | str]) -> WhyNot | None:
    """The first size that a kernel does not accept, as a clause about it: `takes num_heads 16, not
    4`. None if it accepts all.
    """
    wrong = (size for size, value in sizes.items() if not shapes.accepts(size, value))
    size = next(wrong, None)
    if size is None:
        return None
    return WhyNot(f"takes {size} {shapes.words(size)}, not {sizes[size]}", Code.UNSUPPORTED)
