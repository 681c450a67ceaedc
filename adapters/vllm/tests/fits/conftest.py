"""Releases of vLLM made of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.vllm.tests.fits.release import Release

Maker = Callable[..., Release]


@pytest.fixture
def release(tmp_path: Path) -> Maker:
    """Makes a release of the files given, by path below the package; every folder is a package."""

    def make(files: dict[str, str], version: str = "0.33.0") -> Release:
        (tmp_path / f"vllm-{version}.dist-info").mkdir(exist_ok=True)
        for name, text in {"vllm/__init__.py": "", **files}.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            for folder in file.relative_to(tmp_path).parents[:-1]:
                (tmp_path / folder / "__init__.py").touch()
            file.write_text(text, encoding="utf-8")
        return Release.at(str(tmp_path))

    return make
