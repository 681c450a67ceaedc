"""No test and no verdict depends on how quick the machine is: a limit by the clock is the user's,
or it ends a hang.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for folder in ("tests", "poison/tests", "adapters/*/tests", "trust/tests", "trust/disturbances")
    for path in ROOT.glob(f"{folder}/**/*.py")
    if path.name != "waiting.py"
)
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
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sleep"
    )


def limits(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line of each limit by the clock that is shorter than that of a hang, and what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert | ast.While):
            told = node.test
            if any(map(is_clock, ast.walk(told))) and "HANG_SECONDS" not in names_of(told):
                yield node.lineno, "compares the clock with a time"
        if (
            isinstance(node, ast.For)
            and "range" in names_of(node.iter)
            and any(map(is_sleep, ast.walk(node)))
        ):
            yield node.lineno, "looks a number of times whether something has happened"
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ENDED_BY_TIMEOUT
        ):
            for limit in (keyword.value for keyword in node.keywords if keyword.arg == "timeout"):
                if (
                    isinstance(limit, ast.Constant)
                    and limit.value is not None
                    and limit.value < HANG_SECONDS
                ):
                    yield node.lineno, f"ends a wait after {limit.value} s"


def test_nothing_hangs_on_the_clock() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}{ADVICE}"
        for path in FILES
        for line, what in limits(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


SHORT = 30.0
"""A limit of the product that is shorter than this, in seconds, may end something that is only
slow.
"""
PACES = {
    "TICK_SECONDS": "how often a wait looks again",
    "POLL_SECONDS": "how often a wait looks again",
    "LOOK_SECONDS": "how often a wait looks again",
    "PROGRESS_SECONDS": "how often progress is told",
    "SYNC_SECONDS": "how often a file is synced",
    "LISTED_SECONDS": "how old a list of nodes may be",
    "AVOIDED_SECONDS": "how long a lost node gets no work, which others do",
    "CHEAP_SECONDS": "an import that a fork repeats, instead of the process before it",
    "SECOND_TRY_SECONDS": "after which a second worker is started beside the first",
    "TIME_SECONDS": "the least change of a time that is shown",
    "MAX_SHRINK_SECONDS": "the default of an option of `repro`",
}
"""Short times that end nothing, or that an option of the user replaces."""


def short_limits(tree: ast.Module) -> Iterator[str]:
    """The names of short times at the top of a module, and short times that a call is given as its
    `timeout`.
    """
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, float)
        ):
            name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
            if name.endswith("SECONDS") and node.value.value < SHORT:
                yield name
    for node in ast.walk(tree):
        for limit in node.keywords if isinstance(node, ast.Call) else ():
            if (
                limit.arg == "timeout"
                and isinstance(limit.value, ast.Constant)
                and 0 < (limit.value.value or 0) < SHORT
            ):
                yield f"timeout={limit.value.value}"


def test_a_limit_of_the_product_is_the_users_or_only_ends_a_hang() -> None:
    found = {
        name: path.name
        for folder in ("harness", "adapters/*/mla_harness_*")
        for path in sorted(ROOT.glob(f"{folder}/**/*.py"))
        for name in short_limits(ast.parse(path.read_text()))
    }
    assert found.keys() == PACES.keys(), {
        name: found.get(name) for name in found.keys() ^ PACES.keys()
    }


def test_a_short_limit_of_the_product_is_seen() -> None:
    assert list(short_limits(ast.parse("END_SECONDS = 5.0\nget(url, timeout=2.5)"))) == [
        "END_SECONDS",
        "timeout=2.5",
    ]
    assert not list(short_limits(ast.parse("END_SECONDS = 60.0\nget(url, timeout=given)")))


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
