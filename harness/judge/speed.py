"""The speed of a judged kernel, beside its verdict and no part of it.

`python -m harness.judge.speed` is the child process of `mla-harness judge --speed`. The clock is in
this process, where the kernel cannot reach it. Each figure is a ratio to something that was timed
in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch_poison.patterns import NATURAL, Poison

from harness.cell.client import RemoteKernel, load_in_cell
from harness.core.cases import MeasureSpeed
from harness.core.catalog import KERNELS
from harness.core.errors import InputError
from harness.core.kernels import KernelSpec
from harness.core.ops import SPEED_FILE, ops_with, part_of
from harness.core.params import Params
from harness.memory.clocks import queued_milliseconds
from harness.ops.parts.call import KernelCall, Setting, invoke
from harness.run.protocol import answer_once

ROUNDS = 3
REPEATS = {"cpu": 3, "cuda": 50}


def measure(request: MeasureSpeed) -> dict[str, Any]:
    """Kernel -> its figures, one for each size: microseconds, and of what they are a ratio."""
    rows: list[dict[str, Any]] = []
    device = request.cell.device
    for spec in load_in_cell(request.cell, request.file):
        if spec.op not in ops_with(SPEED_FILE):
            continue
        for batch, num_keys in request.sizes or part_of(spec.op, "speed:SIZES")[device]:
            params = spec.fit(part_of(spec.op, "speed:params")(spec, batch, num_keys), ())
            if reason := spec.why_not_params(params):
                rows.append({"kernel": spec.name, "why_not": reason.sentence})
                continue
            row = {"kernel": spec.name, "requests": batch, "keys": num_keys}
            rows.append(row | _figures(spec, params, device))
    return {"rows": rows}


def _figures(spec: KernelSpec, params: Params, device: str) -> dict[str, Any]:
    """Microseconds of the kernel, and "beside": name of another -> its microseconds."""
    kernel = spec.impl
    if not isinstance(kernel, RemoteKernel):
        raise InputError(f"{spec.name} runs in no cell")
    setting = Setting(spec, Poison(NATURAL, frozenset()), 1, "cpu")
    call: KernelCall = part_of(spec.op, "call:prepare")(params, setting)
    keywords = call.keywords(is_captured=False)
    outputs = invoke(spec, setting.poison, call.args, keywords)
    own = statistics.median(
        kernel.seconds(call.args, keywords, REPEATS[device]) for _ in range(ROUNDS)
    )
    if device == "cpu":
        beside = {"the float64 reference": _reference(call, outputs)}
    else:
        beside = _on_gpu(spec, params, call, keywords)
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


def _on_gpu(
    spec: KernelSpec, params: Params, call: KernelCall, keywords: dict[str, Any]
) -> dict[str, float]:
    """Microseconds of every kernel of the op that is installed and takes the call, FlashMLA of an
    engine for one, and of one read of the cache, each a queue of calls.
    """
    args = tuple(one.cuda() if isinstance(one, torch.Tensor) else one for one in call.args)
    cache = part_of(spec.op, "speed:cache")(*args)
    calls: dict[str, Callable[[], object]] = {
        "one read of the cache": lambda: cache.view(torch.int32).amax()
    }
    for other in KERNELS:
        is_here = other.op == spec.op and other.why_not("cuda") is None
        if is_here and other.why_not_params(params) is None:
            calls[other.name] = partial(other.load(), *args, **keywords)
    return {name: 1e3 * queued_milliseconds(one, REPEATS["cuda"]) for name, one in calls.items()}


if __name__ == "__main__":
    answer_once(MeasureSpeed, measure)
