"""Which packages are there, in which version, and where: told without importing them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, without importing it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def folder_of(package: str) -> str | None:
    """The folder that a package would be imported from, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    # A module that is loaded without a spec, as a stand-in of a test may be.
    except ValueError:
        return None
    return str(Path(spec.origin).parent) if spec is not None and spec.origin else None


def stated_version(package: str) -> str | None:
    """The version that a package states in its `_version.py`, as a checkout on the path has it."""
    folder = folder_of(package)
    if folder is None or not (file := Path(folder, "_version.py")).is_file():
        return None
    pattern = r"^__version__\b.*= *['\"]([^'\"]+)['\"]"
    found = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None
