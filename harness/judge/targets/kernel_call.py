"""What the builders of kernel calls have in common: poisoned inputs, guards, shapes, rows to judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from harness.core.kernel_spec import KernelSpec
from harness.core.ops import OPS
from harness.judge.run_records import ChosenExperts, Observed
from harness.judge.targets.kernel_outputs import Shape, shape_of
from harness.kernels.ops import inputs as op_inputs
from harness.kernels.ops import reference
from harness.memory.poison.patterns import Poison

FINITE_FOR_MULTIPLYING_KERNELS = frozenset({"kv.tail", "kv.free", "kv.null"})
"""Sites that hold finite bits only, for a kernel that declares `needs_finite_tail`: nan and inf become max."""

MOST_GAPS = 64
"""A tensor whose memory is more than so many times its elements is moved without what lies between them."""

_FINITE_STAND_IN = {"nan": "max", "inf": "max"}

InputsT = TypeVar("InputsT")
Observe = Callable[[tuple[Tensor, ...]], list[Observed]]


@dataclass(slots=True)
class Guarded:
    """Memory that the kernel must leave as it is: the tensor it is given, and a copy from before the call."""

    name: str
    site: str | None
    before: Tensor
    watched: Callable[[], Tensor]


@dataclass(slots=True)
class KernelCall:
    """A call that is ready to be made."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[tuple[Shape, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    guarded: list[Guarded]
    observe: Observe
    chosen: Callable[[tuple[Tensor, ...]], list[ChosenExperts]] = lambda outputs: []


@dataclass(frozen=True, slots=True)
class Setting:
    """What every builder needs: which kernel, under which poison, with which seed, where."""

    spec: KernelSpec
    poison: Poison
    seed: int
    device: str


@dataclass(frozen=True, slots=True)
class Counters:
    """The workspace of a kernel that counts in one: an argument more, and a guard, since it is returned as it came."""

    argument: dict[str, Tensor]
    guarded: list[Guarded]

    @classmethod
    def of(cls, setting: Setting, num_requests: int) -> Counters:
        """Zeros and a few words behind them, where the kernel takes a workspace; nothing elsewhere."""
        if not setting.spec.counted:
            return cls({}, [])
        words = torch.zeros(num_requests + 4, dtype=torch.int32, device=setting.device)
        words[num_requests:] = -1
        before = by_rows(words.cpu().clone())
        guard = Guarded("the workspace", "workspace", before, lambda: by_rows(words.cpu()))
        return cls({"workspace": words[:num_requests]}, [guard])


def attention_rows(
    spec: KernelSpec, kv: str, describe: str, empty_site: str, outputs: tuple[Tensor, Tensor], want: reference.Attention
) -> list[Observed]:
    """out and lse by rows; rows without keys are judged by the rule that the kernel declares for them, if any."""
    (out, lse), defined, empty = outputs, want.defined, ~want.defined
    if kv == ".fp8_e4m3" and spec.fp8_products != "float32":
        kv = f"{kv}.in_{spec.fp8_products}"
    # Over another cache a right kernel is further off by itself, or does not round so.
    steps = spec.bf16_steps if kv == ".bf16" else ()
    of_out = ".partials" if "partials" in steps else ""
    of_lse = ".sums" if "sums" in steps else ""
    bounds = (f"{spec.op}.out{kv}{of_out}", f"{spec.op}.lse{kv}{of_lse}")
    observed = [
        Observed("out", out, defined, want.out, bounds[0], describe),
        Observed("lse", lse, defined, want.lse, bounds[1], describe),
    ]
    if not bool(empty.any()):
        return observed
    if spec.empty_rows != "undefined":
        value = 0.0 if spec.empty_rows == "identity" else float("nan")
        expected = torch.full_like(want.out, value)
        observed.append(Observed("out of empty rows", out, empty, expected, bounds[0], describe, empty_site))
    if spec.empty_lse != "undefined":
        expected = torch.full_like(want.lse, float(spec.empty_lse))
        observed.append(Observed("lse of empty rows", lse, empty, expected, bounds[1], describe, empty_site))
    return observed


def prepared(raw: InputsT, unowned: list[op_inputs.Unowned], setting: Setting) -> tuple[InputsT, InputsT]:
    """Poison the unowned memory of `raw`; what the kernel is given, and a copy that the kernel cannot reach."""
    for part in unowned:
        poison = setting.poison
        if keeps(setting, setting.spec.needs_finite_tail) and part.site in FINITE_FOR_MULTIPLYING_KERNELS:
            poison = replace(poison, pattern=_FINITE_STAND_IN.get(poison.pattern, poison.pattern))
        poison.fill_(part.memory, part.site)
    kept = map_tensors(raw, torch.clone)
    return map_tensors(raw, lambda tensor: placed(tensor, setting.device)), kept


def placed(tensor: Tensor, device: str) -> Tensor:
    """`tensor` on `device` with its strides, which `Tensor.to` does not keep where there are gaps.

    What lies in gaps comes along as far as it is small: the gaps of a pool that takes up gigabytes hold nothing.
    """
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if device == "cpu" or tensor.numel() == 0 or extent == tensor.numel():
        return tensor.to(device)
    moved = torch.empty(extent, dtype=tensor.dtype, device=device)
    if extent <= MOST_GAPS * tensor.numel():
        moved.copy_(tensor.as_strided((extent,), (1,)))
    view = moved.as_strided(tensor.shape, tensor.stride())
    view.copy_(tensor)
    return view


def keeps(setting: Setting, promise: bool) -> bool:
    """Whether a promise that the kernel was given is kept in this run."""
    return promise and not setting.poison.ignore_contracts


def map_tensors(record: InputsT, change: Callable[[Tensor], Tensor]) -> InputsT:
    values = {field.name: getattr(record, field.name) for field in fields(cast(Any, record))}
    changed = {name: change(value) if isinstance(value, Tensor) else value for name, value in values.items()}
    return type(record)(**changed)


def guards(given: object, kept: object, names: tuple[str, ...]) -> list[Guarded]:
    """A guard on each named input: none of them may be written."""

    def guard(name: str) -> Guarded:
        tensor: Tensor = getattr(given, name)
        return Guarded(name, None, by_rows(getattr(kept, name)), lambda: by_rows(tensor))

    return [guard(name) for name in names]


def by_rows(tensor: Tensor) -> Tensor:
    """A vector as a column: oracles count rows along dim 0 and want elements in them."""
    return tensor[:, None] if tensor.ndim == 1 else tensor


def shapes_of(op: str, dims: dict[str, int]) -> tuple[tuple[Shape, ...], ...]:
    return tuple((shape_of(output, dims),) for output in OPS.get(op).outputs)
