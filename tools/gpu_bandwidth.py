"""How fast the sweep fills and the scan reads on this GPU, beside one `fill_` and one `sum` of the same memory."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable

import torch
from decode_bench import bench
from gpu_decode_step import milliseconds

from harness.memory.poison.cuda_kernels import classify
from harness.memory.poison.cuda_sweep import CudaSweep, free_blocks
from harness.memory.poison.patterns import bits_view
from harness.memory.poison.scan import _layout

GB = 1 << 30


def memory(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")


def gb_s(num_bytes: int, call: Callable[[], object], repeats: int = 30) -> float:
    """Bandwidth by the median time between two device events around a call that is queued behind other work."""
    busy = memory(GB)
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
    return num_bytes / statistics.median(times[3:]) / 1e6


def sweep_numbers() -> dict[str, float]:
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
    answer = {"fill_gb_s": fill_gb_s, "sweep_bytes": num_bytes, "sweep_gb_s": gb_s(num_bytes, sweep)}

    torch.cuda.empty_cache()
    live = [memory(1 << 20) for _ in range(2000)]
    del live[::2]

    def after_changes() -> None:
        memory(2048)
        sweep()

    return answer | {
        "many_blocks": len(free_blocks(torch.cuda.current_device())[0]),
        "many_blocks_ms": milliseconds(sweep),
        "many_blocks_changed_ms": milliseconds(after_changes),
        "many_blocks_list_ms": milliseconds(lambda: free_blocks(torch.cuda.current_device())),
    }


def scan_numbers(dtype: torch.dtype) -> dict[str, float]:
    """Bandwidths over 1 GiB: a sum, a scan of finite values, a scan of NaN."""
    if dtype == torch.float8_e4m3fn:
        values = torch.randint(0, 0x70, (GB,), dtype=torch.uint8, device="cuda").view(dtype)
    else:
        values = torch.randn(GB // dtype.itemsize, device="cuda").to(dtype)
    bits = bits_view(values)
    read, clean = gb_s(GB, values.view(torch.float32).sum), gb_s(GB, lambda: classify(bits, **_layout(dtype)))
    bits.fill_(255 if dtype == torch.float8_e4m3fn else -1)
    return {"read_gb_s": read, "scan_gb_s": clean, "all_nan_gb_s": gb_s(GB, lambda: classify(bits, **_layout(dtype)))}


def main() -> None:
    sweep = sweep_numbers()
    dtypes = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
    scan = {str(dtype).removeprefix("torch."): scan_numbers(dtype) for dtype in dtypes}
    torch.cuda.empty_cache()
    print(json.dumps({"sweep": sweep, "scan": scan, "decode": [bench(kv=kv) for kv in ("bf16", "fp8_e4m3")]}))


if __name__ == "__main__":
    main()
