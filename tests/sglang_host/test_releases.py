"""SGLang's Python in real releases, on a CPU. Needs their folders: MLA_HARNESS_SGLANG_SITES, as tox sets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RELEASES = ("0.5.12", "0.5.14", "0.5.23")
OTHERS = {
    # The copy that this fault removes came with 0.5.18.
    "sglang-host-radix-cache[page_size=1] with sglang.freed-view-of-row": ("skip", "skip", "caught"),
    "sglang-host-remote-experts[amax=per_tensor]": ("known",) * 3,
    "sglang-host-context-parallel[search=prompts]": ("known", "pass", "pass"),
    "sglang-host-context-parallel[search=prompts] with sglang.prefix-of-padded-length": ("as", "caught", "caught"),
    # Decode over ranks came after 0.5.14.
    "sglang-host-context-parallel[search=lengths]": ("ERROR", "ERROR", "pass"),
}


def test_each_release_passes_and_each_bug_that_is_injected_is_caught() -> None:
    root = os.environ.get("MLA_HARNESS_SGLANG_SITES")
    if not root:
        pytest.skip("MLA_HARNESS_SGLANG_SITES names no folder: make one with harness.engines.download")
    sites = [Path(root) / f"sglang-{release}" for release in RELEASES]
    missing = [str(site) for site in sites if not (site / "sglang").is_dir()]
    if missing:
        pytest.skip(f"{missing[0]} is not there: make it with harness.engines.download")
    command = [sys.executable, "-m", "harness.cli.main", "bisect", "sglang-host", "--faults", "--json"]
    done = subprocess.run(
        [*command, *(word for site in sites for word in ("--site", str(site)))], capture_output=True, text=True
    )
    print(done.stderr)
    # Parts that a release has not are errors, which the cells below name.
    assert done.returncode == 3, done.stderr
    told = json.loads(done.stdout)
    assert [column["label"] for column in told["columns"]] == [f"SGLang {release}" for release in RELEASES]
    cells = {row["name"]: tuple(cell.split()[0] for cell in row["cells"]) for row in told["rows"]}
    assert len(cells) == 25
    for name, found in cells.items():
        wanted = ("caught",) * 3 if " with " in name else ("pass",) * 3
        assert found == OTHERS.get(name, wanted), name
