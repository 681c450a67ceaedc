"""LMCache on a CPU, with the caches of vLLM.

Needs folders: MLA_HARNESS_LMCACHE_SITES and MLA_HARNESS_VLLM_SITES.

LMCache's own packages (numba, cryptography, opentelemetry, ...) may lie in a folder `deps` beside
the releases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

VLLM = ("0.24.0", "0.28.0", "0.33.0")


@pytest.mark.parametrize("vllm", VLLM)
@pytest.mark.parametrize("lmcache", ["0.5.4", "0.5.5", "0.5.6"])
def test_chunks_bring_back_latents_and_sidecars_and_lost_index_keys_are_seen(
    lmcache: str, vllm: str
) -> None:
    roots = [os.environ.get(f"MLA_HARNESS_{name}_SITES") for name in ("LMCACHE", "VLLM")]
    if not all(roots):
        pytest.skip(
            "MLA_HARNESS_LMCACHE_SITES and MLA_HARNESS_VLLM_SITES name folders: see"
            " adapters.shared.tests.download"
        )
    folders = [Path(str(roots[0]), f"lmcache-{lmcache}"), Path(str(roots[1]), f"vllm-{vllm}")]
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        pytest.skip(f"{missing[0]} is not there: make it with adapters.shared.tests.download")
    paths = [Path.cwd(), *folders, Path(str(roots[0]), "deps")]
    quiet = {
        "VLLM_LOGGING_LEVEL": "CRITICAL",
        "LMCACHE_LOG_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("moves.py"))],
        capture_output=True,
        text=True,
        env=os.environ | quiet | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    lost = found.pop("without index")
    assert "needs index of layer 0" in lost[1] and "nothing was moved to" in lost[1]
    if vllm == "0.24.0":
        assert found.pop("state") == [0, "refused"]
    assert {name: message for name, (_, message) in found.items()} == dict.fromkeys(found, "")
    assert all(num_bytes > 100_000 for num_bytes, _ in found.values())
