"""No test depends on how quick the machine is: it waits for what happened, with the limit of a hang alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "tests").rglob("*.py") if path.name != "waiting.py")
CLOCKS = {"monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"}
ENDED_BY_TIMEOUT = {"communicate", "run", "wait", "check_output", "check_call", "call", "join"}
"""Calls that end a wait for another process or thread at their `timeout`."""
ADVICE = "; wait for what happened: tests/waiting.py"


def is_clock(node: ast.AST) -> bool:
    """Whether a node reads the clock, as in `time.monotonic()`. Processor time is no clock."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CLOCKS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "time"
    )


def names_of(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def is_sleep(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep"


def limits(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line of each limit by the clock that is shorter than that of a hang, and what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert | ast.While):
            told = node.test
            if any(map(is_clock, ast.walk(told))) and "HANG_SECONDS" not in names_of(told):
                yield node.lineno, "compares the clock with a time"
        if isinstance(node, ast.For) and "range" in names_of(node.iter) and any(map(is_sleep, ast.walk(node))):
            yield node.lineno, "looks a number of times whether something has happened"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ENDED_BY_TIMEOUT:
            for limit in (keyword.value for keyword in node.keywords if keyword.arg == "timeout"):
                if isinstance(limit, ast.Constant) and limit.value is not None and limit.value < HANG_SECONDS:
                    yield node.lineno, f"ends a wait after {limit.value} s"


def test_nothing_hangs_on_the_clock() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}{ADVICE}"
        for path in FILES
        for line, what in limits(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "assert time.monotonic() - begun < 30",
        "while time.monotonic() < deadline and process.poll() is None: pass",
        "for _ in range(50):\n    if gone(): break\n    time.sleep(0.1)",
        "process.communicate(timeout=60)",
        "subprocess.run(words, timeout=2.5)",
    ],
)
def test_a_limit_by_the_clock_is_seen(text: str) -> None:
    assert len(list(limits(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "process.communicate(timeout=HANG_SECONDS)",
        "assert time.process_time() - before < 12",
        "assert time.monotonic() - begun < HANG_SECONDS",
        "for number in range(3): ask(number)",
    ],
)
def test_what_only_ends_a_hang_is_allowed(text: str) -> None:
    assert not list(limits(ast.parse(text)))
