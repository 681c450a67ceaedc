"""Milliseconds of one decode step on this GPU, as one JSON object: plain, with the sweep before it, or watched.

The step is a captured graph of 16 layers of absorbed MLA at batch 64 and 4,096 tokens: a query projection, the
split-KV plan once, the Triton decode over a bfloat16 cache of each layer's own, and an output projection. `--plain`
leaves the sweep out, for a run under compute-sanitizer, which `--layers` and `--tokens` make short enough.

Times are of two kinds: one step at a time, where the device waits for the host before each, and of a queue of steps,
as a server with asynchronous scheduling launches them, where the host is ahead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from harness.kernels.triton.decode import mla_decode
from harness.kernels.triton.plan import mla_decode_plan
from harness.memory.poison.cuda_sweep import CudaSweep

BATCH, HEADS, HIDDEN, PAGE = 64, 16, 2048, 64


Watch = Callable[[int, str, dict[str, torch.Tensor]], None]
"""Shown each op's results as it is launched: layer, op, tensors with a row for each request."""


def captured_step(layers: int, tokens: int, watch: Watch | None = None) -> torch.cuda.CUDAGraph:
    """The step as a graph; its tensors live as long as the process. What `watch` launches is captured as well."""
    device, pages = torch.device("cuda"), tokens // PAGE
    caches = [torch.randn(BATCH * pages, PAGE, 576, device=device, dtype=torch.bfloat16) for _ in range(layers)]
    table = torch.randperm(BATCH * pages, device=device).view(BATCH, pages).to(torch.int32)
    lengths = torch.full((BATCH,), tokens, dtype=torch.int32, device=device)
    into = [torch.randn(HIDDEN, HEADS * 576, device=device, dtype=torch.bfloat16) * 0.02 for _ in range(layers)]
    back = [torch.randn(HEADS * 512, HIDDEN, device=device, dtype=torch.bfloat16) * 0.01 for _ in range(layers)]
    hidden = torch.randn(BATCH, HIDDEN, device=device, dtype=torch.bfloat16)

    def step() -> torch.Tensor:
        x, plan = hidden, mla_decode_plan(lengths, num_heads=HEADS)
        for layer, (cache, up, down) in enumerate(zip(caches, into, back, strict=True)):
            q = (x @ up).view(BATCH, 1, HEADS, 576)
            if watch:
                watch(layer, "up", {"q": q})
            out, lse = mla_decode(q, cache, table, lengths, scale=0.05, metadata=plan)
            if watch:
                watch(layer, "mla_decode", {"out": out, "lse": lse})
            x = x + out.reshape(BATCH, -1) @ down
            if watch:
                watch(layer, "down", {"hidden": x})
        return x

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    KEPT.append((caches, table, lengths, into, back, hidden))
    INPUTS.append(hidden)
    return graph


KEPT: list[object] = []
INPUTS: list[torch.Tensor] = []
"""The input [BATCH, HIDDEN] of each captured step."""


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Median wall-clock of one call, waiting for the device."""
    times = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[2:])


def queued_milliseconds(call: Callable[[], object], steps: int) -> float:
    """Milliseconds of one of `steps` calls that the host queues without waiting."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    torch.cuda.synchronize()
    start.record()
    for _ in range(steps):
        call()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=4096)
    options = parser.parse_args()
    graph = captured_step(options.layers, options.tokens)
    answer: dict[str, float] = {"layers": options.layers, "tokens": options.tokens}
    answer["step_ms"] = milliseconds(graph.replay, options.repeats)
    if not options.plain:
        scratch = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        del scratch
        sweep = CudaSweep()
        answer["free_bytes"] = sweep().num_bytes
        times: dict[str, list[float]] = {"step": [], "with_sweep": [], "queued": [], "queued_with_sweep": []}
        for _ in range(7):
            times["step"].append(milliseconds(graph.replay, options.repeats))
            times["with_sweep"].append(milliseconds(lambda: (sweep(), graph.replay()), options.repeats))
            times["queued"].append(queued_milliseconds(graph.replay, options.repeats))
            times["queued_with_sweep"].append(queued_milliseconds(lambda: (sweep(), graph.replay()), options.repeats))
        answer |= {f"{name}_ms": statistics.median(values) for name, values in times.items()}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
