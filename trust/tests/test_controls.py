"""`selftest --controls`: draws on right kernels, of which every finding is a false alarm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transcripts import Approved, lines_with

Cli = Callable[..., tuple[int, str, str]]
HOW = ("-n", "1")


@pytest.mark.nightly
def test_draws_on_right_kernels_have_no_finding(cli: Cli, approved: Approved) -> None:
    code, told, _ = cli("selftest", "--controls", 8, "--seed", 4, *HOW)
    assert code == 0
    assert "faults caught" not in told
    approved(lines_with(told, "false alarms: 0"))


@pytest.fixture
def at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Has each process run some code as it starts."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    return (tmp_path / "sitecustomize.py").write_text


def test_a_false_alarm_fails(cli: Cli, at_start: Callable[[str], object]) -> None:
    # A bound that no kernel can keep makes every float comparison a finding.
    at_start(
        "import harness.evidence.thresholds as t\nfrom dataclasses import replace\nbounds ="
        " t.BOUNDS.scoped(*(replace(row, ulps=0, floor=0, relative_l2=1e-30) for row in"
        " t.BOUNDS))\nbounds.__enter__()\n"
    )
    code, told, _ = cli("selftest", "--controls", 4, "--seed", 4, "--json", *HOW)
    assert code == 1
    assert json.loads(told)["totals"]["fail"] > 0


@pytest.mark.nightly
def test_a_case_that_the_time_limit_ends_is_not_judged_and_no_false_alarm(
    cli: Cli, at_start: Callable[[str], object], approved: Approved
) -> None:
    at_start("import time, torch\ntorch.manual_seed = lambda seed: time.sleep(3600)\n")
    code, told, _ = cli("selftest", "--controls", 2, "--seed", 4, "--timeout", 0.2, *HOW)
    assert code == 3
    approved(lines_with(told, "false alarms: 0"))


def test_controls_take_no_selector(cli: Cli, approved: Approved) -> None:
    code, _, errors = cli("selftest", "decode-kernel", "--controls", 5, *HOW)
    assert code == 2
    approved(errors)
