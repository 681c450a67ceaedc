"""A job with the first-NaN recorder, inside a worker: who wrote the first value that is not finite, and who read.

The writer is found in one run under the case's own poison. The first reader of the sites to blame is found as for
cures, by comparing runs that differ in nothing but what these sites hold; that looks at launches of the engine on a
CPU. vLLM is served once with the recorder in each of its workers, and has no reader.
"""

from __future__ import annotations

import contextlib
import time
import traceback

import torch

from harness.core.catalog import FAULTS
from harness.core.cuda_failures import is_device_failure
from harness.core.records import CaseResult, FirstNan, Job, Verdict
from harness.core.seams import inject
from harness.engines.vllm.target import VllmTarget
from harness.judge.oracles.crash import CRASHES
from harness.judge.probes.recorder import recorder_on
from harness.judge.readers import execute as search_readers
from harness.judge.run_case import LOG_TAIL, poison_of, why_not
from harness.judge.targets.engine import EngineTarget
from harness.kernels.plugins import load_plugins


def execute(job: Job) -> CaseResult:
    """Run one job of the engine or vLLM with the recorder. Never raises an Exception; `first_nan` is what was seen."""
    assert job.first_nan is not None
    started = time.perf_counter()
    result = CaseResult.of(job, Verdict.PASS)
    try:
        load_plugins(job.plugins)
        if reason := why_not(job.case, job.device, job.fault):
            return result.model_copy(update={"verdict": Verdict.SKIP, "reason": reason})
        found = first_writer(job).model_copy(update={"sites": job.first_nan})
        if job.case.system == "engine" and job.device == "cpu" and job.first_nan:
            found = found.model_copy(update=_first_reader(job))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        log = traceback.format_exc()[-LOG_TAIL:]
        return result.model_copy(update={"verdict": Verdict.ERROR, "reason": reason, "log": log})
    verdict = Verdict.FAIL if found.writer else Verdict.PASS
    seconds = time.perf_counter() - started
    return result.model_copy(update={"first_nan": found, "verdict": verdict, "seconds": seconds})


def first_writer(job: Job) -> FirstNan:
    """What the recorder says after one run of a job under its main pattern, also when a crash ended it."""
    plan = job.case.poison
    sites = frozenset(plan.sites if job.sites is None else job.sites)
    poison = poison_of(plan, plan.patterns[0], sites, job.case.seed)
    if job.case.system == "vllm":
        return VllmTarget(job.case, job.fault, gpus=job.gpus).first_writer(poison)
    torch.manual_seed(job.case.seed)
    with inject(FAULTS.get(job.fault)) if job.fault else contextlib.nullcontext():
        target = EngineTarget(job.case, job.device)
        with recorder_on(job.device) as recorder:
            try:
                target.run(poison, probe=recorder)
            except CRASHES:
                pass
            except RuntimeError as error:
                if not is_device_failure(error):
                    raise
            return recorder.report() or FirstNan()


def _first_reader(job: Job) -> dict[str, str]:
    """The first launch whose live result depends on what the sites hold, and where; nothing when none does."""
    asked = job.model_copy(update={"sites": job.first_nan, "first_nan": None})
    finding = next(iter(search_readers(asked).findings), None)
    if finding is None:
        return {}
    place = ", ".join(part for part in (finding.tensor, finding.where) if part)
    return {"reader": finding.message, "reader_at": place}
