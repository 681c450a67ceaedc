"""What a kernel that declares no shapes probably accepts: found after it raised, by a call at
DeepSeek's sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.core.contract import dimensions
from harness.core.errors import named
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import OPS, latent_rank, part_of
from harness.core.shapes import SIZES


def hint(
    spec: KernelSpec, function: Callable[..., Any], args: tuple[Any, ...], error: BaseException
) -> str:
    """The message for a kernel that runs at DeepSeek's sizes, and raised `error` at others.

    Empty if the kernel declares its shapes, was called at these sizes, or raises there too.
    """
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if (
        spec.shapes is not None
        or spec.op not in KERNEL_PARAMS
        or not SIZES[spec.op]
        or len(tensors) != len(args)
    ):
        return ""
    given = _sizes(spec.op, args)
    known = _sizes_of_deepseek_call(spec.op)
    differing = [name for name in given if given[name] != known[name]]
    device = args[0].device.type
    # Advice is given only after a call that shows it: the kernel may be wrong at every size.
    if not differing or not _runs_at_deepseek(spec, function, device):
        return ""
    runs, raises = (", ".join(str(sizes[name]) for name in differing) for sizes in (known, given))
    declare = '"deepseek"'
    if "heads" in given and not _runs_at_deepseek(spec, function, device, num_heads=1):
        # "deepseek" accepts each number of heads, as tensor parallelism divides them.
        declare = '{"like": "deepseek", "num_heads": ' + known["heads"].split()[0] + "}"
    return (
        f"{spec.name} runs at {runs}, raises at {raises} ({named(error)}): declare shapes={declare}"
    )


def _sizes(op: str, args: tuple[Tensor, ...]) -> dict[str, str]:
    """What a kernel may be made for: the widths, the heads and the dtype of a call, by the letters
    of the op's contract.
    """
    size: dict[str, int] = {}
    for argument, tensor in zip(OPS.get(op).arguments.values(), args, strict=True):
        size |= zip(dimensions(argument.shape), tensor.shape, strict=True)
    found = {}
    if "D" in size:
        rank = latent_rank(size["D"])
        found["widths"] = f"{rank}+{size['D'] - rank}"
    elif "R" in size:
        found["widths"] = f"{size['R']}+{size['E']}"
    elif "E'" in size:
        keys = size["E'"]
        found["widths"] = f"{keys}/{size['V']}"
    elif "V" in size:
        found["widths"] = str(size["V"])
    if heads := size.get("H") or size.get("X"):
        found["heads"] = f"{heads} heads"
    return found | {"dtype": str(args[0].dtype).removeprefix("torch.")}


@functools.cache
def _sizes_of_deepseek_call(op: str) -> dict[str, str]:
    return _sizes(op, _deepseek_call(op, "cpu")[0])


def _deepseek_call(op: str, device: str, **sizes: int) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """The arguments of a call with the op's default parameters, which have DeepSeek's sizes, but
    for `sizes`.
    """
    built = part_of(op, "inputs:draw")(KERNEL_PARAMS[op](**sizes), seed=0)
    row = OPS.get(op)
    keywords = {name: getattr(built, name, None) for name in row.keywords}
    return tuple(getattr(built, name).to(device) for name in row.positional), keywords


@functools.cache
def _runs_at_deepseek(
    spec: KernelSpec, function: Callable[..., Any], device: str, **sizes: int
) -> bool:
    try:
        args, keywords = _deepseek_call(spec.op, device, **sizes)
        function(*args, **keywords)
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception:
        return False
    return True
