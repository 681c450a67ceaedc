"""One scan: what fires, what stays silent, what is kept when the ring wraps."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.memory.first_nan.recorder import StepNotes, describe
from harness.memory.first_nan.table import Slot, Table
from harness.memory.triton_interpreter import interpreter_is_on
from tests.waiting import HANG_SECONDS

HERE = Path(__file__).parent
FLOATS = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
)


def table(live: int = -1, **options: int) -> Table:
    made = Table(torch.device("cpu"), **options)
    made.live.fill_(live)
    return made


def watch(
    recorder: Table, value: torch.Tensor, op: str = "op", axis: int | None = 0, limit: int = -1
) -> None:
    recorder.watch(op, Slot(op, "out", call=op, limit=limit), value, axis)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_nan_in_a_live_row_is_noted_with_its_place_and_bits(dtype: torch.dtype) -> None:
    recorder, value = table(), torch.ones(4, 2, 3).to(dtype)
    value[2, 1, 0] = torch.nan
    watch(recorder, value)
    [hit] = recorder.hits()
    assert (hit.step, hit.index, hit.slot.op) == (0, (2, 3), "op")
    assert hit.bits.endswith(str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype != torch.float8_e4m3fn])
def test_an_infinity_is_noted_too(dtype: torch.dtype) -> None:
    recorder, value = table(), torch.ones(2, 3).to(dtype)
    value[1, 2] = -torch.inf
    watch(recorder, value)
    assert [hit.index for hit in recorder.hits()] == [(1, 2)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_and_smallest_numbers_are_not(dtype: torch.dtype) -> None:
    recorder, info = table(), torch.finfo(dtype)
    edge = [info.max, info.min, info.tiny, 0.0, -0.0, info.smallest_normal]
    watch(recorder, torch.tensor([edge], dtype=torch.float64).to(dtype))
    assert recorder.hits() == []
    assert recorder.scanned() == [recorder.slots[0]]


def test_a_nan_in_a_row_of_padding_is_nobodys() -> None:
    recorder, value = table(live=2), torch.zeros(4, 3)
    value[2:] = torch.nan
    watch(recorder, value)
    assert recorder.hits() == []
    recorder.live.fill_(3)
    watch(recorder, value)
    assert [hit.index for hit in recorder.hits()] == [(2, 0)]


def test_with_no_live_row_nothing_is_looked_at() -> None:
    recorder = table(live=0)
    watch(recorder, torch.full((2, 2), torch.nan))
    assert recorder.hits() == [] and recorder.scanned() == []


def test_rows_may_lie_along_another_axis_and_need_not_be_dense() -> None:
    recorder, value = table(live=2), torch.zeros(5, 3, 4)
    value[:, 2] = torch.nan
    watch(recorder, value, axis=1)
    assert recorder.hits() == []
    value[4, 1, 2] = torch.nan
    watch(recorder, value, axis=1)
    assert [hit.index for hit in recorder.hits()] == [(1, 18)]


@pytest.mark.parametrize("bad", [-1, 8])
def test_integers_are_judged_by_their_range(bad: int) -> None:
    recorder, ids = table(), torch.tensor([[0, 7], [3, 2]], dtype=torch.int32)
    watch(recorder, ids, limit=8)
    assert recorder.hits() == []
    ids[1, 0] = bad
    watch(recorder, ids, limit=8)
    assert [(hit.index, hit.bits) for hit in recorder.hits()] == [((1, 0), f"{bad} int32")]


def test_the_first_hit_of_a_tensor_is_kept_and_later_ones_are_events() -> None:
    recorder, value = table(), torch.zeros(2, 2)
    for step in range(3):
        recorder.set_clock(step, "decode")
        value[1 - min(step, 1), 0] = torch.nan if step else 0.0
        watch(recorder, value)
    [hit] = recorder.hits()
    assert (hit.step, hit.index, hit.phase) == (1, (0, 0), "decode")
    assert [step for _, step, _ in recorder.recent()[0]] == [1, 2]


def test_a_ring_that_wraps_keeps_the_latest_events_and_says_how_many_are_lost() -> None:
    recorder = table(ring=4)
    for step in range(5):
        recorder.set_clock(step, "decode")
        for op in ("a", "b"):
            watch(recorder, torch.full((1, 1), torch.nan), op)
    events, lost = recorder.recent()
    assert [(slot.op, step) for slot, step, _ in events] == [("a", 3), ("b", 3), ("a", 4), ("b", 4)]
    assert lost == 6
    found = describe(recorder)
    assert found is not None and (found.writer, found.step) == ("a", 0)


def test_rearmed_it_forgets_and_watches_on() -> None:
    recorder = table()
    watch(recorder, torch.full((1, 1), torch.nan))
    recorder.rearm()
    assert recorder.hits() == [] and describe(recorder) is None
    watch(recorder, torch.full((1, 1), torch.inf))
    assert len(recorder.hits()) == 1


def test_the_program_decides_who_was_first_and_not_the_number_of_the_slot() -> None:
    recorder, bad = table(), torch.full((1, 1), torch.nan)
    for op in ("a", "b"):
        watch(recorder, torch.zeros(1, 1), op)
    recorder.set_clock(1, "decode")
    watch(recorder, bad, "b")
    watch(recorder, bad, "a")
    found = describe(recorder)
    assert found is not None and found.writer == "b"


def test_a_full_table_watches_nothing_more() -> None:
    recorder = table(max_slots=1)
    watch(recorder, torch.zeros(1, 1), "a")
    watch(recorder, torch.full((1, 1), torch.nan), "b")
    assert recorder.hits() == []


def test_what_stands_beside_a_call_is_told_and_never_accused() -> None:
    recorder, bad = table(), torch.full((1, 2), torch.nan)
    recorder.watch("tail", Slot("op", "tail", "beside", call=0), bad)
    recorder.watch("q", Slot("op", "q", "input", call=0), torch.zeros(1, 2))
    assert describe(recorder) is None
    recorder.set_clock(1, "decode")
    recorder.watch("tail", Slot("op", "tail", "beside", call=0), bad)
    recorder.watch("out", Slot("op", "out", call=0), bad)
    found = describe(recorder)
    assert found is not None
    assert (found.tensor, found.finite, found.not_finite) == ("out", ("q",), ("tail",))


def test_the_request_is_the_one_whose_row_it_was() -> None:
    recorder, notes, value = table(), StepNotes(), torch.zeros(4, 2)
    value[3, 1] = torch.nan
    notes.note(0, {"batch": [("7", 0, 2), ("9", 2, 4)]})
    recorder.watch("x", Slot("op", "out", rows="batch"), value)
    recorder.watch("y", Slot("op", "other"), value)
    found = describe(recorder, notes, rank=3)
    assert found is not None and (found.request, found.rank) == ("9", 3)
    assert notes.request(recorder.hits()[1]) == ""


@pytest.mark.skipif(interpreter_is_on(), reason="this process interprets: the file runs by itself")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.nightly
def test_the_triton_scan_leaves_the_buffers_that_the_cpu_leaves() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            str(HERE / "interpreted_scan.py"),
        ],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=HERE.parent.parent,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)


def test_results_of_one_call_are_told_in_the_calls_order_whichever_was_noted_first() -> None:
    recorder, bad = table(), torch.full((1, 2), torch.nan)
    for name in ("out", "lse"):
        recorder.slot(name, Slot("op", name, call=0))
    recorder.slot("later", Slot("other", "out", call=1))
    for number in (1, 2, 0):
        recorder.scan(number, bad)
    assert [(hit.slot.op, hit.slot.tensor) for hit in recorder.hits()] == [
        ("op", "out"),
        ("op", "lse"),
        ("other", "out"),
    ]
