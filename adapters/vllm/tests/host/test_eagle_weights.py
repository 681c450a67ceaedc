"""canary-eagle in vLLM's own loader, on a CPU.

Older releases cannot build a model without their compiled parts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from harness.core.files import FIXTURES
from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[4]
SHARED = ["model.embed_tokens.weight", "lm_head.weight"]
"""What vLLM takes from the target when the draft model has none."""


@pytest.fixture(scope="module")
def site() -> Path:
    """The folder of the release."""
    root = os.environ.get("MLA_HARNESS_VLLM_SITES")
    if not root or not (found := Path(root) / "vllm-0.33.0").is_dir():
        pytest.skip(
            "MLA_HARNESS_VLLM_SITES names no folder with it: adapters.shared.tests.download"
        )
    return found


def loaded(site: Path, draft: Path) -> subprocess.CompletedProcess[str]:
    """One run of load_eagle.py."""
    path = os.pathsep.join(map(str, (ROOT, site)))
    environ = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    environ["VLLM_TARGET_DEVICE"] = "cpu"
    command = [
        sys.executable,
        "-P",
        "-m",
        "adapters.vllm.tests.host.load_eagle",
        str(FIXTURES / "canary-mtp"),
        str(draft),
    ]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=HANG_SECONDS
    )


def test_every_parameter_of_vllms_model_is_in_the_checkpoint_or_is_the_targets(site: Path) -> None:
    done = loaded(site, FIXTURES / "canary-eagle")
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found == {"architectures": ["EagleDeepSeekMTPModel"], "mla": True, "unfilled": SHARED}


def test_a_weight_by_the_name_of_the_module_is_refused(site: Path, tmp_path: Path) -> None:
    weights = load_file(FIXTURES / "canary-eagle" / "model.safetensors")
    weights["eh_proj.weight"] = weights.pop("fc.weight")
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((FIXTURES / "canary-eagle" / "config.json").read_text())
    done = loaded(site, tmp_path)
    assert done.returncode != 0 and "eh_proj" in done.stderr
