"""Kernels of released engines in Triton's interpreter: a folder a release, a script in a process of
its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.memory.triton_interpreter import REPAIRED_VERSIONS


def releases(variable: str, holds: str) -> list[Path | None]:
    """The folders with the path `holds` in the one that an environment variable names, or None."""
    root = Path(os.environ.get(variable) or "no such folder")
    return sorted(path for path in root.glob("*") if (path / holds).exists()) or [None]


def name_of(folder: Path | None) -> str:
    """Of a test's parameter."""
    return folder.name if folder else "none"


def interpretable(folder: Path | None, variable: str) -> Path:
    """The folder of a release, or a skipped test: there is none, or Triton is another one."""
    if folder is None:
        pytest.skip(f"{variable} names no folder with a release")
    triton = pytest.importorskip("triton")
    if triton.__version__ not in REPAIRED_VERSIONS:
        pytest.skip("the interpreter of this Triton is not repaired")
    return folder


def printed(script: Path, folder: Path, *words: str) -> str:
    """What a script prints, whose first word is the folder of a release."""
    environ = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), str(folder), *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
