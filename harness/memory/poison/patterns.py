"""What a poison writes: NaN sentinels, or a second pattern to compare with, and traps for indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.memory.poison.sentinels import OUT_OF_RANGE, bits_view, sentinel_bits

NATURAL = "natural"


@dataclass(frozen=True, slots=True)
class Poison:
    """A pattern and the sites it is put on; every other site gets friendly memory (zeros).

    Friendly memory makes a run deterministic and is what hides these bugs in practice, so a site is to blame
    exactly when poison there fails and zeros pass. `traps` gives, for sites that hold indices, one that is valid
    but wrong (a page or an expert full of sentinels); `strict` replaces it by an index no pool has.

    The pattern `natural` fills nothing at all: memory keeps what its last owner left there, as in production.
    """

    pattern: str
    sites: frozenset[str]
    strict: bool = False
    traps: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    ignore_contracts: bool = False
    """Fill also memory that a kernel is promised to find friendly."""

    @property
    def is_natural(self) -> bool:
        """Whether memory is left as it is."""
        return self.pattern == NATURAL

    def covers(self, site: str) -> bool:
        """Whether this poison is put on `site`."""
        return site in self.sites

    def fill_(self, tensor: Tensor, site: str) -> Tensor:
        """Fill `tensor` in place as memory of `site` that nobody wrote; returns it."""
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
        """`torch.empty` whose content is this poison's; for memory that the engine itself owns."""
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
        values = (_hashed_bytes(size, self.seed, tensor.device) if tensor.is_cuda else self._drawn(size)).view(
            tensor.dtype
        )
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
            # Both halves of a 64-bit slot hold the trap, so that a reader of either width falls into it.
            tensor.fill_(trap | trap << 32 if tensor.dtype == torch.int64 else trap)
        else:
            tensor.fill_(-1)


def _hashed_bytes(size: int, seed: int, device: torch.device) -> Tensor:
    """Bytes [size] that look random. A graph cannot capture a generator of ours, but it can capture arithmetic."""
    mixed = (torch.arange(size, device=device) + seed % 65521 + 1) * 0x9E3779B1
    mixed = (mixed ^ (mixed >> 15)) * 0x85EBCA6B
    return ((mixed >> 13) & 0xFF).to(torch.uint8)
