"""`mla-harness repro PR` judges what ran, by the case, the oracle and the memory that a scenario
declares.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.report.wording import reproduce_case
from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run
from tests.transcripts import Approved

SHIPPED = Path(__file__).parents[2] / "scenarios"
Cli = Callable[..., tuple[int, str, str]]
HAS_VLLM = importlib.util.find_spec("vllm") is not None


def shipped(folder: Path, *names: str) -> Path:
    """A folder with some of the shipped scenarios."""
    folder.mkdir()
    for name in names:
        (path,) = SHIPPED.rglob(f"{name}.yaml")
        shutil.copy(path, folder)
    return folder


def repro(cli: Cli, folder: Path, *more: object) -> tuple[int, str, str]:
    return cli("repro", "36540", "--scenarios", folder, "-n", 1, "--shrink-seconds", 0, *more)


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed: its scenarios run")
def test_scenarios_that_cannot_run_here_are_left_out_of_the_verdict(
    cli: Cli, tmp_path: Path
) -> None:
    folder = shipped(
        tmp_path / "shipped", "merge-kernel", "vllm-mixed-context", "vllm-host-prefill-merge"
    )
    code, out, err = repro(cli, folder)
    assert (code, err) == (0, "")
    assert "caught merge.ignore-context-count" in out
    assert "gets through" not in out
    assert out.count("\nskipped ") == 2 and ": vLLM is" in out


@pytest.mark.nightly
def test_a_nightly_scenario_of_a_bug_is_left_out(
    cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    folder = shipped(tmp_path / "shipped", "decode-empty-rows", "vllm-survey")
    code, out, err = cli("repro", "57017", "--scenarios", folder, "-n", 1, "--shrink-seconds", 0)
    assert (code, err) == (0, "") and "caught decode.zero-length-row-nan" in out
    (folder / "decode-empty-rows.yaml").unlink()
    code, _, err = cli("repro", "57017", "--scenarios", folder, "-n", 1)
    assert code == 2
    approved(err)


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed: its scenarios run")
def test_a_bug_of_which_nothing_runs_here_is_not_green(cli: Cli, tmp_path: Path) -> None:
    code, out, err = repro(cli, shipped(tmp_path / "shipped", "vllm-mixed-context"), "--json")
    assert code == 2 and "nothing ran" in err
    found = json.loads(out)
    assert (
        found["ok"] is False
        and found["faults"] == []
        and {row["verdict"] for row in found["scenarios"]} == {"skip"}
    )


@pytest.mark.parametrize(
    ("declared", "wrong", "why"),
    [
        ("caught_by: finite", "caught_by: sentinel", "expected sentinel to fire"),
        ("on: {num_with_context: 7}", "on: {num_with_context: 12}", "the case ended in pass"),
    ],
)
def test_a_fault_that_is_not_caught_as_declared_is_missed(
    cli: Cli, scenarios: Path, declared: str, wrong: str, why: str
) -> None:
    file = scenarios / "merge.yaml"
    assert declared in file.read_text()
    file.write_text(file.read_text().replace(declared, wrong))
    code, out, err = repro(cli, scenarios, "--json")
    assert code == 1, err
    assert "MISSED merge.ignore-context-count" in err and why in err
    (fault,) = json.loads(out)["faults"]
    assert fault["caught"] is False and why in fault["reason"]


def test_a_fault_with_another_blame_than_declared_is_seen(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    file = scenarios / "merge.yaml"
    file.write_text(
        file.read_text().replace("blames: [context.output, context.lse]", "blames: [kv.tail]")
    )
    code, out, err = repro(cli, scenarios, "--json")
    assert code == 1, err
    assert "WRONG BLAME merge.ignore-context-count" in err and "MISSED" not in err
    (fault,) = json.loads(out)["faults"]
    assert (fault["seen"], fault["caught"]) == (True, False)
    approved(fault["reason"])


@pytest.mark.parametrize(
    ("name", "what", "again"),
    [
        ("merge", "scenario", "run merge"),
        ("merge[num_with_context=7]", "case", "run 'merge[num_with_context=7]'"),
    ],
)
def test_the_name_of_a_scenario_is_told_from_a_reference(
    cli: Cli, scenarios: Path, name: str, what: str, again: str, approved: Approved
) -> None:
    code, out, err = cli("repro", name, "--scenarios", scenarios)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert f"mla-harness {again}" in err
    approved(err)


def test_an_engine_is_imported_from_the_folder_that_the_user_names(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "checkout" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('the parent imports no engine')\n")
    (package / "_version.py").write_text("__version__ = version = '0.99.1.dev3+g1234'\n")
    code, _, err = cli(
        "run", "merge-kernel", "--engine-path", package.parent, "-n", 1, "--history", "none"
    )
    assert code == 0, err
    store = RunStore.open(find_run("latest", DEFAULT_RUNS))
    assert store.plan.environment["engines"]["vllm"] == "0.99.1.dev3+g1234"
    assert store.plan.options["engine_path"] == str(package.parent)
    assert f"--engine-path {package.parent}" in reproduce_case("x", None, store.plan.options)
    code, _, err = cli("repro", 36540, "--engine-path", tmp_path)
    assert code == 2
    approved(err)
