"""Check that a script fails with its bug and passes without it. Each run is a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import HarnessError
from harness.diagnose.script.code import without_bug

SECONDS = 120.0
"""Limit for one run of a script, which mostly imports torch."""
_NEVER_THE_BUG = ("SyntaxError", "IndentationError", "NameError", "ImportError", "ModuleNotFoundError")
_BLOCKER = """\
import runpy, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "harness":
            raise ModuleNotFoundError("a script of its own must not import this project")
sys.meta_path.insert(0, Blocker())
if sys.argv[1] == "pytest":
    import pytest
    options = ["-q", "--tb=native", "--assert=plain", "-p", "no:cacheprovider", "--noconftest", "-c", "/dev/null"]
    sys.exit(pytest.main([*options, "--rootdir", sys.argv[3], sys.argv[2]]))
runpy.run_path(sys.argv[2], run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one run of a script: its exit status (negative: a signal), and its last line of output."""

    status: int
    last_line: str
    seconds_ran_out: bool = False

    @property
    def passes(self) -> bool:
        return self.status == 0

    def fails_for_the_bug(self, may_crash: bool) -> bool:
        """Whether an assertion failed, or with `may_crash` also any error that is no mistake of the script."""
        if self.passes or self.seconds_ran_out or self.last_line.startswith(_NEVER_THE_BUG):
            return False
        return may_crash or self.last_line.startswith("AssertionError")

    @property
    def words(self) -> str:
        """In a few words, for people."""
        if self.seconds_ran_out:
            return "ran out of time"
        return "passes" if self.passes else f"status {self.status}, {self.last_line or 'no words'}"


@dataclass(frozen=True, slots=True)
class Check:
    """The runs of a script with its bug and without."""

    with_bug: Outcome
    without_bug: Outcome
    may_crash: bool = False

    @property
    def fails_with(self) -> bool:
        """Whether the script fails because of its bug."""
        return self.with_bug.fails_for_the_bug(self.may_crash)

    @property
    def holds(self) -> bool:
        """Whether the script fails with its bug and passes without."""
        return self.fails_with and self.without_bug.passes

    @property
    def sentence(self) -> str:
        """`fails with the bug: yes; passes without: yes`, or what happened instead."""
        fails = "yes" if self.fails_with else f"no ({self.with_bug.words})"
        passes = "yes" if self.without_bug.passes else f"no ({self.without_bug.words})"
        return f"fails with the bug: {fails}; passes without: {passes}"


def check(
    text: str, *, may_crash: bool = False, is_pytest: bool = False, python: str | None = None, seconds: float = SECONDS
) -> Check:
    """Run `text` as it is and without its marked line. Neither run can import this project.

    With `may_crash` any error of the kernel counts as the bug, else only a failed assertion. `python` is the path of
    another interpreter. Raises HarnessError if it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="mla-harness-script-") as folder:

        def ran(label: str, content: str) -> Outcome:
            path = Path(folder) / f"test_{label}_bug.py"
            path.write_text(content, encoding="utf-8")
            return run(path, is_pytest=is_pytest, python=python, seconds=seconds)

        return Check(ran("with", text), ran("without", without_bug(text)), may_crash)


def run(path: Path, *, is_pytest: bool = False, python: str | None = None, seconds: float = SECONDS) -> Outcome:
    """Run one script in its own folder, isolated from the environment, for at most `seconds`."""
    kind = "pytest" if is_pytest else "script"
    words = [python or sys.executable, "-I", "-c", _BLOCKER, kind, str(path), str(path.parent)]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ.pop("PYTEST_ADDOPTS", None)
    try:
        done = subprocess.run(
            words,
            cwd=path.parent,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(-1, "", seconds_ran_out=True)
    except OSError as error:
        raise HarnessError(f"{words[0]}: cannot be run: {error}") from error
    if is_pytest and done.returncode not in (0, 1):
        return Outcome(done.returncode, f"SyntaxError or nothing collected: {_last(done.stdout)}")
    return Outcome(done.returncode, _last_error(done.stdout if is_pytest else done.stderr))


def _last_error(text: str) -> str:
    """The last line that names an exception, or else the last line."""
    names = [line for line in text.splitlines() if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b", line)]
    return (names[-1] if names else _last(text)).strip()[:300]


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""
