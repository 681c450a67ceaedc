"""A downloaded wheel becomes a folder of its Python files."""

from __future__ import annotations

import zipfile
from pathlib import Path

from adapters.shared.tests.download import unpack


def test_everything_but_compiled_extensions_is_unpacked(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.33.0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("vllm/__init__.py", "vllm/_C.abi3.so", "vllm-0.33.0.dist-info/METADATA"):
            archive.writestr(name, "")
    site = tmp_path / "site"
    assert unpack(wheel, site) == 2
    assert {path.name for path in site.rglob("*") if path.is_file()} == {"__init__.py", "METADATA"}
    assert not wheel.exists()
