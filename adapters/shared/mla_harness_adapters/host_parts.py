"""What the parts of all engines share: stand-ins for compiled code, objects made without a GPU, and
exact results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from harness.api import Observed, Run, kernel_function

Found = Iterator[tuple[str, Tensor, Tensor]]
"""(what it is, as an engine computes it, the same by the definition), both of integers with rows in
dim 0.
"""
NUM_SM_PARTS = 132
"""The rows of FlashMLA's buffer for plans on an H100."""
PLAN_WIDTH = 8
"""The columns of this buffer."""
PARTS_USED = 4
"""The rows of the buffer that a plan has here."""


def made_without_init(kind: type, **attributes: Any) -> Any:
    """An object of an engine's class with these attributes.

    Its `__init__`, which needs a GPU, does not run.
    """
    made: Any = object.__new__(kind)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def patched(
    owner: object, values: Mapping[str, object], *, create: bool = False
) -> AbstractContextManager[Any]:
    """Give a module or a class these attributes for the life of the block.

    Raises AttributeError for one that it does not have, unless `create`.
    """
    named: dict[str, Any] = dict(values)
    made: AbstractContextManager[Any] = mock.patch.multiple(owner, create=create, **named)
    return made


class Without(TorchFunctionMode):
    """Functions of torch do not get the argument `name`:

    `pin_memory` needs a GPU, and so does a `device`.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.pin_memory:
            return args[0]
        return func(
            *args, **{name: value for name, value in (kwargs or {}).items() if name != self._name}
        )


def of_all_rows(name: str, tensor: Tensor, expected: Tensor, bound: str, describe: str) -> Observed:
    """A tensor [rows, ...] to judge by expected [rows, ...], in float32 or integers, in which every
    row promises something.
    """
    return Observed(
        name, tensor, torch.ones(len(tensor), dtype=torch.bool), expected, bound, describe
    )


def searched(pattern: str, found: Found) -> Run:
    """A run in which every row must be equal to the definition."""
    # Copied, as an engine may build the next in the same buffer.
    judged = (
        of_all_rows(name, got.clone().long(), want.long(), "", "row") for name, got, want in found
    )
    return Run(pattern, list(judged))


def lazy_plans(flashmla: Any) -> Any:
    """A patch with which FlashMLA's builder returns an empty plan, as its CUDA extension does
    before the first call.
    """
    return mock.patch.object(
        flashmla, "get_mla_metadata", lambda *a, **k: (flashmla.FlashMLASchedMeta(), None)
    )


class Planner:
    """Stands in for a planning function of FlashMLA: each plan has new memory.

    Plans are kept, so no address recurs.
    """

    def __init__(self) -> None:
        self.plans: list[tuple[Tensor, Tensor]] = []

    def __call__(self, lengths: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.plans.append(plan_of(lengths))
        return self.plans[-1]


def plan_of(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """A plan that differs for each batch of lengths [B] int32: its tiles, and where the splits
    begin [B + 1] int32.
    """
    tiles = (torch.arange(PARTS_USED, dtype=torch.int32)[:, None] + int(lengths.sum())).repeat(
        1, PLAN_WIDTH
    )
    splits = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).to(torch.int32)])
    return tiles, splits


def expert_weights(
    num_experts: int, rows: int, columns: int, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Weights of all experts [X, rows, columns] in e4m3, with a scale for each expert [X]."""
    drawn = torch.randn(num_experts, rows, columns, generator=random) * columns**-0.5
    scale = drawn.abs().amax(dim=(1, 2)) / 448
    return (drawn / scale[:, None, None]).to(torch.float8_e4m3fn), scale


def gated(given: Tensor) -> Tensor:
    """The activation of experts: silu of the first half of given [T, 2 * K] times the second half,
    float32 [T, K].
    """
    gate, up = given.float().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def scaled_fp8_quant(
    x: Tensor, scale: Tensor | None = None, use_per_token_if_dynamic: bool = False, **_: Any
) -> tuple[Tensor, Tensor]:
    """Stands in for the compiled quantizer: x [T, K] as e4m3, and its float32 scale [1] or [T, 1].

    A given scale [1] is not used. The maximum drops NaN, as CUDA's does.
    """
    kernel = "per-token" if use_per_token_if_dynamic else "torch-fmax"
    x8, scale = kernel_function("quantize_fp8", kernel)(x)
    return x8, scale
