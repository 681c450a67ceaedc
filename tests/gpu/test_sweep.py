"""The sweep fills all that is free and nothing that lives, whatever the allocator was made to do
before.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_poison
from torch_poison import cuda_blocks
from torch_poison.cuda_blocks import by_snapshot, compiled, list_chunks
from torch_poison.cuda_sweep import CudaSweep

ROOT = Path(__file__).parents[2]
SIZES = (100, 512, 5_000, 70_000, 1_100_000, 3_000_000)


def _checksum(tensor: torch.Tensor) -> int:
    return int(tensor.sum(dtype=torch.int64))


def _churn(rounds: int, seed: int) -> None:
    sweep, draw = CudaSweep(), random.Random(seed)
    live: list[tuple[torch.Tensor, int]] = []
    for count in range(rounds):
        if draw.random() < 0.7 or not live:
            tensor = torch.randint(
                0, 255, (draw.choice(SIZES[:4]),), dtype=torch.uint8, device="cuda"
            )
            live.append((tensor, _checksum(tensor)))
        else:
            live.pop(draw.randrange(len(live)))
        if count % 50 == 0:
            sweep()
    assert len(live) > 1000
    assert sweep().num_blocks
    assert [_checksum(tensor) for tensor, _ in live] == [expected for _, expected in live]


@pytest.mark.parametrize("seed", [0, 1])
def test_thousands_of_live_tensors_keep_their_bytes(seed: int) -> None:
    _churn(4000, seed)


def test_what_is_allocated_after_a_sweep_holds_only_the_sentinel() -> None:
    for size in SIZES:
        torch.ones(size, dtype=torch.uint8, device="cuda")
    # Kept: the table of a sweep that is gone is free memory that nobody filled.
    sweep = CudaSweep()
    sweep()
    # All of them first: the result of a comparison is memory too.
    made = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in SIZES]
    assert all(bool((tensor == 0xFF).all()) for tensor in made)


def test_a_block_freed_since_the_last_sweep_is_filled_by_the_next() -> None:
    sweep = CudaSweep()
    sweep()
    torch.ones(3_000_000, dtype=torch.uint8, device="cuda")
    sweep()
    assert bool((torch.empty(3_000_000, dtype=torch.uint8, device="cuda") == 0xFF).all())


def keep_busy(cycles: int) -> None:
    """Keep the current stream busy for this many cycles. torch has no public name for it."""
    torch.cuda._sleep(cycles)


def test_memory_that_a_side_stream_still_reads_is_left_alone() -> None:
    sweep, side = CudaSweep(), torch.cuda.Stream()
    source = torch.full((8_000_000,), 7, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        keep_busy(20_000_000)
        copy = source + 0
    source.record_stream(side)
    del source
    sweep()
    side.synchronize()
    assert bool((copy == 7).all())


def test_memory_freed_on_a_side_stream_is_filled_after_its_last_work() -> None:
    sweep, side = CudaSweep(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        source = torch.full((8_000_000,), 7, dtype=torch.uint8, device="cuda")
        keep_busy(20_000_000)
        copy = source + 0
        del source
    sweep()
    with torch.cuda.stream(side):
        again = torch.empty(8_000_000, dtype=torch.uint8, device="cuda")
        is_filled = (again == 0xFF).all()
    side.synchronize()
    assert bool((copy == 7).all())
    assert bool(is_filled)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
@pytest.mark.parametrize("seed", [0, 1])
def test_the_compiled_list_is_the_list_of_the_snapshot_through_frees_and_splits_on_two_streams(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_blocks, "CHUNK_BYTES", 1 << 40)  # One chunk a block.
    table, draw, side = (
        np.empty((1 << 14, 2), dtype=np.int64),
        random.Random(seed),
        torch.cuda.Stream(),
    )
    assert compiled() is not None
    device, live, most_pending = torch.cuda.current_device(), [], 0
    for count in range(600):
        stream = side if draw.random() < 0.5 else torch.cuda.current_stream()
        if draw.random() < 0.6 or not live:
            with torch.cuda.stream(stream):
                live.append(torch.empty(draw.choice(SIZES), dtype=torch.uint8, device="cuda"))
        else:
            tensor = live.pop(draw.randrange(len(live)))
            if draw.random() < 0.3:
                with torch.cuda.stream(stream):
                    keep_busy(100_000)
                tensor.record_stream(stream)
            del tensor
        if count % 200 == 150:
            torch.cuda.empty_cache()
        if count % 10 == 0:
            num_blocks = list_chunks(device, table)[0]
            assert table[:num_blocks].tolist() == sorted(by_snapshot(device)[:, :2].tolist())
            stats = torch.cuda.memory_stats()
            most_pending = max(
                most_pending, stats["active.all.current"] - stats["allocation.all.current"]
            )
    assert most_pending, "no block was pending free"
    assert num_blocks


def test_graph_replays_after_sweeps_of_their_pool_give_the_same_bits() -> None:
    sweep = CudaSweep()
    weight = torch.randn(512, 512, device="cuda")
    static = torch.randn(512, 512, device="cuda")

    def step() -> torch.Tensor:
        return torch.relu(static @ weight) @ weight

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    graph.replay()
    expected = out.clone()
    for _ in range(10):
        sweep()
        graph.replay()
        assert torch.equal(out, expected)


def test_the_context_manager_works_alone() -> None:
    with torch_poison.cuda() as poison:
        first = torch.empty(1000, device="cuda")
        assert bool(first.isnan().all())
        first.zero_()
        del first
        again = torch.empty(1000, device="cuda")
        assert bool(again.isnan().all())
        assert poison.sweep().num_bytes > 0
    zeros = torch.zeros(1000, device="cuda")
    assert not bool(zeros.any())


def test_live_tensors_keep_their_bytes_in_expandable_segments() -> None:
    code = "import runpy; runpy.run_path('tests/gpu/test_sweep.py')['_churn'](3000, 3)"
    environ = {
        **os.environ,
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_allocator_that_cannot_be_read_is_refused_with_a_reason() -> None:
    code = (
        "import torch; from torch_poison.cuda_sweep import CudaSweep,"
        " UnreadableAllocator\ntry: CudaSweep()\nexcept UnreadableAllocator as e: print(e)"
    )
    environ = {
        **os.environ,
        "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cudaMallocAsync" in done.stdout, done.stderr[-2000:]
