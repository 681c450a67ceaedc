"""What a kernel refuses before it reads anything: shapes and numbers that do not go together, named
in the error.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor


def check_shapes(*rows: tuple[str, Tensor, str], **sizes: int) -> None:
    """Raise ValueError for the first tensor of another shape than its letters say.

    A row is the name of an argument, its tensor of any dtype, and a letter for each of its
    dimensions. A letter has one size in all rows: of `sizes`, or of the first tensor with it.
    """
    first: dict[str, str] = {}
    for name, tensor, letters in rows:
        if tensor.ndim != len(letters):
            raise ValueError(
                f"{name}: {tensor.ndim} dimensions, give {len(letters)}: [{', '.join(letters)}]"
            )
        for letter, size in zip(letters, tensor.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                of = f", as {first[letter]} has it" if letter in first else ""
                raise ValueError(
                    f"{name}: shape {list(tensor.shape)}, but {letter} is {sizes[letter]}{of}"
                )
            first.setdefault(letter, name)


def check_dense(name: str, tensor: Tensor, *, is_index: bool = False) -> None:
    """Raise ValueError unless the last dimension of tensor [...] is dense; an index must hold
    integers, int32 or int64.

    A kernel that steps by one element through it would read other memory. A last dimension of 1 has
    no step.
    """
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(
            f"{name}: the last dimension must be dense, but its stride is {tensor.stride(-1)}"
        )
    if is_index and tensor.is_floating_point():
        raise ValueError(f"{name}: {tensor.dtype} where integers are read")


def check_range(name: str, value: int, least: int, most: float = float("inf")) -> None:
    """Raise ValueError for an argument `name` outside of least..most."""
    if not least <= value <= most:
        raise ValueError(f"{name}={value} is outside {least}..{most}")


def check_rising(name: str, offsets: list[int]) -> None:
    """Raise ValueError for offsets of units one behind the other that fall."""
    if any(before > after for before, after in pairwise(offsets)):
        raise ValueError(f"{name}: {offsets} falls; give offsets in rising order")
