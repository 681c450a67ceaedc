"""`--executor` and `--ray-address`: what does not fit is refused in one line, before anything is
started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transcripts import Approved

Cli = Callable[..., tuple[int, str, str]]


def test_options_that_do_not_fit_are_refused(cli: Cli, scenarios: Path, approved: Approved) -> None:
    for words in [
        ["--executor", "slurm"],
        ["--ray-address", "auto"],
        ["--executor", "ray", "--sanitizer", "memcheck"],
    ]:
        code, out, err = cli("run", "--scenarios", scenarios, *words)
        assert code == 2 and out == ""
        approved(err.strip(), " ".join(words))


def test_without_ray_it_is_said_how_to_install_it(
    cli: Cli, scenarios: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = cli("run", "--scenarios", scenarios, "--executor", "ray")
    assert code == 2
    approved(err.strip())


def test_an_address_where_no_cluster_answers_is_refused_at_once(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    for address in [
        "127.0.0.1:9",
        "nonsense",
        "ray://127.0.0.1:10001",
        "127.0.0.1:99999",
    ]:
        code, _, err = cli(
            "run", "--scenarios", scenarios, "--executor", "ray", "--ray-address", address
        )
        assert code == 2 and err.count("\n") == 1
        approved(err, address)


def test_the_address_of_the_environment_is_used(
    cli: Cli, scenarios: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    approved(cli("selftest", "--scenarios", scenarios, "--executor", "ray")[2])
