"""The compiled list of free blocks reads a snapshot of the allocator as torch's own list does."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the compiled list is kept in Triton's cache")

from harness.memory.poison import cuda_blocks
from harness.memory.poison.cuda_blocks import build, by_library, by_snapshot, compiled, free_blocks

TORCH = Path(torch.__file__).parent
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")

STATES = {"live": "active_allocated", "pending": "active_awaiting_free", "free": "inactive"}
SIZES = {"live": 512, "pending": 1024, "free": 2048}
SEGMENTS = (
    (0, 0x7F0000000000, 0, ("live", "free", "pending", "free")),
    (1, 0x7F1000000000, 0, ("free",)),
    (0, 0x7F2000000000, 0x55D0, ("free",)),
    (0, 0x7F3000000000, 0x66D0, ("live",)),
)
FREE = [[0x7F0000000200, 2048, 0], [0x7F0000000E00, 2048, 0], [0x7F2000000000, 2048, 0x55D0]]


def _snapshot(_: object) -> dict[str, Any]:
    """The snapshot of fake_torch's header, as torch shows it to Python."""
    segments = []
    for device, address, stream, kinds in SEGMENTS:
        blocks = []
        for kind in kinds:
            blocks.append({"address": address, "size": SIZES[kind], "state": STATES[kind]})
            address += SIZES[kind]
        segments.append({"device": device, "stream": stream, "blocks": blocks})
    return {"segments": segments}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", _snapshot, raising=False)
    compiled.cache_clear()
    yield
    compiled.cache_clear()


@pytest.fixture
def links(tmp_path: Path) -> str:
    """Arguments with which g++ finds a `libc10_cuda`: that of a CPU build of torch is missing."""
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(tmp_path / "libc10_cuda.so")], check=True)
    return f"-L{tmp_path}"


@pytest.fixture
def fake(links: str, monkeypatch: pytest.MonkeyPatch) -> None:
    includes = f"-I{Path(__file__).parent / 'fake_torch/include'}"
    # What is not needed is not linked, so the library loads after the directory of this test is gone.
    monkeypatch.setattr(cuda_blocks, "build", lambda torch_dir: build(torch_dir, includes, links, "-Wl,--as-needed"))


def test_the_snapshot_lists_what_is_free_and_not_what_is_pending() -> None:
    assert by_snapshot(0).tolist() == FREE
    assert by_snapshot(3).shape == (0, 3)


@needs_compiler
def test_the_compiled_list_is_the_list_of_the_snapshot(fake: None) -> None:
    library = compiled()
    assert library is not None
    for device in (0, 1, 2, 3):
        assert by_library(library, device).tolist() == by_snapshot(device).tolist()
    addresses, sizes, streams = free_blocks(0)
    assert (addresses.tolist(), sizes.tolist()) == ([one[0] for one in FREE], [2048] * 3)
    assert streams == {0, 0x55D0}


@needs_compiler
@pytest.mark.parametrize("count", [1 << 12, (1 << 12) + 1, 30_000])
def test_a_list_longer_than_the_buffer_is_read_again(fake: None, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setenv("FAKE_FREE_BLOCKS", str(count))
    blocks = by_library(compiled(), 2)
    assert blocks[:, 0].tolist() == [0x100000 + 2048 * i for i in range(count)]


@needs_compiler
def test_the_library_is_compiled_once_for_all_processes(fake: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled() is not None
    compiled.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert compiled() is not None


def test_without_a_compiler_the_snapshot_is_used_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    with caplog.at_level(logging.WARNING):
        addresses, _, _ = free_blocks(0)
    assert addresses.tolist() == [one[0] for one in FREE]
    assert "torch's slower snapshot" in caplog.text and "g++" in caplog.text


@needs_compiler
def test_a_torch_that_the_source_does_not_fit_is_listed_by_its_snapshot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda_blocks, "SOURCE", "#include <no/such/header.h>")
    assert compiled() is None
    assert "no/such/header.h" in caplog.text


@needs_compiler
def test_the_source_fits_the_headers_of_the_installed_torch(links: str, tmp_path: Path) -> None:
    # A CPU build of torch has the headers, but for this one, which holds settings of the build.
    missing = tmp_path / "include/c10/cuda/impl/cuda_cmake_macros.h"
    missing.parent.mkdir(parents=True)
    missing.write_text("#pragma once\n")
    built = build(TORCH, f"-I{tmp_path / 'include'}", links)
    assert b"list_free" in built and b"CUDACachingAllocator9allocator" in built
