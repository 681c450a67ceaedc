"""The compiled list of free memory follows an allocator's events, and reads its snapshot where they
do not suffice.
"""

from __future__ import annotations

import ctypes
import logging
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the compiled list is kept in Triton's cache")

from torch_poison import cuda_blocks
from torch_poison.cuda_blocks import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    build,
    by_snapshot,
    compiled,
    list_chunks,
)

TORCH = Path(torch.__file__).parent
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE = range(5)
MB = 1 << 20
STATES = {"live": "active_allocated", "pending": "active_awaiting_free", "free": "inactive"}


@dataclass
class Segment:
    device: int
    address: int
    stream: int
    is_large: bool
    blocks: list[list[Any]] = field(default_factory=list)
    is_expandable: bool = False


class Allocator:
    """Splits and merges as torch's does, reports events to the library, and answers
    `_cuda_memorySnapshot`.
    """

    def __init__(self, library: Any = None) -> None:
        self.library, self.segments = library, list[Segment]()

    def snapshot(self, _: object = None) -> dict[str, Any]:
        found = []
        for segment in self.segments:
            address, blocks = segment.address, []
            for size, state in segment.blocks:
                blocks.append({"address": address, "size": size, "state": STATES[state]})
                address += size
            found.append({"device": segment.device, "stream": segment.stream, "blocks": blocks})
        return {"segments": found}

    def report(self, action: int, device: int, address: int, size: int) -> None:
        if self.library is not None:
            self.sync()
            self.library.fake_event(action, device, _size(address), _size(size))

    def sync(self) -> None:
        self.library.fake_clear()
        for segment in self.segments:
            head = (segment.device, segment.address, segment.stream)
            self.library.fake_segment(*map(_size, head), segment.is_large, segment.is_expandable)
            for size, state in segment.blocks:
                self.library.fake_block(_size(size), state == "live", state != "free")

    def segment(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.report(
            SEGMENT_ALLOC, segment.device, segment.address, sum(size for size, _ in segment.blocks)
        )

    def take(self, segment: Segment, index: int, requested: int, *, unit: int = 512) -> None:
        """Allocate from the free block `index`; `unit` is what the allocator's settings round sizes
        up to.
        """
        size, most = (
            -(-requested // unit) * unit,
            MB if segment.is_large and not segment.is_expandable else 0,
        )
        whole, state = segment.blocks[index]
        assert state == "free" and size <= whole
        made = (
            [[size, "live"], [whole - size, "free"]] if whole - size > most else [[whole, "live"]]
        )
        address = self.address(segment, index)
        segment.blocks[index : index + 1] = made
        self.report(ALLOC, segment.device, address, requested)

    def give(self, segment: Segment, index: int, *, pending: bool = False) -> None:
        address = self.address(segment, index)
        if segment.blocks[index][1] == "live":
            segment.blocks[index][1] = "pending"
            self.report(FREE_REQUESTED, segment.device, address, 0)
        if pending:
            return
        segment.blocks[index][1] = "free"
        merged: list[list[Any]] = []
        for size, state in segment.blocks:
            if merged and merged[-1][1] == state == "free":
                merged[-1][0] += size
            else:
                merged.append([size, state])
        segment.blocks = merged
        self.report(FREE_COMPLETED, segment.device, address, 0)

    @staticmethod
    def address(segment: Segment, index: int) -> int:
        return segment.address + sum(size for size, _ in segment.blocks[:index])


def _size(value: int) -> Any:
    return ctypes.c_size_t(value)


def _blocks(*kinds: str) -> list[list[Any]]:
    return [[{"live": 512, "pending": 1024, "free": 2048}[kind], kind] for kind in kinds]


def _mixed(library: Any = None) -> Allocator:
    made = Allocator(library)
    made.segments = [
        Segment(0, 0x7F0000000000, 0, False, _blocks("live", "free", "pending", "free")),
        Segment(1, 0x7F1000000000, 0, False, _blocks("free")),
        Segment(0, 0x7F2000000000, 0x55D0, True, _blocks("free")),
        Segment(0, 0x7F3000000000, 0x66D0, True, _blocks("live")),
    ]
    if library is not None:
        made.report(SEGMENT_ALLOC, 0, 0, 0)
        made.report(SEGMENT_ALLOC, 1, 0, 0)
    return made


FREE = [[0x7F0000000200, 2048, 0], [0x7F0000000E00, 2048, 0], [0x7F2000000000, 2048, 0x55D0]]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", _mixed().snapshot, raising=False)
    compiled.cache_clear()
    yield
    compiled.cache_clear()


@pytest.fixture
def links(tmp_path: Path) -> str:
    """Arguments with which g++ finds a `libc10_cuda`: that of a CPU build of torch is missing."""
    subprocess.run(
        ["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(tmp_path / "libc10_cuda.so")],
        check=True,
    )
    return f"-L{tmp_path}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of the library over the fake allocator, compiled once."""
    folder = tmp_path_factory.mktemp("links")
    subprocess.run(
        ["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(folder / "libc10_cuda.so")],
        check=True,
    )
    includes = f"-I{Path(__file__).parent / 'fake_torch/include'}"
    # What is not needed is not linked, so the library loads without the empty libc10_cuda.
    return build(Path(torch.__file__).parent, includes, f"-L{folder}", "-Wl,--as-needed")


@pytest.fixture
def library(built: bytes, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The compiled list over the fake allocator.

    Each test has a cache, and so a copy, of its own.
    """
    monkeypatch.setattr(cuda_blocks, "build", lambda torch_dir: built)
    found = compiled()
    assert found is not None
    return found


def _listed(device: int = 0, capacity: int = 1 << 14) -> list[list[int]]:
    """The chunks of `list_chunks`, and nothing written behind them."""
    table = np.full((capacity, 2), -1, dtype=np.int64)
    count, num_blocks, num_bytes, _ = list_chunks(device, table)
    assert count <= capacity and bool((table[count:] == -1).all())
    assert num_bytes == int(table[:count, 1].sum()) and num_blocks <= count
    return table[:count].tolist()


def _expected(allocator: Allocator, device: int = 0) -> list[list[int]]:
    free = [
        (block["address"], block["size"])
        for segment in allocator.snapshot()["segments"]
        for block in segment["blocks"]
        if segment["device"] == device and block["state"] == "inactive"
    ]
    chunk = CHUNK_BYTES
    while sum(size for _, size in free) // chunk > MAX_CHUNKS:
        chunk *= 2
    return sorted(
        [at + i, min(chunk, size - i)] for at, size in free for i in range(0, size, chunk)
    )


def test_the_snapshot_lists_what_is_free_and_not_what_is_pending() -> None:
    assert by_snapshot(0).tolist() == FREE
    assert by_snapshot(3).shape == (0, 3)


@needs_compiler
def test_the_compiled_list_is_the_list_of_the_snapshot(library: Any) -> None:
    allocator = _mixed(library)
    for device in (0, 1, 2):
        assert _listed(device) == _expected(allocator, device)
    assert list_chunks(0, np.empty((8, 2), dtype=np.int64)) == (3, 3, 3 * 2048, {0, 0x55D0})


@needs_compiler
def test_more_chunks_than_the_table_has_rows_are_counted_and_not_written(library: Any) -> None:
    allocator = Allocator(library)
    allocator.segment(Segment(0, 0x100000, 0, True, [[5 * CHUNK_BYTES + 512, "free"]]))
    table = np.full((4, 2), -1, dtype=np.int64)
    assert list_chunks(0, table[:3])[0] == 6
    assert table[3].tolist() == [-1, -1]
    assert len(_listed()) == 6


@needs_compiler
def test_chunks_grow_with_the_memory(library: Any) -> None:
    allocator = Allocator(library)
    allocator.segment(Segment(0, 1 << 40, 0, True, [[MAX_CHUNKS * CHUNK_BYTES * 3, "free"]]))
    assert _listed() == _expected(allocator)
    assert len(_listed()) <= MAX_CHUNKS


@needs_compiler
@pytest.mark.parametrize("seed", range(6))
def test_the_events_of_thousands_of_splits_and_merges_lead_to_the_blocks_of_the_snapshot(
    library: Any, seed: int
) -> None:
    draw, allocator = random.Random(seed), Allocator(library)
    # Segments beside each other are never merged.
    for i in range(3):
        allocator.segment(Segment(0, (1 << 40) + i * 2 * MB, 0, False, [[2 * MB, "free"]]))
        allocator.segment(Segment(0, (2 << 40) + i * 20 * MB, 7, True, [[20 * MB, "free"]]))
    allocator.segment(Segment(0, 3 << 40, 7, True, [[8 * MB, "free"]], is_expandable=True))
    assert _listed() == _expected(allocator)
    before = library.fake_snapshots()
    for count in range(400):
        segment = draw.choice(allocator.segments)
        by_state = {
            state: [i for i, (_, is_) in enumerate(segment.blocks) if is_ == state]
            for state in STATES
        }
        if by_state["free"] and draw.random() < 0.6:
            index = draw.choice(by_state["free"])
            least = MB + 1 if segment.is_large and not segment.is_expandable else 0
            most = segment.blocks[index][0]
            if most >= least:
                allocator.take(
                    segment,
                    index,
                    draw.randint(least, most if draw.random() < 0.2 else max(least, most // 3)),
                )
        elif by_state["live"]:
            allocator.give(segment, draw.choice(by_state["live"]), pending=draw.random() < 0.3)
        elif by_state["pending"]:
            allocator.give(segment, draw.choice(by_state["pending"]))
        if count % 3 == 0:
            assert _listed() == _expected(allocator)
    assert library.fake_snapshots() == before, "the events did not suffice"


@needs_compiler
def test_a_changed_segment_is_read_by_a_snapshot_once(library: Any) -> None:
    allocator = _mixed(library)
    _listed()
    _listed(1)
    before = library.fake_snapshots()
    gone = allocator.segments.pop(2)
    allocator.report(SEGMENT_FREE, 0, gone.address, 2048)
    for _ in range(3):
        assert _listed() == _expected(allocator)
    _listed(1)
    assert library.fake_snapshots() == before + 1


@needs_compiler
def test_a_size_that_the_settings_rounded_up_does_not_make_live_memory_free(library: Any) -> None:
    allocator = Allocator(library)
    allocator.segment(Segment(0, 1 << 40, 0, False, [[2 * MB, "free"]]))
    _listed()
    before = library.fake_snapshots()
    allocator.take(allocator.segments[0], 0, 5000, unit=8192)
    assert _listed() == _expected(allocator)
    assert library.fake_snapshots() == before + 1


@needs_compiler
@pytest.mark.parametrize("action", [ALLOC, FREE_COMPLETED])
def test_an_event_of_unknown_memory_is_followed_by_a_snapshot(library: Any, action: int) -> None:
    allocator = _mixed(library)
    _listed()
    before = library.fake_snapshots()
    allocator.report(action, 0, 0x7F4000000000, 512)
    assert _listed() == _expected(allocator)
    assert library.fake_snapshots() == before + 1


@needs_compiler
def test_a_torch_that_calls_no_trackers_is_listed_by_snapshots(library: Any) -> None:
    library.fake_silence(True)
    try:
        allocator = _mixed(library)
        library.fake_silence(False)
        allocator.report(SEGMENT_ALLOC, 0, 0, 0)
        library.fake_silence(True)
        for _ in range(3):
            before = library.fake_snapshots()
            assert _listed() == _expected(allocator)
            assert library.fake_snapshots() == before + 1
            # As many bytes are free as before, elsewhere.
            blocks = allocator.segments[0].blocks
            blocks[1], blocks[2] = blocks[2], blocks[1]
            allocator.sync()
    finally:
        library.fake_silence(False)


@needs_compiler
def test_an_event_of_another_thread_during_the_snapshot_makes_it_try_again(library: Any) -> None:
    allocator = _mixed(library)
    before = library.fake_snapshots()
    library.fake_meanwhile(ALLOC, 0, _size(0x7F0000000200), _size(512))
    assert _listed() == _expected(allocator)
    assert library.fake_snapshots() == before + 2


@needs_compiler
def test_the_library_is_compiled_once_for_all_processes(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert compiled() is not None


def test_without_a_compiler_the_snapshot_is_used_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    with caplog.at_level(logging.WARNING):
        assert _listed() == [one[:2] for one in FREE]
    assert list_chunks(0, np.empty((8, 2), dtype=np.int64)) == (3, 3, 3 * 2048, {0, 0x55D0})
    assert list_chunks(3, np.empty((8, 2), dtype=np.int64)) == (0, 0, 0, set())
    assert list_chunks(0, np.empty((2, 2), dtype=np.int64))[0] == 3
    assert "torch's slower snapshot" in caplog.text and "g++" in caplog.text


@needs_compiler
def test_a_torch_that_the_source_does_not_fit_is_listed_by_its_snapshot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda_blocks, "SOURCE", "#include <no/such/header.h>")
    assert compiled() is None
    assert "no/such/header.h" in caplog.text


@pytest.mark.nightly
@needs_compiler
def test_the_source_fits_the_headers_of_the_installed_torch(links: str, tmp_path: Path) -> None:
    # A CPU build of torch has the headers, but for this one, which holds settings of the build.
    missing = tmp_path / "include/c10/cuda/impl/cuda_cmake_macros.h"
    missing.parent.mkdir(parents=True)
    missing.write_text("#pragma once\n")
    built = build(TORCH, f"-I{tmp_path / 'include'}", links)
    assert b"list_chunks" in built and b"CUDACachingAllocator9allocator" in built
