"""What the plug-in does to vLLM's own prefill, caches and routing simulator, release by release, on
a CPU.

Needs their folders: MLA_HARNESS_VLLM_SITES, as tox sets it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[4]
FRESH_ROWS = 9
"""Tokens of the one prompt without context."""


STRATEGY = """
import json
import torch
from mla_harness_vllm.serve.routing import STRATEGY, register
register(STRATEGY)
from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator
logits = torch.tensor([[1.0, 4.0, 2.0, 3.0]])
weights, ids = RoutingSimulator.simulate_routing(torch.zeros(1, 8), logits, STRATEGY, 2)
kept = RoutingSimulator._routing_strategies[STRATEGY]
monolithic = getattr(kept, "supports_monolithic_logits", None)
print(json.dumps({"ids": ids.tolist(), "monolithic": monolithic}))
"""


def told_by(release: str, *words: str) -> dict[str, Any]:
    """What a script prints last, run with a release on the path."""
    site = Path(os.environ.get("MLA_HARNESS_VLLM_SITES") or "/nowhere", f"vllm-{release}")
    if not (site / "vllm").is_dir():
        pytest.skip(f"MLA_HARNESS_VLLM_SITES has no vllm-{release}: adapters.shared.tests.download")
    environ = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{site}",
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [sys.executable, "-P", *words],
        capture_output=True,
        text=True,
        env=environ,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("release", ["0.24.0", "0.27.1", "0.33.0"])
def test_rows_without_context_show_their_poison_with_the_bug_alone(release: str) -> None:
    script = str(Path(__file__).with_name("poison_in_prefill.py"))
    clean, faulty = told_by(release, script), told_by(release, script, "--fault")
    assert clean["version"] == release and clean["rows"] == FRESH_ROWS
    assert clean["finite"] and clean["error"] < 1e-5
    assert faulty["rows"] == FRESH_ROWS and not faulty["finite"]


@pytest.mark.parametrize("release", ["0.29.0", "0.33.0"])
def test_a_new_block_is_filled_in_every_layer_and_nothing_else_is_however_caches_are_laid_out(
    release: str,
) -> None:
    told = told_by(release, str(Path(__file__).with_name("poison_in_pages.py")))
    # Block 5 of the scheduler is pages 10 and 11 of a kernel with blocks of half the size.
    assert told["LBNHC"] == {"whole": [[10, 11], [10, 11]], "touched": 4}
    assert told["BLNHC"] == {"whole": [[5], [5]], "touched": 2}


@pytest.mark.parametrize(("release", "monolithic"), [("0.24.0", None), ("0.33.0", False)])
def test_the_routing_strategy_answers_what_this_vllm_asks_of_one(
    release: str, monolithic: bool | None
) -> None:
    assert told_by(release, "-c", STRATEGY) == {"ids": [[1, 3]], "monolithic": monolithic}
