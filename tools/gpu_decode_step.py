"""Milliseconds of one decode step on this GPU, as one JSON object: plain, with the sweep before it, or watched.

The step is a captured graph of 16 layers of absorbed MLA at batch 64 and 4,096 tokens: a query projection, one
split-KV plan, the Triton decode over each layer's bfloat16 cache, and an output projection. `--plain` leaves the sweep
out, for a run under compute-sanitizer; `--layers` and `--tokens` make that run short enough.

Steps are timed one at a time, where the device waits for the host before each, and in a queue, as a server with
asynchronous scheduling launches them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from harness.kernels.triton.decode import mla_decode, mla_decode_plan
from harness.memory.poison.cuda_sweep import CudaSweep

BATCH, HEADS, HIDDEN, PAGE = 64, 16, 2048, 64
LAYERS, TOKENS = 16, 4096
KEPT: list[object] = []
"""The tensors of captured steps: a graph needs them as long as it is replayed."""

Watch = Callable[[int, str, dict[str, torch.Tensor]], None]
"""Called after each op is launched: layer, op, results with a row for each request."""


def captured_step(
    layers: int = LAYERS, tokens: int = TOKENS, watch: Watch = lambda *_: None
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """The step as a graph, and its input [BATCH, HIDDEN] bfloat16. Launches of `watch` are captured too."""
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
            watch(layer, "up", {"q": q})
            out, lse = mla_decode(q, cache, table, lengths, scale=0.05, metadata=plan)
            watch(layer, "mla_decode", {"out": out, "lse": lse})
            x = x + out.reshape(BATCH, -1) @ down
            watch(layer, "down", {"hidden": x})
        return x

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    KEPT.append((caches, table, lengths, into, back, hidden))
    return graph, hidden


def milliseconds(call: Callable[[], object], repeats: int = 30) -> float:
    """Median wall-clock of a call and the wait for it, on an idle device."""
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
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    options = parser.parse_args()
    graph, _ = captured_step(options.layers, options.tokens)
    answer = {"layers": options.layers, "tokens": options.tokens}
    if options.plain:
        answer["step_ms"] = milliseconds(graph.replay, options.repeats)
    else:
        scratch = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        del scratch
        sweep = CudaSweep()
        answer["free_bytes"] = sweep().num_bytes
        timed = {
            "step_ms": lambda: milliseconds(graph.replay, options.repeats),
            "with_sweep_ms": lambda: milliseconds(lambda: (sweep(), graph.replay()), options.repeats),
            "queued_ms": lambda: queued_milliseconds(graph.replay, options.repeats),
            "queued_with_sweep_ms": lambda: queued_milliseconds(lambda: (sweep(), graph.replay()), options.repeats),
        }
        rounds = [{name: measure() for name, measure in timed.items()} for _ in range(7)]
        answer |= {name: statistics.median(times[name] for times in rounds) for name in timed}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
