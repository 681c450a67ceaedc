"""`mla-harness run -n 0`: cases in the process of the command, so that a debugger reaches a
kernel.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.core.cases import Case, Job
from harness.core.errors import InputError
from harness.core.records import CaseResult, Verdict
from harness.run import in_process
from harness.run.environment import Environment, Gpu
from harness.run.gpus import GpuLocks
from harness.run.in_process import InProcessPool
from harness.run.protocol import Reply
from harness.run.runner import WorkerError
from tests.conftest import StartProcess
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS

SCENARIO = """
name: quantize
summary: quantize_fp8 of a padded batch
refs: [vllm-project/vllm#37442]
system: kernel
op: quantize_fp8
params: {kernel: torch}
matrix:
  num_live: [1, 8]
"""

PLUGIN = """
import os, time
import torch
from harness import kernel

@kernel(op="quantize_fp8", name="mine")
def mine(x, *, num_live=None):
    %s
    live = x if num_live is None else x[:num_live]
    scale = (live.float().abs().amax() / 448).clamp_min(1e-12)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(start_process: StartProcess, tmp_path: Path) -> Start:
    """Start the command in a process of its own with a kernel that begins with this line."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "quantize.yaml").write_text(SCENARIO)

    def run(line: str, *options: str) -> subprocess.Popen[str]:
        (tmp_path / "my_kernel.py").write_text(PLUGIN % line)
        root = str(Path(in_process.__file__).parents[2])
        command = [
            "-m",
            "harness.cli.main",
            "run",
            "--plugin",
            "my_kernel.py",
            "-n",
            "0",
            "--scenarios",
            "scenarios",
        ]
        return start_process(
            [sys.executable, *command, *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return run


def test_cases_run_in_the_process_of_the_command(start: Start) -> None:
    process = start("print('in', os.getpid())")
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, err
    assert f"in {process.pid}\n" in out and "2 pass in" in out


def test_a_kernel_that_raises_is_a_crash_with_its_line(start: Start, approved: Approved) -> None:
    process = start("raise ValueError('here')", "--json")
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 1, err
    cases = json.loads(out)["cases"]
    assert [case["verdict"] for case in cases] == ["crash", "crash"]
    approved(cases[0]["findings"][0]["at"])


@pytest.mark.nightly
def test_breakpoint_stops_in_the_kernel_and_leaving_it_ends_the_run(
    start: Start, approved: Approved
) -> None:
    process = start("breakpoint()")
    out, err = process.communicate("p ('seen', x.dim())\nq\n", timeout=HANG_SECONDS)
    assert process.returncode == 130, err
    assert out.count("(Pdb)") == 2 and "('seen', 2)" in out
    approved(err)


@pytest.mark.nightly
def test_ctrl_c_ends_a_kernel_that_hangs(start: Start) -> None:
    process = start("print('begun', flush=True); time.sleep(3600)")
    assert process.stdout is not None
    while "begun" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert "interrupted; continue with" in err


@pytest.mark.nightly
def test_a_kernel_that_ends_its_process_ends_the_command(start: Start) -> None:
    process = start("os._exit(7)")
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 7


@pytest.mark.parametrize("options", [("--executor", "ray"), ("--sanitizer", "memcheck")])
def test_what_needs_another_process_is_refused(
    start: Start, options: tuple[str, ...], approved: Approved
) -> None:
    process = start("pass", *options)
    _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 2
    approved(err)


def job(device: str) -> Job:
    case = Case(id=device, scenario="stub", system="kernel", op="write_kv")
    return Job(key=device, case=case, device=device)


class Answers:
    """Stands for a worker; remembers the GPU of each request."""

    def __init__(self, is_spent: bool = False) -> None:
        self.gpus: list[int | None] = []
        self.is_spent = is_spent

    def __call__(self, request: Any, execute: Any) -> Reply:
        self.gpus.append(request.gpu)
        result = CaseResult.of(request.job, Verdict.PASS)
        return Reply(result=result.model_dump(mode="json"), is_spent=self.is_spent)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> InProcessPool:
    found = Environment(
        torch="2",
        cuda="13",
        gpus=(Gpu(name="H", capability="9.0", memory_bytes=1, uuid="of-a-test"),),
    )
    monkeypatch.setattr(in_process, "describe_machine", lambda: found)
    return InProcessPool()


def test_a_case_on_cuda_gets_a_locked_gpu(
    pool: InProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    monkeypatch.setattr(in_process, "reply_to", answers)
    with pool:
        assert len(pool.run_in_order([job("cpu"), job("cuda"), job("cuda")])) == 3
        locks = GpuLocks(pool.start().gpus)
        assert locks.take() == ()
    assert answers.gpus == [None, 0, 0]
    assert locks.take() == (0,)
    locks.give_back(0)


def test_after_cuda_has_failed_the_result_is_kept_and_the_run_ends(
    pool: InProcessPool, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(in_process, "reply_to", Answers(is_spent=True))
    with pool:
        results = pool.run([job("cuda"), job("cpu")])
        assert next(results).verdict is Verdict.PASS
        with approved.raises(WorkerError):
            next(results)


def test_a_plugin_that_does_not_load_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\n")
    with pytest.raises(InputError, match="registers no kernel"):
        InProcessPool().describe_kernels([str(tmp_path / "broken.py")])
