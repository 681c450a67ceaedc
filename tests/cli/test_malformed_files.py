"""Malformed files of every kind are refused with one line and exit code 2."""

from __future__ import annotations

import pytest

from .malformed_files import answer, every


def test_there_are_a_hundred_and_twenty_of_five_kinds() -> None:
    assert len(every()) >= 120
    assert {one.kind for one in every()} == {
        "scenario",
        "script",
        "plug-in",
        "baseline",
        "run folder",
    }


@pytest.mark.first(2)
@pytest.mark.parametrize("one", every(), ids=lambda one: f"{one.kind}: {one.name}")
def test_it_is_refused_in_one_line(one, tmp_path) -> None:
    code, lines = answer(one, tmp_path)
    assert code == 2
    assert len(lines) == 1 and lines[0].startswith("mla-harness: ")
    assert "Traceback" not in lines[0] and "\x1b" not in lines[0]
