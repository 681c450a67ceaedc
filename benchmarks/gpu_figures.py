"""One part of the figures of this GPU for docs/data/gpu.md, as JSON:

`python benchmarks/gpu_figures.py PART`.

- `bandwidth`: how fast the sweep fills and the scan reads, beside one `fill_` and one `sum` of the
  same memory, and how fast the Triton decode is, beside the time that reading its cache once would
  take.
- `step`: milliseconds of one decode step: plain, with the sweep before it, or watched. The step is
  a captured graph of 16 layers of absorbed MLA at batch 64 and 4,096 tokens: a query projection,
  one split-KV plan, the Triton decode over each layer's bfloat16 cache, and an output projection.
  `--plain` leaves the sweep out, for a run under compute-sanitizer; `--layers` and `--tokens` make
  that run short enough. Steps are timed one at a time, where the device waits for the host before
  each, and in a queue, as a server with asynchronous scheduling launches them.
- `recorder`: what the first-NaN recorder costs in this step. It is captured twice, without and with
  a scan behind each op: of the query, of the decode's output and lse, and of the layer's result.
  Both graphs are replayed in turns. Then a NaN is written into a row of padding, and into a live
  row, to see what the recorder reports.
- `flashmla`: the Triton decode beside FlashMLA's, the copy that vLLM ships, in microseconds. Both
  get a plan made before. FlashMLA's FP8 kernel needs a query in e4m3, quantized before the clock
  starts; this project's kernel reads a bfloat16 query. Needs vLLM and a Hopper GPU.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch_poison.cuda_blocks import by_snapshot, compiled, list_chunks
from torch_poison.cuda_kernels import any_not_finite
from torch_poison.cuda_sweep import CudaSweep
from torch_poison.patterns import EXPONENT, bits_view

from harness.core.ops import PAGE_SIZE
from harness.memory.clocks import queued, queued_milliseconds
from harness.memory.first_nan.recorder import describe
from harness.memory.first_nan.table import Slot, Table
from harness.ops.mla_decode.kernels.triton import mla_decode
from harness.ops.mla_decode_plan.kernels.triton import mla_decode_plan

BATCH, TOKENS, HEADS, HIDDEN, LAYERS = 64, 4096, 16, 2048, 16
GB = 1 << 30
ROUNDS = 7
TARGET = 1.05
"""The most that recording may multiply a step's time by."""
LIVE = 48
"""Live rows among the rows of the graph, while a NaN is looked for."""
KEPT: list[object] = []
"""The tensors of captured steps: a graph needs them as long as it is replayed."""

Watch = Callable[[int, str, dict[str, torch.Tensor]], None]
"""Called after each op is launched: layer, op, results with a row for each request."""


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


def replay_us(call: Callable[[], object], replays: int = 60) -> float:
    """Median microseconds of a CUDA graph of `call`, over `replays` replays after ten that are not
    counted.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()
    for _ in range(10):
        graph.replay()
    waits = [queued(graph.replay) for _ in range(replays)]
    torch.cuda.synchronize()
    del kept
    return statistics.median_high(1e3 * wait() for wait in waits)


def memory(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


def gb_s(num_bytes: int, call: Callable[[], object], repeats: int = 30) -> float:
    """Bandwidth by the median time between two device events around a call that is queued behind
    other work.
    """
    busy = memory(GB)
    times = []
    for _ in range(repeats + 3):
        for _ in range(4):
            busy.fill_(1)
        times.append(queued(call)())
    return num_bytes / statistics.median(times[3:]) / 1e6


def bandwidth() -> dict[str, Any]:
    sweep = sweep_numbers()
    dtypes = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
    scan = {str(dtype).removeprefix("torch."): scan_numbers(dtype) for dtype in dtypes}
    torch.cuda.empty_cache()
    return {"sweep": sweep, "scan": scan, "decode": [decode(kv) for kv in ("bf16", "fp8_e4m3")]}


def sweep_numbers() -> dict[str, Any]:
    sweep = CudaSweep()
    whole = memory(2 * GB)
    fill = functools.partial(whole.fill_, 255)
    fill_gb_s = gb_s(2 * GB, fill)
    pieces = [memory(64 << 20) for _ in range(32)]
    del whole, fill, pieces
    # The sweep fills what is free beside the memory that `gb_s` holds.
    busy = memory(GB)
    num_bytes = sweep().num_bytes
    del busy
    answer = {
        "fill_gb_s": fill_gb_s,
        "sweep_bytes": num_bytes,
        "sweep_gb_s": gb_s(num_bytes, sweep),
    }

    torch.cuda.empty_cache()
    live = [memory(1 << 20) for _ in range(2000)]
    del live[::2]

    def after_changes() -> None:
        memory(2048)
        sweep()

    device, table = torch.cuda.current_device(), np.empty((1 << 14, 2), dtype=np.int64)
    return answer | {
        "many_blocks": list_chunks(device, table)[1],
        "many_blocks_ms": milliseconds(sweep),
        "many_blocks_changed_ms": milliseconds(after_changes),
        "many_blocks_list_ms": milliseconds(lambda: list_chunks(device, table)),
        "many_blocks_snapshot_ms": milliseconds(lambda: by_snapshot(device)),
        "listed_by": "torch's snapshot" if compiled() is None else "C++",
    }


def scan_numbers(dtype: torch.dtype) -> dict[str, float]:
    """Bandwidths over 1 GiB of finite values: a sum, and a scan."""
    if dtype == torch.float8_e4m3fn:
        values = torch.randint(0, 0x70, (GB,), dtype=torch.uint8, device="cuda").view(dtype)
    else:
        values = torch.randn(GB // dtype.itemsize, device="cuda").to(dtype)
    bits = bits_view(values)
    read, clean = (
        gb_s(GB, values.view(torch.float32).sum),
        gb_s(GB, lambda: any_not_finite(bits, EXPONENT[dtype])),
    )
    return {"read_gb_s": read, "scan_gb_s": clean}


def decode(kv: str) -> dict[str, Any]:
    """Medians of graph replays in microseconds: the decode (split and combine, the plan given), and
    the plan alone.

    Latents of 512 + 64 lie in random pages. `floor_us` is the cache's bytes over the measured copy
    bandwidth.
    """
    generator = torch.Generator("cuda").manual_seed(0)
    pages = TOKENS // PAGE_SIZE
    shape = (BATCH * pages, PAGE_SIZE, 576)
    cache = torch.randn(shape, device="cuda", dtype=torch.bfloat16, generator=generator)
    if kv == "fp8_e4m3":
        cache = cache.to(torch.float8_e4m3fn)
    q = torch.randn(
        (BATCH, 1, HEADS, 576), device="cuda", dtype=torch.bfloat16, generator=generator
    )
    order = torch.randperm(BATCH * pages, device="cuda", generator=generator)
    table = order.view(BATCH, pages).to(torch.int32)
    seq_lens = torch.full((BATCH,), TOKENS, dtype=torch.int32, device="cuda")
    plan = mla_decode_plan(seq_lens, num_heads=HEADS)
    copied, target = memory(GB), memory(GB)
    bytes_a_us = 2 * GB / replay_us(lambda: target.copy_(copied))
    floor_us = cache.numel() * cache.element_size() / bytes_a_us
    decode_us = replay_us(lambda: mla_decode(q, cache, table, seq_lens, scale=0.1, metadata=plan))
    return {
        "device": torch.cuda.get_device_name(),
        "batch": BATCH,
        "tokens": TOKENS,
        "heads": HEADS,
        "kv": kv,
        "kv_megabytes": cache.numel() * cache.element_size() / 1e6,
        "copy_terabytes_a_second": bytes_a_us / 1e6,
        "floor_us": floor_us,
        "decode_us": decode_us,
        "plan_us": replay_us(lambda: mla_decode_plan(seq_lens, num_heads=HEADS)),
        "over_floor": decode_us / floor_us,
    }


def flashmla() -> list[dict[str, Any]]:
    rows, versions = [], {name: version(name) for name in ("vllm", "torch", "triton")}
    for kv in ("bf16", "fp8_e4m3"):
        ours, theirs = decode(kv), replay_us(flashmla_call(kv))
        rows.append(
            {**versions, **ours, "flashmla_us": theirs, "over_flashmla": ours["decode_us"] / theirs}
        )
    return rows


def flashmla_call(kv: str) -> Callable[[], object]:
    """A call that launches FlashMLA's dense decode over a full batch."""
    ops = importlib.import_module("vllm.v1.attention.ops.flashmla")
    pages = BATCH * TOKENS // PAGE_SIZE
    cache = torch.randn(pages, PAGE_SIZE, 1, 576, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(BATCH, 1, HEADS, 576, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(pages, device="cuda").view(BATCH, -1).to(torch.int32)
    seq_lens = torch.full((BATCH,), TOKENS, dtype=torch.int32, device="cuda")
    given = {
        "block_table": table,
        "cache_seqlens": seq_lens,
        "head_dim_v": 512,
        "softmax_scale": 0.1,
        "causal": True,
    }
    if kv == "bf16":
        plan = ops.get_mla_metadata(seq_lens, HEADS, 1, is_fp8_kvcache=False)[0]
        return lambda: ops.flash_mla_with_kvcache(
            q=q, k_cache=cache, tile_scheduler_metadata=plan, is_fp8_kvcache=False, **given
        )
    q8, cache8, one = (
        q.to(torch.float8_e4m3fn),
        cache.to(torch.float8_e4m3fn),
        torch.ones(1, device="cuda"),
    )
    tiles, splits = ops.get_mla_metadata_dense_fp8(seq_lens, HEADS, 1)
    return lambda: ops.flash_mla_with_kvcache_fp8(
        q=q8,
        k_cache=cache8,
        tile_scheduler_metadata=tiles,
        num_splits=splits,
        descale_q=one,
        descale_k=one,
        **given,
    )


def captured_step(
    layers: int = LAYERS, tokens: int = TOKENS, watch: Watch = lambda *_: None
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """The step as a graph, and its input [BATCH, HIDDEN] bfloat16.

    Launches of `watch` are captured too.
    """
    device, pages = torch.device("cuda"), tokens // PAGE_SIZE
    caches = [
        torch.randn(BATCH * pages, PAGE_SIZE, 576, device=device, dtype=torch.bfloat16)
        for _ in range(layers)
    ]
    table = torch.randperm(BATCH * pages, device=device).view(BATCH, pages).to(torch.int32)
    lengths = torch.full((BATCH,), tokens, dtype=torch.int32, device=device)
    into = [
        torch.randn(HIDDEN, HEADS * 576, device=device, dtype=torch.bfloat16) * 0.02
        for _ in range(layers)
    ]
    back = [
        torch.randn(HEADS * 512, HIDDEN, device=device, dtype=torch.bfloat16) * 0.01
        for _ in range(layers)
    ]
    hidden = torch.randn(BATCH, HIDDEN, device=device, dtype=torch.bfloat16)

    def forward() -> torch.Tensor:
        x, plan = hidden, mla_decode_plan(lengths, num_heads=HEADS)
        for layer, (cache, up, down) in enumerate(zip(caches, into, back, strict=True)):
            q = (x @ up).view(BATCH, 1, HEADS, 576)
            watch(layer, "up", {"q": q})
            out, lse = mla_decode(q, cache, table, lengths, scale=0.05, metadata=plan)
            watch(layer, "mla_decode", {"out": out, "lse": lse})
            x = x + out.reshape(BATCH, -1) @ down
            watch(layer, "down", {"hidden": x})
        return x

    forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    KEPT.append((caches, table, lengths, into, back, hidden))
    return graph, hidden


def step(plain: bool, repeats: int, layers: int, tokens: int) -> dict[str, Any]:
    graph, _ = captured_step(layers, tokens)
    answer: dict[str, Any] = {"layers": layers, "tokens": tokens}
    if plain:
        return answer | {"step_ms": milliseconds(graph.replay, repeats)}
    scratch = memory(256 << 20)
    del scratch
    sweep = CudaSweep()
    answer["free_bytes"] = sweep().num_bytes
    timed = {
        "step_ms": lambda: milliseconds(graph.replay, repeats),
        "with_sweep_ms": lambda: milliseconds(lambda: (sweep(), graph.replay()), repeats),
        "queued_ms": lambda: queued_milliseconds(graph.replay, repeats),
        "queued_with_sweep_ms": lambda: queued_milliseconds(
            lambda: (sweep(), graph.replay()), repeats
        ),
    }
    rounds = [{name: measure() for name, measure in timed.items()} for _ in range(ROUNDS)]
    return answer | {name: statistics.median(times[name] for times in rounds) for name in timed}


def recorder() -> dict[str, Any]:
    nans = Table(torch.device("cuda"))

    def watch(layer: int, op: str, results: dict[str, torch.Tensor]) -> None:
        slots = [
            nans.slot((layer, name), Slot(op, name, layer=layer, call=(layer, op)))
            for name in results
        ]
        nans.scan_together([slot for slot in slots if slot is not None], list(results.values()))

    nans.live.fill_(BATCH)
    plain, _ = captured_step()
    recorded, hidden = captured_step(watch=watch)
    rounds = [(milliseconds(plain.replay), milliseconds(recorded.replay)) for _ in range(ROUNDS)]
    step_ms, recorded_ms = (statistics.median(times) for times in zip(*rounds, strict=True))
    clean = describe(nans)

    nans.live.fill_(LIVE)
    reports = []
    for clock, row in enumerate((LIVE + 3, 7), start=1):
        hidden[row, 5] = torch.nan
        nans.set_clock(clock, "decode")
        recorded.replay()
        reports.append(describe(nans))
    padding, found = reports
    return {
        "layers": LAYERS,
        "tokens": TOKENS,
        "batch": BATCH,
        "tensors": len(nans.slots),
        "scans": len({slot.call for slot in nans.slots}),
        "step_ms": step_ms,
        "recorded_ms": recorded_ms,
        "ratio": round(recorded_ms / step_ms, 4),
        "ratios": [round(after / before, 4) for before, after in rounds],
        "target": TARGET,
        "within": recorded_ms / step_ms < TARGET,
        "clean_is_silent": clean is None,
        "padding_is_silent": padding is None,
        "found": found.statement if found else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    for part in (bandwidth, recorder, flashmla):
        parts.add_parser(part.__name__).set_defaults(measure=part)
    steps = parts.add_parser("step")
    steps.set_defaults(measure=step)
    steps.add_argument("--plain", action="store_true")
    steps.add_argument("--repeats", type=int, default=30)
    steps.add_argument("--layers", type=int, default=LAYERS)
    steps.add_argument("--tokens", type=int, default=TOKENS)
    chosen = vars(parser.parse_args())
    del chosen["part"]
    print(json.dumps(chosen.pop("measure")(**chosen)))


if __name__ == "__main__":
    main()
