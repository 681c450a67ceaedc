"""`--executor` and `--ray-address`: what does not fit is refused in one line, before anything is
started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--executor", "slurm"], "--executor slurm: unknown executor; choose one of local, ray"),
        (
            ["--ray-address", "auto"],
            "--ray-address: is for --executor ray; add it, or leave the address out",
        ),
        (
            ["--executor", "ray", "--sanitizer", "memcheck"],
            "--sanitizer: watches a case on this machine; leave out --executor",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(
    cli: Cli, scenarios: Path, words: list[str], message: str
) -> None:
    code, out, err = cli("run", "--scenarios", scenarios, *words)
    assert (code, out, err.strip()) == (2, "", f"mla-harness: {message}")


def test_without_ray_it_is_said_how_to_install_it(
    cli: Cli, scenarios: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = cli("run", "--scenarios", scenarios, "--executor", "ray")
    assert code == 2
    assert err.strip() == "mla-harness: ray not installed: pip install '.[ray]'"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (
            "127.0.0.1:9",
            (
                "no Ray cluster answers: [Errno 111] Connection refused; run this on a machine of"
                " the cluster"
            ),
        ),
        ("nonsense", "not of the form HOST:PORT; give that of a cluster, or auto"),
        ("ray://127.0.0.1:10001", "not of the form HOST:PORT; give that of a cluster, or auto"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
    ],
)
def test_an_address_where_no_cluster_answers_is_refused_at_once(
    cli: Cli, scenarios: Path, address: str, why: str
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    code, _, err = cli(
        "run", "--scenarios", scenarios, "--executor", "ray", "--ray-address", address
    )
    assert (
        code == 2
        and err.startswith(f"mla-harness: --ray-address {address}: {why}")
        and err.count("\n") == 1
    )


def test_the_address_of_the_environment_is_used(
    cli: Cli, scenarios: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    assert (
        "--ray-address 127.0.0.1:9: no Ray cluster answers"
        in cli("selftest", "--scenarios", scenarios, "--executor", "ray")[2]
    )
