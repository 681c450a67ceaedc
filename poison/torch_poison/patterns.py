"""The patterns of a poison: NaN sentinels or others for floats, and traps for indices.

A sentinel is a NaN with a site tag in the payload. `0xFF..FF` is NaN in every float type and -1 as
an int. If the type is known, the payload of a quiet NaN names the site, so that a verbatim copy can
be traced. On x86, float32 arithmetic keeps the payload of a NaN operand; a cast to bfloat16 and
NVIDIA GPUs give a canonical NaN, which proves "computed from poison or 0/0".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torch_poison.sites import OUT_OF_RANGE as OUT_OF_RANGE
from torch_poison.sites import QUIET_BITS, TAG_MASK, site_of, tag_of

UNTAGGED = "untagged"
"""The tag of the all-ones pattern, for types without free payload bits (fp8) and for raw bytes."""

_INT_VIEW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_QUIET_BITS: dict[torch.dtype, int] = {
    getattr(torch, name): bits for name, bits in QUIET_BITS.items()
}

EXPONENT = {
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7C,
    torch.bfloat16: 0x7F80,
    torch.float16: 0x7C00,
    torch.float32: 0x7F80_0000,
    torch.float64: 0x7FF0_0000_0000_0000,
}
"""The bits that are all set in a value that is not finite. e4m3fn has no infinity, and its only NaN
has all of them.
"""


def mantissa_bits(dtype: torch.dtype) -> int:
    """The mask of the mantissa of a float type: bits that differ among values that are not
    finite.
    """
    return (
        0x7F
        if dtype == torch.float8_e4m3fn
        else ((1 << 8 * dtype.itemsize - 1) - 1) & ~EXPONENT[dtype]
    )


def narrower_nans(dtype: torch.dtype, bits: int) -> Iterator[tuple[torch.dtype, int]]:
    """The NaN of each narrower type that a cast to `dtype` makes `bits` of: its payload moves to
    the upper bits.
    """
    mantissa = mantissa_bits(dtype)
    for narrow in (torch.bfloat16, torch.float16, torch.float32):
        shift = mantissa.bit_length() - mantissa_bits(narrow).bit_length()
        if shift > 0 and bits & mantissa & ((1 << shift) - 1) == 0:
            yield narrow, EXPONENT[narrow] | (bits & mantissa) >> shift


def bits_view(tensor: Tensor) -> Tensor:
    """The memory of `tensor` [...] as integers of the element's size: float32 -> int32, fp8 and
    bool -> uint8.

    The view shares memory with `tensor`.
    """
    return tensor.view(_INT_VIEW[tensor.element_size()])


def sentinel_bits(dtype: torch.dtype, site: str) -> int:
    """The sentinel of `site` in `dtype`, as the (signed) integer that :func:`bits_view` shows."""
    if dtype in _QUIET_BITS:
        return _QUIET_BITS[dtype] | tag_of(site)
    return 0xFF if dtype.itemsize == 1 else -1


def quiet_bits(dtype: torch.dtype) -> int | None:
    """The sentinel of `dtype` without a tag; None for a type without room for tags."""
    return _QUIET_BITS.get(dtype)


def site_of_bits(dtype: torch.dtype, bits: int) -> str | None:
    """The site of the sentinel `bits`, UNTAGGED for the all-ones pattern, or None for other
    values.
    """
    size = 8 * dtype.itemsize
    bits &= (1 << size) - 1
    if bits == (1 << size) - 1 and dtype not in _QUIET_BITS:
        return UNTAGGED
    if dtype in _QUIET_BITS and (bits & ~TAG_MASK) == _QUIET_BITS[dtype]:
        return site_of(bits & TAG_MASK)
    return None


def hex_of(bits: int, num_bytes: int) -> str:
    """The lowest bytes of a signed integer: ``0x7fc1``."""
    return f"0x{bits & ((1 << 8 * num_bytes) - 1):0{2 * num_bytes}x}"


def hex_bits(tensor: Tensor, index: tuple[int, ...]) -> str:
    """The bits of the element tensor[index] as text, for example ``0x7fc1 bfloat16 sentinel of
    output``.
    """
    bits = int(bits_view(tensor[index].reshape(1)).item())
    text = f"{hex_of(bits, tensor.element_size())} {str(tensor.dtype).removeprefix('torch.')}"
    site = site_of_bits(tensor.dtype, bits)
    return f"{text} sentinel of {site}" if site else text


NATURAL = "natural"


FILLED: Counter[str] = Counter()
"""Site -> bytes that were filled with poison in this process since it was cleared."""


@dataclass(frozen=True, slots=True)
class Poison:
    """A pattern and the sites that it covers. All other sites get friendly memory (zeros).

    Zeros hide these bugs in practice, so a site is to blame if poison there fails and zeros pass.
    `traps` has a valid but wrong index for sites with indices (a page or an expert full of
    sentinels); `strict` replaces it by an index that no pool has. The pattern `natural` fills
    nothing: memory keeps its last content, as in production.
    """

    pattern: str
    sites: frozenset[str]
    strict: bool = False
    traps: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    ignore_contracts: bool = False
    """Whether to fill memory too that a kernel's contract promises to be friendly."""

    @property
    def is_natural(self) -> bool:
        """Whether nothing is filled."""
        return self.pattern == NATURAL

    def covers(self, site: str) -> bool:
        return site in self.sites

    def fill_(self, tensor: Tensor, site: str) -> Tensor:
        """Fill `tensor` [...] of any dtype in place as uninitialised memory of `site`.

        Floats, uint8 and bool get the pattern; int32 and int64 are indices and get a trap. Returns
        `tensor`.
        """
        if self.is_natural:
            return tensor
        if not self.covers(site):
            bits_view(tensor).zero_()
            return tensor
        FILLED[site] += tensor.nbytes
        if tensor.dtype.is_floating_point or tensor.dtype in (torch.uint8, torch.bool):
            self._fill_floats(tensor, site)
        else:
            self._fill_indices(tensor, site)
        return tensor

    def empty(
        self, *size: int, dtype: torch.dtype, site: str, device: str | torch.device = "cpu"
    ) -> Tensor:
        """`torch.empty`, filled as memory of `site`."""
        return self.fill_(torch.empty(*size, dtype=dtype, device=device), site)

    def _fill_floats(self, tensor: Tensor, site: str) -> None:
        is_float = tensor.dtype.is_floating_point
        if self.pattern == "nan" or (self.pattern != "zeros" and not is_float):
            bits_view(tensor).fill_(sentinel_bits(tensor.dtype, site))
        elif self.pattern == "zeros":
            bits_view(tensor).zero_()
        elif self.pattern == "max":
            tensor.fill_(torch.finfo(tensor.dtype).max)
        elif self.pattern == "inf":
            # float8_e4m3fn has no infinity; its largest value stands in.
            tensor.fill_(
                torch.finfo(tensor.dtype).max if "e4m3fn" in str(tensor.dtype) else float("inf")
            )
        elif self.pattern == "random":
            self._fill_random_finite(tensor)
        else:
            raise ValueError(f"unknown poison pattern {self.pattern!r}")

    def _fill_random_finite(self, tensor: Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        if tensor.is_cuda:
            drawn = _hashed_bytes(size, self.seed, tensor.device)
        else:
            generator = torch.Generator().manual_seed(self.seed)
            drawn = torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)
        values = drawn.view(tensor.dtype)
        bits_view(values)[~torch.isfinite(values.float())] = 0
        tensor.copy_(values.view(tensor.shape))

    def _fill_indices(self, tensor: Tensor, site: str) -> None:
        if self.pattern == "zeros":
            tensor.zero_()
        elif self.strict or site in self.traps:
            trap = OUT_OF_RANGE if self.strict else self.traps[site]
            # Both halves of a 64-bit slot hold the trap, for readers of either width.
            tensor.fill_(trap | trap << 32 if tensor.dtype == torch.int64 else trap)
        else:
            tensor.fill_(-1)


def _hashed_bytes(size: int, seed: int, device: torch.device) -> Tensor:
    """Pseudo-random bytes [size] by arithmetic, because a graph cannot capture a generator."""
    mixed = (torch.arange(size, device=device) + seed % 65521 + 1) * 0x9E3779B1
    mixed = (mixed ^ (mixed >> 15)) * 0x85EBCA6B
    return ((mixed >> 13) & 0xFF).to(torch.uint8)
