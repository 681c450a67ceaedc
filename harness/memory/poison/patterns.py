"""The patterns of a poison: NaN sentinels or others for floats, and traps for indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.memory.poison.sentinels import OUT_OF_RANGE, bits_view, sentinel_bits

NATURAL = "natural"


@dataclass(frozen=True, slots=True)
class Poison:
    """A pattern and the sites that it covers. All other sites get friendly memory (zeros).

    Zeros hide these bugs in practice, so a site is to blame if poison there fails and zeros pass. `traps` has a valid
    but wrong index for sites with indices (a page or an expert full of sentinels); `strict` replaces it by an index
    that no pool has. The pattern `natural` fills nothing: memory keeps its last content, as in production.
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
        """Whether `site` is poisoned."""
        return site in self.sites

    def fill_(self, tensor: Tensor, site: str) -> Tensor:
        """Fill `tensor` in place as unwritten memory of `site`. Returns it."""
        if self.is_natural:
            return tensor
        if not self.covers(site):
            bits_view(tensor).zero_()
        elif tensor.dtype.is_floating_point or tensor.dtype in (torch.uint8, torch.bool):
            self._fill_floats(tensor, site)
        else:
            self._fill_indices(tensor, site)
        return tensor

    def empty(self, *size: int, dtype: torch.dtype, site: str, device: str | torch.device = "cpu") -> Tensor:
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
            tensor.fill_(torch.finfo(tensor.dtype).max if "e4m3fn" in str(tensor.dtype) else float("inf"))
        elif self.pattern == "random":
            self._fill_random_finite(tensor)
        else:
            raise ValueError(f"unknown poison pattern {self.pattern!r}")

    def _fill_random_finite(self, tensor: Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        drawn = _hashed_bytes(size, self.seed, tensor.device) if tensor.is_cuda else self._drawn(size)
        values = drawn.view(tensor.dtype)
        bits_view(values)[~torch.isfinite(values.float())] = 0
        tensor.copy_(values.view(tensor.shape))

    def _drawn(self, size: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)

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
