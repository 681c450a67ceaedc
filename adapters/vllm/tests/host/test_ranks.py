"""What the harness does to vLLM reaches the processes that its own executor spawns, in four
releases, on a CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mla_harness_adapters.plan import Plan
from mla_harness_adapters.report import Report
from mla_harness_vllm.ranks import AMONG_RANKS
from mla_harness_vllm.serve.settings import MEMORY
from tests.waiting import HANG_SECONDS

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[4]
FAULT = "vllm.merge-ignore-context-count"


@pytest.mark.parametrize("release", ["0.21.0", "0.22.1", "0.24.0", "0.33.0"])
def test_a_bug_is_put_back_in_every_process_of_vllms_executor(release: str) -> None:
    root = os.environ.get("MLA_HARNESS_VLLM_SITES")
    if not root or not (site := Path(root) / f"vllm-{release}").is_dir():
        pytest.skip(
            "MLA_HARNESS_VLLM_SITES names no folder with it: adapters.shared.tests.download"
        )
    path = os.pathsep.join(map(str, (ROOT, HERE / "ranks", site)))
    environ = {
        **os.environ,
        **AMONG_RANKS,
        "PYTHONPATH": path,
        "MLA_HARNESS_FAULT": FAULT,
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-P", "-m", "serve_without_gpu"]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith('[{"rank"'))
    )
    report = Report.of(told)
    report.check(Plan(folder="", fault=FAULT), MEMORY, 2, "worker")
    assert len({one.process for one in report.ranks}) == 2
