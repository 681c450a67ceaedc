"""The speed of a judged kernel: figures beside what was timed in the same run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cell.client import unload
from harness.cli.judge import speed_words
from harness.core.cases import CellOf, MeasureSpeed
from harness.judge.speed import measure
from harness.run.cell_server import CellServer

KERNEL = """
import torch
from harness import kernel

seen = []

@kernel(op="mla_decode", name="timed", kv=("bf16",), gives_lse=False, shapes="deepseek")
def timed(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    first = float(q.flatten()[0])
    assert not seen or first == seen[0] or first not in seen, "the inputs of an earlier repeat"
    seen.append(first)
    return torch.zeros(*q.shape[:3], 512, dtype=q.dtype)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[CellServer]:
    with CellServer() as made:
        made.wait_until_ready()
        yield made


def test_a_kernel_is_timed_beside_the_reference_with_other_inputs_each_time(
    server: CellServer, tmp_path: Path
) -> None:
    file = tmp_path / "timed.py"
    file.write_text(KERNEL)
    where = CellOf(server=server.path)
    try:
        rows = measure(MeasureSpeed(cell=where, file=str(file), sizes=((2, 64),)))["rows"]
    finally:
        unload(where, str(file))
    (row,) = rows
    assert (row["requests"], row["keys"]) == (2, 64)
    assert row["microseconds"] >= 0 and row["beside"]["the float64 reference"] > 0


def test_figures_are_told_as_ratios() -> None:
    row = {"kernel": "mla_decode/m", "requests": 2, "keys": 1024, "microseconds": 50.0}
    told = speed_words(row | {"beside": {"Triton decode": 100.0, "one read of the cache": 10.0}})
    assert told == (
        "mla_decode/m, 2 requests of 1,024 keys: 50 us, 0.5 x Triton decode,"
        " 5 x one read of the cache"
    )
