"""The files that nodes of a cluster get: the harness, its fixtures, and plug-in files."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch_poison

from harness.core.checkout import adapter_folders
from harness.core.errors import InputError
from harness.core.files import FIXTURES

_PACKAGE = Path(__file__).resolve().parents[1]
_LOADER = "mla_harness.py"
_ADAPTERS = "mla_harness_*/__init__.py"
_LEFT_OUT = ("__pycache__", "_fixtures", "_scenarios")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""One time for all files, so that an archive depends only on their content."""


def pack_code() -> bytes:
    """The package `harness`, the poison and the adapters of engines as a zip archive.

    Fixtures and scenarios are left out: a planned case does not need them.
    """
    return _packed(
        (path, path.relative_to(package.parent))
        for package in _packages()
        for path in sorted(package.rglob("*") if package.is_dir() else [package])
        if path.is_file() and not set(_LEFT_OUT) & set(path.relative_to(package.parent).parts)
    )


def _packages() -> list[Path]:
    """The packages and modules of this harness: in one folder, or in several of a checkout."""
    beside = [_PACKAGE.parent, *map(Path, adapter_folders())]
    adapters = [file.parent for folder in beside for file in sorted(folder.glob(_ADAPTERS))]
    poison = Path(torch_poison.__file__).resolve().parent
    return [_PACKAGE, poison, *adapters, _PACKAGE.parent / _LOADER]


def pack_fixtures() -> bytes:
    """Canaries, tasks and baselines as a zip archive of some tens of MB.

    Only jobs that ask a canary need it.
    """
    return _packed((path, path.relative_to(FIXTURES)) for path in _fixture_files())


def digest(code: bytes) -> str:
    """The name of this code with these fixtures: 16 hexadecimal digits of a hash."""
    found = hashlib.sha256(code)
    for path in _fixture_files():
        found.update(f"{path.relative_to(FIXTURES)}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def read_plugin(path: str) -> tuple[str, bytes]:
    """The path and content of a plug-in file. Raises InputError if it cannot be read."""
    try:
        return path, Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"plug-in {path}: cannot be read: {error.strerror}; give the path of a Python file"
        ) from None


def _fixture_files() -> list[Path]:
    return [
        path
        for path in sorted(FIXTURES.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]


def _packed(files: Iterator[tuple[Path, Path]]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, name in files:
            entry = zipfile.ZipInfo(str(name), _EPOCH)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=1)
    return stream.getvalue()
