"""What a scheduler process of SGLang runs in place of SGLang's own function: the plan first, then
that function.
"""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import Any

from harness.api import write_atomic
from mla_harness_adapters.plan import Plan
from mla_harness_adapters.refusals import PLAN_FILE, note
from mla_harness_adapters.report import ProcessReport
from mla_harness_sglang.faults import PATCHES
from mla_harness_sglang.options import OPTION_ERRORS
from mla_harness_sglang.serve import first_nan, hooks
from mla_harness_sglang.serve.plan import COUNTS, METHOD, REPORT

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
        note(wanted.folder, PLAN_FILE, error)
        raise
    importlib.import_module(SCHEDULER).run_scheduler_process(*args, **kwargs)


def install(plan: Plan) -> None:
    """Inject the fault, wrap the model runner, and give SGLang's scheduler the method that writes
    the report.

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

    def write_report(_: Any) -> None:
        for recorder in first_nan.RECORDERS:
            recorder.write_report()
        report = ProcessReport(
            rank=first_nan.rank_here(),
            process=os.getpid(),
            fault=plan.fault,
            counts=dict(COUNTS),
        )
        file = Path(plan.folder) / REPORT.format(rank=report.rank)
        write_atomic(file, report.model_dump_json())

    scheduler: Any = importlib.import_module(SCHEDULER).Scheduler
    setattr(scheduler, METHOD, write_report)
    build = scheduler.__init__

    @functools.wraps(build)
    def noting(*args: Any, **kwargs: Any) -> None:
        with OPTION_ERRORS.noted(plan.folder):
            build(*args, **kwargs)

    scheduler.__init__ = noting
