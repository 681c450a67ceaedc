"""The line that allocated is that of the program, not of a package that allocates for others."""

from __future__ import annotations

import importlib.util
import traceback
from pathlib import Path

import torch
from torch_poison import frames

CODE = """
from torch_poison.frames import line_of_caller
def allocate():
    return line_of_caller()
"""


def test_frames_of_the_poison_and_of_torch_allocate_for_others() -> None:
    assert frames.allocates_for_others(frames.__file__)
    assert frames.allocates_for_others(torch.__file__)
    assert frames.allocates_for_others("<string>")
    assert not frames.allocates_for_others(__file__)


def test_a_package_that_asks_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "mine" / "pool.py"
    file.parent.mkdir()
    file.write_text(CODE)
    spec = importlib.util.spec_from_file_location("pool", file)
    assert spec is not None and spec.loader is not None
    pool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pool)
    assert pool.allocate().startswith("pool.py:4 in allocate")
    frames.skip_package(str(file.parent))
    assert pool.allocate().startswith("test_frames.py:")


def test_a_line_is_told_with_its_file_its_function_and_its_text() -> None:
    (frame,) = traceback.extract_stack(limit=1)
    assert frames.line_of(frame).endswith("traceback.extract_stack(limit=1)")
