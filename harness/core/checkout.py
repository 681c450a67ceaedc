"""What a checkout of the project adds to an installed harness.

Its `pyproject.toml` says so, in the table `tool.mla-harness.checkout`. So no file of the product
names a program that measures or judges the harness itself.
"""

from __future__ import annotations

import functools
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from harness.core.registry import attribute_at

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict[str, Any]:
    """The `pyproject.toml` of this checkout; empty in an installed harness."""
    return _read(ROOT)


@functools.cache
def _read(root: Path) -> dict[str, Any]:
    file = root / "pyproject.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _added(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = (
        project().get("tool", {}).get("mla-harness", {}).get("checkout", {}).get(kind, {})
    )
    return found


def commands() -> dict[str, tuple[str, str]]:
    """Name of a command -> "module:function or group", and the first line of its help."""
    return {name: (place, summary) for name, (place, summary) in _added("commands").items()}


def kernels(name: str) -> tuple[Any, ...]:
    """The kernels that a `name` such as `tiled-7` or `op/tiled-7` stands for, if its beginning is
    in the table `kernels`.
    """
    short = name.rpartition("/")[2]
    for begin, place in _added("kernels").items():
        if short.startswith(begin):
            made: tuple[Any, ...] = attribute_of(place)(name)
            return made
    return ()


def attribute_of(place: str) -> Any:
    """The object at "module:name" of this checkout, whose root is put on the path."""
    if (path := str(ROOT)) not in sys.path:
        # At the end, so that a folder of the checkout hides no installed package of the same name.
        sys.path.append(path)
    return attribute_at(place)


def adapter_folders() -> list[str]:
    """The folders of this checkout with the packages of adapters; none in an installed harness."""
    return [str(file.parent) for file in sorted(ROOT.glob("adapters/*/pyproject.toml"))]


def find_adapters() -> None:
    """Put the adapters of this checkout on the path, which may be installed nowhere."""
    sys.path += [folder for folder in adapter_folders() if folder not in sys.path]


def on_path(folder: Path) -> dict[str, str]:
    """The environment of a child process that imports modules of `folder`."""
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    }
