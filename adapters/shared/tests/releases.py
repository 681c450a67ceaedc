"""One `bisect` of an engine's cases and faults over the folders of its releases that the
environment names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def bisected(engine: str, label: str, releases: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of the table, after a look at its columns.

    Skips where a folder of a release is not there.
    """
    variable = f"MLA_HARNESS_{engine.upper()}_SITES"
    root = os.environ.get(variable)
    if not root:
        pytest.skip(f"{variable} names no folder: make one with adapters.shared.tests.download")
    sites = [Path(root) / f"{engine}-{release}" for release in releases]
    missing = [str(site) for site in sites if not (site / engine).is_dir()]
    if missing:
        pytest.skip(f"{missing[0]} is not there: make it with adapters.shared.tests.download")
    command = [
        sys.executable,
        "-m",
        "harness.cli.main",
        "bisect",
        f"{engine}-host",
        "--faults",
        "--json",
    ]
    done = subprocess.run(
        [*command, *(word for site in sites for word in ("--site", str(site)))],
        capture_output=True,
        text=True,
    )
    print(done.stderr)
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert [column["label"] for column in table["columns"]] == [
        f"{label} {release}" for release in releases
    ]
    for column, site in zip(table["columns"], sites, strict=True):
        assert column["environment"]["engine_paths"][engine] == str(site.resolve() / engine)
    rows: list[dict[str, Any]] = table["rows"]
    return rows
