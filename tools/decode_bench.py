"""How fast the Triton decode is on this GPU, beside the time that reading its cache once would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from harness.core.ops import PAGE_SIZE
from harness.kernels.triton.decode import mla_decode, mla_decode_plan


@dataclass(frozen=True, slots=True)
class DecodeTiming:
    """Medians of graph replays in microseconds. `floor_us` is the cache's bytes over the measured copy bandwidth."""

    device: str
    batch: int
    tokens: int
    heads: int
    kv: str
    kv_megabytes: float
    copy_terabytes_a_second: float
    floor_us: float
    decode_us: float
    plan_us: float

    @property
    def over_floor(self) -> float:
        """Decode time as a multiple of the bandwidth floor."""
        return self.decode_us / self.floor_us


def bench(batch: int = 64, tokens: int = 4096, heads: int = 16, kv: str = "bf16") -> dict[str, float | str | int]:
    """Time decode (split and combine, the plan given) and the plan alone, of 512 + 64 latents in random pages."""
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(0)
    pages = (tokens + PAGE_SIZE - 1) // PAGE_SIZE
    shape = (batch * pages, PAGE_SIZE, 576)
    cache = torch.randn(shape, device=device, dtype=torch.bfloat16, generator=generator)
    if kv == "fp8_e4m3":
        cache = cache.to(torch.float8_e4m3fn)
    q = torch.randn((batch, 1, heads, 576), device=device, dtype=torch.bfloat16, generator=generator)
    order = torch.randperm(batch * pages, device=device, generator=generator)
    table = order.view(batch, pages).to(torch.int32)
    seq_lens = torch.full((batch,), tokens, dtype=torch.int32, device=device)
    plan = mla_decode_plan(seq_lens, num_heads=heads)
    copied = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(copied)
    bytes_a_us = 2 * copied.numel() / replay_us(lambda: target.copy_(copied))
    num_bytes = cache.numel() * cache.element_size()
    timing = DecodeTiming(
        device=torch.cuda.get_device_name(),
        batch=batch,
        tokens=tokens,
        heads=heads,
        kv=kv,
        kv_megabytes=num_bytes / 1e6,
        copy_terabytes_a_second=bytes_a_us / 1e6,
        floor_us=num_bytes / bytes_a_us,
        decode_us=replay_us(lambda: mla_decode(q, cache, table, seq_lens, scale=0.1, metadata=plan)),
        plan_us=replay_us(lambda: mla_decode_plan(seq_lens, num_heads=heads)),
    )
    return asdict(timing) | {"over_floor": timing.over_floor}


def replay_us(call: Callable[[], object], replays: int = 60) -> float:
    """Median microseconds of a CUDA graph of `call`, over `replays` replays after ten that are not counted."""
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
    event: Any = torch.cuda.Event
    events = [[event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
    for start, stop in events:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    del kept
    times = sorted(start.elapsed_time(stop) * 1e3 for start, stop in events)
    return float(times[replays // 2])
