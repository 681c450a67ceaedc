"""A kernel call that is ready to be made, and its parts: poisoned inputs, guards, shapes, rows to judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.judge.run_records import ChosenExperts, Observed
from harness.judge.targets.kernel_outputs import Shape, shape_of
from harness.kernels.ops import reference
from harness.kernels.ops.inputs import Inputs
from harness.memory.poison.patterns import Poison

FINITE_FOR_MULTIPLYING_KERNELS = frozenset({"kv.tail", "kv.free", "kv.null"})
"""Sites that get finite bits, max in place of nan and inf, for a kernel that declares `needs_finite_tail`."""
MOST_GAPS = 64
"""A tensor is moved without its gaps if its memory is more than this many times its elements."""

_FINITE_STAND_IN = {"nan": "max", "inf": "max"}

InputsT = TypeVar("InputsT", bound=Inputs)
Observe = Callable[[tuple[Tensor, ...]], list[Observed]]


@dataclass(slots=True)
class Guarded:
    """Memory that the kernel must not change: a copy from before the call, and how to read it afterwards."""

    name: str
    site: str | None
    before: Tensor
    watched: Callable[[], Tensor]


@dataclass(slots=True)
class KernelCall:
    """A call that is ready to be made. `shapes` lists for each output the shapes it may have."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[tuple[Shape, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    guarded: list[Guarded]
    observe: Observe
    chosen: Callable[[tuple[Tensor, ...]], list[ChosenExperts]] = lambda outputs: []

    @classmethod
    def of(
        cls,
        op: str,
        given: Inputs,
        kept: Inputs,
        dims: dict[str, int],
        dtypes: tuple[torch.dtype, ...],
        observe: Observe,
        **keywords: Any,
    ) -> KernelCall:
        """A call of `op` with the fields of `given` as arguments, `keywords` in place of or beside them.

        No positional argument may be written, except the cache of `write_kv`. `dims` are the sizes of the letters of
        the op's output shapes.
        """
        row = OPS.get(op)
        fields = {name: getattr(given, name) for name in row.keywords if name not in keywords}
        readonly = [name for name in row.positional if (op, name) != ("write_kv", "kv_cache")]
        return cls(
            args=tuple(getattr(given, name) for name in row.positional),
            kwargs=fields | keywords,
            shapes=tuple((shape_of(output, dims),) for output in row.outputs),
            dtypes=dtypes,
            guarded=[_guard(name, getattr(given, name), getattr(kept, name)) for name in readonly],
            observe=observe,
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters of every builder: the kernel, its poison, the seed and the device."""

    spec: KernelSpec
    poison: Poison
    seed: int
    device: str


def attention_rows(
    spec: KernelSpec, kv: str, describe: str, empty_site: str, outputs: tuple[Tensor, Tensor], want: reference.Attention
) -> list[Observed]:
    """out and lse by rows. Rows without keys are judged only if the kernel declares what it leaves there."""
    (out, lse), defined, empty = outputs, want.defined, ~want.defined
    if kv == ".fp8_e4m3" and spec.fp8_products != "float32":
        kv = f"{kv}.in_{spec.fp8_products}"
    # The bounds of other cache types allow for these roundings, or their kernels do not make them.
    steps = spec.bf16_steps if kv == ".bf16" else ()
    out_bound = f"{spec.op}.out{kv}" + (".partials" if "partials" in steps else "")
    lse_bound = f"{spec.op}.lse{kv}" + (".sums" if "sums" in steps else "")
    observed = [
        Observed("out", out, defined, want.out, out_bound, describe),
        Observed("lse", lse, defined, want.lse, lse_bound, describe),
    ]
    if not bool(empty.any()):
        return observed
    if spec.empty_rows != "undefined":
        value = 0.0 if spec.empty_rows == "identity" else float("nan")
        expected = torch.full_like(want.out, value)
        observed.append(Observed("out of empty rows", out, empty, expected, out_bound, describe, empty_site))
    if spec.empty_lse != "undefined":
        expected = torch.full_like(want.lse, float(spec.empty_lse))
        observed.append(Observed("lse of empty rows", lse, empty, expected, lse_bound, describe, empty_site))
    return observed


def prepared(raw: InputsT, setting: Setting) -> tuple[InputsT, InputsT]:
    """Poison the unowned memory of `raw`. Returns the kernel's inputs, and a copy that the kernel cannot reach."""
    for part in raw.unowned:
        poison = setting.poison
        if keeps(setting, setting.spec.needs_finite_tail) and part.site in FINITE_FOR_MULTIPLYING_KERNELS:
            poison = replace(poison, pattern=_FINITE_STAND_IN.get(poison.pattern, poison.pattern))
        poison.fill_(part.memory, part.site)
    kept = _map_tensors(raw, torch.clone)
    return _map_tensors(raw, lambda tensor: placed(tensor, setting.device)), kept


def placed(tensor: Tensor, device: str) -> Tensor:
    """`tensor` on `device` with its strides; `Tensor.to` would close the gaps.

    The content of gaps is moved too, except in a pool of gigabytes, where gaps hold nothing.
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
    """Whether this run keeps a promise to the kernel."""
    return promise and not setting.poison.ignore_contracts


def _map_tensors(record: InputsT, change: Callable[[Tensor], Tensor]) -> InputsT:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    changed: dict[str, Any] = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
    return replace(record, **changed)


def _guard(name: str, given: Tensor, kept: Tensor) -> Guarded:
    return Guarded(name, None, by_rows(kept), lambda: by_rows(given))


def by_rows(tensor: Tensor) -> Tensor:
    """A vector as a column, for oracles that count rows along dim 0 and judge the elements of a row."""
    return tensor[:, None] if tensor.ndim == 1 else tensor
