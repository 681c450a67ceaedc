"""`selftest --controls`: draws on right kernels, of which every finding is a false alarm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]
HOW = ("-n", "1")


def test_draws_on_right_kernels_have_no_finding(cli: Cli) -> None:
    code, told, _ = cli("selftest", "--controls", 8, "--seed", 4, *HOW)
    assert code == 0
    assert "false alarms: 0 in 8 cases on right kernels" in told and "faults caught" not in told


def test_a_false_alarm_fails(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A bound that no kernel can keep makes every float comparison a finding.
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys, importlib.abc\n"
        "import harness.judge.oracles.thresholds as t\n"
        "from dataclasses import replace\n"
        "bounds = t.BOUNDS.scoped(*(replace(row, ulps=0, floor=0, relative_l2=1e-30) for row in t.BOUNDS))\n"
        "bounds.__enter__()\n"
    )
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{site}:{root}")
    code, told, _ = cli("selftest", "--controls", 4, "--seed", 4, "--json", *HOW)
    assert code == 1
    assert json.loads(told)["totals"]["fail"] > 0


def test_controls_take_no_selector(cli: Cli) -> None:
    code, _, errors = cli("selftest", "decode-kernel", "--controls", 5, *HOW)
    assert code == 2 and "--controls: draws cases of the scenario `fuzz`" in errors
