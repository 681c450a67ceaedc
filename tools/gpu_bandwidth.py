"""How fast the sweep fills and the scan reads on this GPU, beside one `fill_` and one `sum` of the same memory."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from decode_bench import bench

from harness.memory.poison.cuda_kernels import classify
from harness.memory.poison.cuda_sweep import CudaSweep, free_blocks
from harness.memory.poison.scan import _layout
from harness.memory.poison.sentinels import bits_view

GB = 1 << 30


def device_ms(call: Callable[[], object], repeats: int = 30) -> float:
    """Median time between two device events around a call that the host has queued while the device was busy."""
    busy = torch.empty(GB, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(repeats + 3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(4):
            busy.fill_(1)
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times[3:])


def wall_ms(call: Callable[[], object], repeats: int = 30) -> float:
    """Median wall-clock of a call and the wait for it, on an idle device."""
    times = []
    for _ in range(repeats + 3):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[3:])


def sweep_numbers() -> dict[str, float]:
    sweep, answer = CudaSweep(), {}
    whole = torch.empty(2 * GB, dtype=torch.uint8, device="cuda")
    fill_ms = device_ms(lambda: whole.fill_(255))  # type: ignore[union-attr]
    pieces = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(32)]
    whole = None
    pieces.clear()
    torch.cuda.synchronize()
    swept = sweep()
    sweep_ms = device_ms(sweep)
    # `device_ms` holds one GB of its own, so what it swept is what is free beside that.
    busy = torch.empty(GB, dtype=torch.uint8, device="cuda")
    swept = sweep()
    del busy
    answer["fill_gb_s"] = 2 * GB / fill_ms / 1e6
    answer["sweep_bytes"] = swept.num_bytes
    answer["sweep_gb_s"] = swept.num_bytes / sweep_ms / 1e6
    torch.cuda.empty_cache()
    live = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(2000)]
    del live[::2]
    addresses, _, _ = free_blocks(torch.cuda.current_device())
    answer["many_blocks"] = len(addresses)
    answer["many_blocks_ms"] = wall_ms(sweep)

    def after_changes() -> None:
        live.append(torch.empty(512, device="cuda"))
        live.pop()
        sweep()

    answer["many_blocks_changed_ms"] = wall_ms(after_changes)
    answer["many_blocks_list_ms"] = wall_ms(lambda: free_blocks(torch.cuda.current_device()))
    return answer


def scan_numbers() -> dict[str, dict[str, float]]:
    answer = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        values = torch.randn(GB // 4, device="cuda")
        if dtype != torch.float32:
            values = (
                torch.cat([values.to(dtype)] * (4 // dtype.itemsize))
                if dtype == torch.bfloat16
                else torch.randint(0, 0x70, (GB,), dtype=torch.uint8, device="cuda").view(dtype)
            )
        words = values.view(torch.float32)
        read_ms = device_ms(words.sum)
        bits, layout = bits_view(values), _layout(dtype)
        clean_ms = device_ms(lambda bits=bits, layout=layout: classify(bits, **layout))
        bits.fill_(-1 if dtype != torch.float8_e4m3fn else 255)
        full_ms = device_ms(lambda bits=bits, layout=layout: classify(bits, **layout))
        size = values.numel() * dtype.itemsize
        answer[str(dtype).removeprefix("torch.")] = {
            "read_gb_s": size / read_ms / 1e6, "scan_gb_s": size / clean_ms / 1e6, "all_nan_gb_s": size / full_ms / 1e6,
        }  # fmt: skip
        del values, words, bits
    return answer


def main() -> None:
    answer = {"sweep": sweep_numbers(), "scan": scan_numbers()}
    torch.cuda.empty_cache()
    answer["decode"] = [bench(kv=kv) for kv in ("bf16", "fp8_e4m3")]
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
