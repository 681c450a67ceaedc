"""A checkout has commands and kernels that an installed harness lacks, and names nowhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.commands import COMMANDS
from harness.core import checkout
from tests.transcripts import Approved

Cli = Callable[..., tuple[int, str, str]]
ADDED = {"bench", "canary", "mutants"}


def test_a_checkout_adds_its_commands_and_kernels() -> None:
    assert checkout.commands().keys() == ADDED <= COMMANDS.keys()
    assert {spec.short_name for spec in checkout.kernels("sound-7")} == {"sound-7"}
    assert checkout.kernels("tiled") == ()


def test_an_installed_harness_has_neither(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    assert checkout.commands() == {}
    code, _, err = cli("run", "write-kv-kernel", "--kernel", "sound-7777")
    assert (code, err.count("\n")) == (2, 1) and "sound-7777" in err
    monkeypatch.setattr("harness.cli.commands.COMMANDS", {"run": COMMANDS["run"]})
    for name in ADDED:
        code, _, err = cli(name)
        assert (code, err.count("\n")) == (2, 1) and "No such command" in err


def test_the_program_of_mutants_tells_an_error_in_one_line(approved: Approved) -> None:
    command = [sys.executable, "-m", "trust.mutants"]
    done = subprocess.run(command, cwd=checkout.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    approved(done.stderr)
