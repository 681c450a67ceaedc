"""What a checkout of the project has and an installed harness lacks: trust tests, benchmarks,
training of canaries.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from harness.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
TRUST, BENCHMARKS = ROOT / "tests" / "trust", ROOT / "benchmarks"


def from_checkout(folder: Path, module: str, what: str) -> Any:
    """The module of a file in TRUST or BENCHMARKS.

    Raises InputError for `what` if this is no checkout.
    """
    if not (folder / f"{module}.py").is_file():
        raise InputError(
            f"{what}: needs a checkout of the project; clone it and `python -m pip install -e .`"
        )
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module(module)


def on_path(folder: Path) -> dict[str, str]:
    """The environment of a child process that imports modules of `folder`."""
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    }
