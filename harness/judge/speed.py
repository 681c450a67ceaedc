"""The speed of a judged kernel, beside its verdict and no part of it.

`python -m harness.judge.speed` is the child process of `mla-harness judge --speed`. The clock is in
this process, where the kernel cannot reach it. Each figure is a ratio to something that was timed
in the same run.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch_poison.patterns import NATURAL, Poison

from harness.cell.client import RemoteKernel, load_in_cell
from harness.core.cases import CellOf
from harness.core.catalog import KERNELS
from harness.core.errors import InputError
from harness.core.kernels import KernelSpec
from harness.core.ops import part_of
from harness.core.params import Record
from harness.memory.clocks import queued_milliseconds
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.parts.call import KernelCall, Setting, invoke
from harness.run.protocol import answer_once

ROUNDS = 3
SIZES = {
    "cpu": ((1, 1024), (4, 512)),
    "cuda": ((1, 8192), (32, 4096), (128, 2048)),
}
"""Device -> requests and keys of each, as users serve them."""
REPEATS = {"cpu": 3, "cuda": 50}
OP = "mla_decode"
"""The op whose speed can be told."""


class MeasureSpeed(Record):
    """What to measure: the kernels of `file` in a cell, at `sizes` or at those of its device."""

    cell: CellOf
    file: str
    sizes: tuple[tuple[int, int], ...] = ()


def measure(request: MeasureSpeed) -> dict[str, Any]:
    """Kernel -> its figures, one for each size: microseconds, and of what they are a ratio."""
    rows: list[dict[str, Any]] = []
    device = request.cell.device
    for spec in load_in_cell(request.cell, request.file):
        if spec.op != OP:
            continue
        for batch, num_keys in request.sizes or SIZES[device]:
            given = MlaDecodeParams(
                kernel=spec.short_name,
                kv="bf16",
                seq_lens=(num_keys,) * batch,
                num_heads=16,
                planned=False,
            )
            params = spec.fit(given, ())
            if reason := spec.why_not_params(params):
                rows.append({"kernel": spec.name, "why_not": reason.sentence})
                continue
            row = {"kernel": spec.name, "requests": batch, "keys": num_keys}
            rows.append(row | _figures(spec, params, device))
    return {"rows": rows}


def _figures(spec: KernelSpec, params: MlaDecodeParams, device: str) -> dict[str, Any]:
    """Microseconds of the kernel, and "beside": name of another -> its microseconds."""
    kernel = spec.impl
    if not isinstance(kernel, RemoteKernel):
        raise InputError(f"{spec.name} runs in no cell")
    setting = Setting(spec, Poison(NATURAL, frozenset()), 1, "cpu")
    call: KernelCall = part_of(OP, "call:prepare")(params, setting)
    keywords = call.keywords(is_captured=False)
    outputs = invoke(spec, setting.poison, call.args, keywords)
    own = statistics.median(
        kernel.seconds(call.args, keywords, REPEATS[device]) for _ in range(ROUNDS)
    )
    if device == "cpu":
        beside = {"the float64 reference": _reference(call, outputs)}
    else:
        beside = _on_gpu(call, keywords)
    return {"microseconds": 1e6 * own, "beside": beside}


def _reference(call: KernelCall, outputs: Any) -> float:
    """Microseconds of the reference for the same call, on one thread as the kernel has."""
    torch.set_num_threads(1)
    values = outputs if isinstance(outputs, tuple) else (outputs, None)
    taken = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        call.observe(tuple(value for value in values if value is not None))
        taken.append(time.perf_counter() - started)
    return 1e6 * statistics.median(taken)


def _on_gpu(call: KernelCall, keywords: dict[str, Any]) -> dict[str, float]:
    """Microseconds of the Triton decode, of FlashMLA if it is installed, and of one read of the
    cache, each a queue of calls.
    """
    args = tuple(one.cuda() if isinstance(one, torch.Tensor) else one for one in call.args)
    q, cache, table, seq_lens = args
    scale = keywords["scale"]
    triton = KERNELS.get(f"{OP}/triton").load()
    calls: dict[str, Callable[[], object]] = {
        "Triton decode": lambda: triton(
            q, cache, table, seq_lens, scale=scale, kv_scale=None, metadata=None
        ),
        "one read of the cache": lambda: cache.view(torch.int32).amax(),
    }
    if flash := _flash_mla(q, cache, table, seq_lens, scale):
        calls["FlashMLA"] = flash
    return {name: 1e3 * queued_milliseconds(one, REPEATS["cuda"]) for name, one in calls.items()}


def _flash_mla(
    q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, seq_lens: torch.Tensor, scale: float
) -> Callable[[], object] | None:
    """A call of FlashMLA's dense decode over q [B, 1, H, 576] and cache [N, 64, 576] bfloat16, of
    its own package; None without it.
    """
    try:
        package = importlib.import_module("flash_mla")
    except ImportError:
        return None
    plan = package.get_mla_metadata(seq_lens, q.shape[2], 1)
    keys = cache[:, :, None]
    return lambda: package.flash_mla_with_kvcache(
        q, keys, table, seq_lens, 512, *plan, softmax_scale=scale, causal=True
    )


if __name__ == "__main__":
    answer_once(MeasureSpeed, measure)
