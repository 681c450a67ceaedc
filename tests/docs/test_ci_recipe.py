"""The workflow of docs/start-ci.md, pasted into a repository of one kernel, with the cache of
GitHub as a folder.

The package is not installed here, and one scenario stands for all of the kernel's op.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[2]
GOOD = """
import torch
from harness import kernel

@kernel(op="quantize_fp8", name="mine")
def mine(x, *, num_live=None):
    live = x if num_live is None else x[:num_live]
    scale = (live.float().abs().amax() / 448).clamp_min(1e-12)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)
"""
BROKEN = GOOD.replace("live = x if num_live is None else x[:num_live]", "live = x")


def recipe() -> dict[str, Any]:
    page = (ROOT / "docs" / "start-ci.md").read_text()
    (block,) = re.findall(r"```yaml\n(name: MLA harness\n.*?)```", page, re.DOTALL)
    workflow = yaml.safe_load(block)
    return dict(workflow["jobs"]["mla-harness"])


def job(repository: Path, cache: Path, kernel: str) -> tuple[bool, str]:
    """Run the recipe in a fresh clone of `repository`.

    Returns whether the job is green, and what its steps printed.
    """
    clone = repository.with_name("clone")
    shutil.rmtree(clone, ignore_errors=True)
    (repository / "my_kernel.py").write_text(kernel, encoding="utf-8")
    subprocess.run(["git", "add", "-A"], cwd=repository, check=True)
    subprocess.run(
        ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", "commit", "-qm", "kernel"],
        cwd=repository,
    )
    subprocess.run(["git", "clone", "-q", str(repository), str(clone)], check=True)
    environ = with_command(repository.with_name("bin"))
    environ["GITHUB_STEP_SUMMARY"] = str(repository.with_name("summary.md"))
    green, printed = True, ""
    for step in recipe()["steps"]:
        if not green and step.get("if") != "always()":
            continue
        action, kept = (
            step.get("uses", "").partition("@")[0],
            clone / step.get("with", {}).get("path", ""),
        )
        if action == "actions/cache/restore" and cache.exists():
            shutil.copytree(cache, kept)
        elif action == "actions/cache/save":
            shutil.rmtree(cache, ignore_errors=True)
            shutil.copytree(kept, cache)
        elif "run" in step and "pip install" not in step["run"]:
            script = step["run"].replace("run --plugin", "run quantize-kernel --plugin")
            done = subprocess.run(
                ["bash", "-e", "-c", script],
                cwd=clone,
                env=environ,
                capture_output=True,
                text=True,
                timeout=HANG_SECONDS,
            )
            printed += done.stdout + done.stderr
            green = green and done.returncode == 0
    return green, printed


def with_command(folder: Path) -> dict[str, str]:
    """The environment with a command `mla-harness`, which is put into `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "mla-harness").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -m harness.cli.main "$@"\n'
    )
    (folder / "mla-harness").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.nightly
def test_the_shards_of_the_page_are_merged_in_a_repository(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "ci.md").read_text()
    (block,) = re.findall(r"```console\n(\$ mla-harness run --shard .*?)```", page, re.DOTALL)
    commands = [line.removeprefix("$ ").partition("#")[0] for line in block.splitlines()]
    assert [command.split()[1] for command in commands] == ["run", "run", "merge"]
    # One scenario stands for all of them.
    script = "\n".join(commands).replace("run --shard", "run quantize-kernel --shard")
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (repository / "my_kernel.py").write_text(GOOD, encoding="utf-8")
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", "add", "-A"], cwd=repository, check=True)
    subprocess.run(["git", *who, "commit", "-qm", "kernel"], cwd=repository, check=True)
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=repository,
        env=with_command(tmp_path / "bin"),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^9 pass in", done.stdout, re.MULTILINE)


@pytest.mark.nightly
def test_the_recipe_stays_red_while_a_new_failure_is_there(tmp_path: Path) -> None:
    repository, cache = tmp_path / "repository", tmp_path / "cache"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    assert job(repository, cache, GOOD)[0]
    for _ in range(2):
        green, printed = job(repository, cache, BROKEN)
        assert not green and "FAIL quantize_fp8/mine" in printed
    assert len(list((cache / "runs").iterdir())) == 1, "a green run alone is kept"


def test_the_recipe_names_no_file_that_its_repository_lacks() -> None:
    (install,) = [step["run"] for step in recipe()["steps"] if "pip install" in step.get("run", "")]
    assert "mla-harness @" in install and "constraints.txt" not in install and "'.[" not in install
