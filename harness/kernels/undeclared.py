"""What a kernel that declares no shapes probably accepts: found after it raised, by a call at
DeepSeek's sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.core.errors import named
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import OPS, latent_rank
from harness.core.shapes import SIZES
from harness.kernels.ops import inputs


def hint(
    spec: KernelSpec, function: Callable[..., Any], args: tuple[Any, ...], error: BaseException
) -> str:
    """The message for a kernel that runs at DeepSeek's sizes, and raised `error` at others.

    Empty if the kernel declares its shapes, was called at these sizes, or raises there too.
    """
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if (
        spec.shapes is not None
        or not hasattr(inputs, spec.op)
        or spec.op not in SIZES
        or len(tensors) != len(args)
    ):
        return ""
    given = _sizes(spec.op, args)
    known = _sizes_of_deepseek_call(spec.op)
    differing = [name for name in given if given[name] != known[name]]
    device = args[0].device.type
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
    """What a kernel may be made for: the widths, the heads and the dtype of a call."""
    first = args[0]
    dtype = str(first.dtype).removeprefix("torch.")
    if op == "write_kv":
        return {"widths": f"{first.shape[-1]}+{args[1].shape[-1]}", "dtype": dtype}
    heads = f"{first.shape[-2]} heads"
    if op == "context_attention":
        return {"widths": f"{first.shape[-1]}/{args[2].shape[-1]}", "heads": heads, "dtype": dtype}
    if op == "merge_attn_states":
        return {"widths": str(first.shape[-1]), "heads": heads, "dtype": dtype}
    rank = latent_rank(first.shape[-1])
    return {"widths": f"{rank}+{first.shape[-1] - rank}", "heads": heads, "dtype": dtype}


@functools.cache
def _sizes_of_deepseek_call(op: str) -> dict[str, str]:
    return _sizes(op, _deepseek_call(op, "cpu")[0])


def _deepseek_call(op: str, device: str, **sizes: int) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """The arguments of a call with the op's default parameters, which have DeepSeek's sizes, but
    for `sizes`.
    """
    built = getattr(inputs, op)(KERNEL_PARAMS[op](**sizes), seed=0)
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
