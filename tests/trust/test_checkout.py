"""Trust tests and benchmarks need a checkout, and say so in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import commands, selftest
from harness.core import catalog

Cli = Callable[..., tuple[int, str, str]]
MESSAGE = "needs a checkout of the project"


def test_an_installed_harness_names_what_is_missing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "TRUST", tmp_path)
    monkeypatch.setattr(catalog, "TRUST", tmp_path)
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    for words, what in (
        (["selftest", "write-kv-kernel", "--mutants", "1"], "--mutants"),
        (["run", "write-kv-kernel", "--kernel", "sound-7"], "kernel sound-7"),
        (["bench", "write-kv-kernel"], "bench"),
        (["canary", "train", "--task", "all"], "canary"),
    ):
        code, _, err = cli(*words)
        assert (
            code == 2 and err.startswith(f"mla-harness: {what}: {MESSAGE}") and err.count("\n") == 1
        ), err
