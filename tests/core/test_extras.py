"""The core is enough for a run.

What an extra brings is asked for in one line, where it is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.extras import PACKAGES, MissingPackage, lazily, require, why_not
from tests.transcripts import Approved

ROOT = Path(__file__).parents[2]
WITHOUT = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Blocked())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.partition(".")[0] in {names} else real(name, package)
"""  # noqa: E501


def test_a_missing_package_is_named_with_its_extra_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    monkeypatch.setitem(PACKAGES, "no_such_package", ("no-such-package", "reports"))
    absent = lazily("no_such_package")
    with approved.raises(MissingPackage):
        absent.DataFrame  # noqa: B018
    monkeypatch.setitem(PACKAGES, "json", ("json", "reports"))
    assert why_not(["json"]) is None
    with pytest.raises(MissingPackage):
        require(["no_such_package"])


@pytest.fixture
def core(tmp_path: Path) -> dict[str, str]:
    """The environment of a process, and of its workers, that finds no package of an extra."""
    (tmp_path / "sitecustomize.py").write_text(
        WITHOUT.replace("{names}", repr(set(PACKAGES) | {"datasets", "pytest"}))
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "MLA_HARNESS_HISTORY": str(tmp_path / "runs")}


def harness(core: dict[str, str], cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness.cli.main", *words]
    return subprocess.run(command, cwd=cwd, env=core, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_a_run_with_the_core_alone_is_green_and_skips_accuracy_with_the_reason(
    core: dict[str, str], tmp_path: Path, approved: Approved
) -> None:
    selectors = ("merge-kernel", "kv-cache-full[accuracy=gsm_symbolic]")
    for _ in range(2):
        done = harness(
            core,
            tmp_path,
            "run",
            *selectors,
            "-n",
            "1",
            "--scenarios",
            str(ROOT / "scenarios"),
            "--json",
        )
        assert done.returncode == 0, done.stderr
        (skipped,) = [
            case for case in json.loads(done.stdout)["cases"] if case["verdict"] == "skip"
        ]
        approved(skipped["reason"])
    assert "trends" not in done.stderr, "they need no extra"
    refused = harness(core, tmp_path, "report", "latest", "--pivot", "kernel/pattern")
    assert refused.returncode == 2 and "pip install '.[reports]'" in refused.stderr
    run, _ = (tmp_path / "reports" / "runs").iterdir()
    assert {"report.html", "results.csv", "junit.xml"} <= {path.name for path in run.iterdir()}


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("serve-check", "http://127.0.0.1:9/v1", "--script", "abort"), "accuracy"),
        (
            ("epochs", "--task", "gsm_symbolic", "--model", "server:http://127.0.0.1:9/v1"),
            "accuracy",
        ),
        (("epochs", "--task", "gsm_symbolic", "--model", "engine:canary-mla"), "accuracy"),
        (("run", "merge-kernel", "--executor", "ray"), "ray"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else value,
)
def test_what_needs_an_extra_says_so_in_one_line(
    core: dict[str, str], tmp_path: Path, words: tuple[str, ...], extra: str, approved: Approved
) -> None:
    done = harness(core, tmp_path, *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    approved(done.stderr)


def test_commands_and_targets_of_all_systems_are_imported_without_an_extra(
    core: dict[str, str],
) -> None:
    code = "import importlib, harness.cli.commands as c\n"
    code += "for name in c.COMMANDS: c.Commands(name='all').get_command(None, name)\n"
    code += "from harness.core.catalog import SYSTEMS\n"
    code += "for s in SYSTEMS: s.target and importlib.import_module(s.target.partition(':')[0])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=core,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
