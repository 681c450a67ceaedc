"""Where a child process finds this package: by PYTHONPATH, as `python -P` does not look where somebody stands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def python_path(*more: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """This package's folder, then `more` where it is given, then what PYTHONPATH of `environ` already says."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, *more, environ.get("PYTHONPATH")]))
