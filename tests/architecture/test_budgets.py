"""Files stay small by a rule of their own. This one holds the sum: each room has a budget of lines."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".j2", ".js", ".css", ".html"}

BUDGETS = {
    "harness": 42,
    "harness/accuracy": 2480,
    "harness/cli": 2770,
    "harness/core": 4690,
    "harness/diagnose": 2985,
    "harness/engine": 6126,
    "harness/engines": 10000,
    "harness/judge": 6515,
    "harness/kernels": 5005,
    "harness/memory": 3930,
    "harness/pytest": 1211,
    "harness/report": 2811,
    "harness/run": 3135,
    "harness/scenario": 2710,
    "harness/store": 1243,
    "tools": 248,
}
"""Room -> its most lines: what it had on the day of this table, and 2 %. `harness` are the files beside the rooms."""


def lines(folder: Path, *, deep: bool = True) -> int:
    """The lines of the code and the templates of a folder."""
    files = folder.rglob("*") if deep else folder.glob("*")
    return sum(len(file.read_bytes().splitlines()) for file in files if file.suffix in SUFFIXES)


def over(room: str, found: int, budget: int) -> str:
    """What is wrong with a room of `found` lines; empty if it keeps its budget."""
    if found <= budget:
        return ""
    return (
        f"{room} has {found} lines, its budget is {budget}: whoever goes over it deletes something "
        "or says in the commit why the budget rises"
    )


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_its_budget(room: str) -> None:
    problem = over(room, lines(ROOT / room, deep=room != "harness"), BUDGETS[room])
    assert not problem, problem


def test_each_room_has_a_budget() -> None:
    rooms = {f"harness/{folder.name}" for folder in (ROOT / "harness").iterdir() if any(folder.rglob("*.py"))}
    assert rooms | {"harness", "tools"} == set(BUDGETS)


def test_a_room_over_its_budget_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "long.py").write_text("x = 1\n" * 11)
    (tmp_path / "deep" / "notes.txt").write_text("not code\n")
    assert lines(tmp_path) == 11 and lines(tmp_path, deep=False) == 0
    assert over("room", 11, 11) == "" and "deletes something" in over("room", 11, 10)
