"""Make the site of the nightly workflow on this machine: python benchmarks/nightly_site.py OUT

The steps of the job `report` come from .github/workflows/nightly.yml, as they stand there. What its
other jobs hand over is a few cases in two shards, a few injected bugs and, with `--site`, a page of
releases of SGLang. `--nights N` makes N nights; from one to the next only the summaries of runs are
kept, as the workflow's cache does. OUT/reports/runs/index.html is the site, OUT/summary.md the text
of the job. Exit code 1: a step failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

WORKFLOW = Path(__file__).parents[1] / ".github" / "workflows" / "nightly.yml"
CASES = ("merge-kernel", "decode-empty-rows", "mixed-context")
NOT_HERE = ("Install",)
"""Steps that this machine does not need."""


def steps(job: str) -> list[tuple[str, str]]:
    """The name and the script of each step of a job that runs commands."""
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    found = [(step.get("name", ""), step["run"]) for step in jobs[job]["steps"] if "run" in step]
    return [(name, script) for name, script in found if name not in NOT_HERE]


def run(script: str, folder: Path, **variables: str) -> int:
    """The exit code of a script, with the commands of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables}
    command = ["bash", "-e", "-o", "pipefail", "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def hand_over(tonight: Path, cases: str, sites: list[str]) -> None:
    """Fill a folder with what the other jobs hand over: shards, faults, a page of releases."""
    for shard in (1, 2):
        run(f"mla-harness run {cases} --shard {shard}/2 --out shard-{shard} -n 1", tonight)
    run(f"mla-harness selftest {CASES[-1]} --out faults -n 1", tonight)
    (tonight / "pages-sglang-host").mkdir()
    if sites:
        folders = " ".join(f"--site '{site}'" for site in sites)
        file = "pages-sglang-host/bisect-sglang-host.html"
        run(f"mla-harness bisect sglang-host {folders} --html {file} || true", tonight)


def night(out: Path, cases: str, sites: list[str]) -> list[str]:
    """Make the site of one night. Returns the steps that failed."""
    reports = out / "reports"
    for page in (reports / "runs").glob("*.html"):
        page.unlink()
    for old in (reports / "runs").glob("*/*"):
        if old.name != "summary.json":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.rmtree(reports / "tonight", ignore_errors=True)
    (reports / "tonight").mkdir(parents=True)
    hand_over(reports / "tonight", cases, sites)
    summary = str(out / "summary.md")
    return [
        name for name, script in steps("report") if run(script, out, GITHUB_STEP_SUMMARY=summary)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nights", type=int, default=2)
    parser.add_argument("--site", action="append", default=[], help="a folder with a release")
    parser.add_argument("--fault", help="a bug that the last night has, of mixed-context")
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    failed: list[str] = []
    sites = [str(Path(site).resolve()) for site in given.site]
    for number in range(given.nights):
        is_last = number == given.nights - 1
        bug = f" --fault {given.fault}" if given.fault and is_last else ""
        failed += night(given.out.resolve(), " ".join(CASES) + bug, sites if is_last else [])
    print("\n".join(f"failed: {name}" for name in failed) or "every step ended well")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
