"""Whose error it is that ends a run of the engine: the engine's, or that of what watches it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import KernelError
from harness.judge.targets.engine_errors import ENGINE, PROBES, errors_of_the_engine


def within(folder: Path, call: Callable[[], object]) -> Callable[[], object]:
    """A function that stands in a file of `folder`, and calls `call`."""
    code = compile("def run():\n    return call()\n", str(folder / "any.py"), "exec")
    names = {"call": call}
    exec(code, names)
    return names["run"]


def broken() -> None:
    assert False, "no owner"  # noqa: B011


@pytest.mark.parametrize(
    "call",
    [
        within(ENGINE, broken),
        # A twin of a step: the probe runs the engine's code once more.
        within(ENGINE, within(PROBES, within(ENGINE / "schedule", broken))),
    ],
)
def test_an_assertion_of_the_engine_is_a_finding_whoever_runs_its_code(
    call: Callable[[], object],
) -> None:
    with (
        pytest.raises(KernelError, match="the engine raised AssertionError"),
        errors_of_the_engine(),
    ):
        call()


def test_an_assertion_of_a_probe_is_ours() -> None:
    with pytest.raises(AssertionError), errors_of_the_engine():
        within(ENGINE, within(PROBES, broken))()
