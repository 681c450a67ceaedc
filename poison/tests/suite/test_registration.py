"""The plug-in is found however it is asked for, never twice, and needs no harness."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

POISON = Path(__file__).parents[2]
EXAMPLE = POISON.parent / "examples" / "rowkernels"


@pytest.mark.parametrize("asked", ["conftest", "option", "both"])
def test_plugin_is_registered_once_however_it_is_asked_for(
    project: pytest.Pytester, asked: str
) -> None:
    name = "torch_poison.pytest_plugin"
    project.makeini("[pytest]\nfilterwarnings = error\n")
    project.makepyfile(test_own="def test_own(): pass\n")
    if asked in ("conftest", "both"):
        project.makeconftest(f'pytest_plugins = ["{name}"]')
    options = ["-p", name] if asked in ("option", "both") else []
    done = project.runpytest_subprocess(*options, "--collect-only", "-q", "--markers")
    assert done.ret == 0
    assert str(done.stdout).count("@pytest.mark.poison_ok(reason)") == 1


@pytest.mark.nightly
@pytest.mark.skipif(
    not (EXAMPLE.is_dir() and POISON.joinpath("pyproject.toml").is_file()),
    reason="the examples are not part of an installed harness",
)
def test_the_distribution_alone_finds_the_bugs_of_a_suite_where_there_is_no_harness(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = pytester.path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    pip += ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    done = subprocess.run([*pip, str(POISON)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("PYTHONPATH", str(site))
    # Only the plug-in from there, whatever else is installed here.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    shutil.copytree(EXAMPLE, pytester.path / "project")
    pytester.makeini(
        "[pytest]\npythonpath = project\n"
        "addopts = -p no:cacheprovider -p torch_poison.pytest_plugin\n"
    )
    pytester.makeconftest(f"""
        import sys
        sys.modules["harness"] = None  # `import harness` raises ImportError.
        import torch_poison
        assert torch_poison.__file__.startswith({str(site)!r})
    """)
    run = pytester.runpytest_subprocess("--poison", "nan", "project/tests")
    run.assert_outcomes(passed=11, failed=2)
