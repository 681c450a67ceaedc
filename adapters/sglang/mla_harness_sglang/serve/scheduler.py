"""What a scheduler process of SGLang runs in place of SGLang's own function: the plan first, then
that function.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from harness.api import write_atomic
from mla_harness_sglang.faults import PATCHES
from mla_harness_sglang.serve import first_nan, hooks
from mla_harness_sglang.serve.plan import (
    COUNTS,
    METHOD,
    REFUSED_PLAN,
    STATE,
    Plan,
    note_refusal,
    starting,
)

SCHEDULER = "sglang.srt.managers.scheduler"
RUNNER = "sglang.srt.model_executor.model_runner"


def run_scheduler(plan: str, *args: Any, **kwargs: Any) -> None:
    """Install the plan, a JSON text, and run SGLang's scheduler.

    Ends the process if the plan cannot be installed.
    """
    wanted = Plan.model_validate_json(plan)
    try:
        install(wanted)
    except Exception as error:
        note_refusal(wanted, REFUSED_PLAN, error)
        raise
    importlib.import_module(SCHEDULER).run_scheduler_process(*args, **kwargs)


def install(plan: Plan) -> None:
    """Inject the fault, wrap the model runner, and give SGLang's scheduler the method that writes
    the state.

    Raises InputError for a fault that does not fit this release.
    """
    # Before a fault's modules: imported first, some of them fail where a part of FlashInfer is
    # missing.
    runner: Any = importlib.import_module(RUNNER).ModelRunner
    if plan.fault:
        PATCHES.inject(plan.fault, str(importlib.import_module("sglang").__version__))
    if plan.records:
        first_nan.install(runner, plan)
    # Also without sites: the hook counts the steps.
    hooks.install(runner, plan)

    def write_state(_: Any) -> None:
        for recorder in first_nan.RECORDERS:
            recorder.write_report()
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        state = {"rank": rank, "process": os.getpid(), "fault": plan.fault, "counts": dict(COUNTS)}
        write_atomic(Path(plan.folder) / STATE.format(rank=rank), json.dumps(state))

    scheduler: Any = importlib.import_module(SCHEDULER).Scheduler
    setattr(scheduler, METHOD, write_state)
    build = scheduler.__init__

    @functools.wraps(build)
    def noting(*args: Any, **kwargs: Any) -> None:
        with starting(plan):
            build(*args, **kwargs)

    scheduler.__init__ = noting
