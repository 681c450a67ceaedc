"""The scripts of requests that `serve-check` runs: where they are, and how a file becomes a
script.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.accuracy.script import Script
from harness.accuracy.script_check import ScriptCheck, check_script
from harness.core.errors import InputError
from harness.core.files import FIXTURES
from harness.core.registry import nearest
from harness.scenario.load import SUFFIXES, load_record

FOLDER = FIXTURES / "sequences"


def script_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_script(name: str) -> Script:
    """A shipped script by its name, or the script of a file.

    Raises InputError for a wrong name or file.
    """
    if not name.endswith(SUFFIXES) and name not in (known := script_names()):
        raise InputError(
            f"--script {name}: no such script; {nearest(name, known, see='')}, or name a .yaml file"
        )
    return load_record(Path(name) if name.endswith(SUFFIXES) else FOLDER / f"{name}.yaml", Script)[
        0
    ]


def play_script(name: str, url: str, **options: Any) -> dict[str, Any]:
    """Run a script against the server at `url`, and return a `CaseResult` as JSON.

    `options` are fields of :class:`harness.accuracy.script_check.ScriptCheck`, such as `tolerance`.
    Raises InputError for a wrong name, and as `check_script` does.
    """
    judged = check_script(ScriptCheck(url=url, script=load_script(name), **options))
    return judged.result().model_dump(mode="json")
