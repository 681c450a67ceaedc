"""The state of the harness in each vLLM worker, read with `LLM.collective_rpc`.

Workers may be forked or spawned processes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Any

from mla_harness_adapters.report import ProcessReport
from mla_harness_vllm.serve.plugin import INSTALLED
from mla_harness_vllm.serve.settings import FAULT_VARIABLE, ROUTING_VARIABLE
from mla_harness_vllm.serve.writes import FILLED, worker_rank


def state_of_worker(worker: Any) -> dict[str, Any]:
    """Run inside a worker: the fields of its `ProcessReport`. Its recorder writes its report."""
    first_nan = sys.modules.get("mla_harness_vllm.serve.first_nan")
    if first_nan is not None:
        for recorder in first_nan.RECORDERS:
            recorder.write_report()
    copies = sys.modules.get("mla_harness_vllm.serve.copies")
    report = ProcessReport(
        rank=worker_rank(),
        process=os.getpid(),
        fault=INSTALLED.get(FAULT_VARIABLE, ""),
        routing=INSTALLED.get(ROUTING_VARIABLE, ""),
        counts=asdict(FILLED),
        races=() if copies is None else copies.races(),
    )
    return report.model_dump()
