"""A stand-in for `harness.judge.run_case` that says which GPU its worker was given, and when it had
it.
"""

from __future__ import annotations

import json
import os
import time

import torch

from harness.core.cases import Job
from harness.core.records import CaseResult, Verdict


def execute(job: Job) -> CaseResult:
    """Hold the GPU for half a second; `reason` is JSON: pid, uuid of the GPU, and when (seconds of
    this machine).
    """
    started = time.monotonic()
    torch.ones(1, device="cuda").sum().item()
    time.sleep(0.5)
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    said = {"pid": os.getpid(), "uuid": uuid, "from": started, "to": time.monotonic()}
    return CaseResult(
        key=job.key,
        id=job.case.id,
        scenario=job.case.scenario,
        verdict=Verdict.PASS,
        reason=json.dumps(said),
    )
