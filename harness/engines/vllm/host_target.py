"""vLLM's own Python as a target, without a GPU: its code runs in a child process on inputs of the harness."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from harness.core.cases import Case
from harness.core.errors import InputError, KernelError
from harness.core.python_path import python_path
from harness.engines.vllm.faults import why_not
from harness.engines.vllm.kernels.support import installed_version
from harness.judge.run_records import Run
from harness.judge.target import Target
from harness.memory.poison.patterns import Poison

INSTALL = "pip install mla-harness[vllm-host] && pip install --no-deps vllm==0.33.0"
NEEDED = ("triton", "transformers", "msgspec", "cbor2", "xgrammar", "regex", "zmq")
"""Some of the packages that vLLM's Python imports: the ones that people miss."""
LOG_TAIL_BYTES = 4_000


class VllmHostTarget(Target):
    """One part of the installed vLLM, run once for each poison pattern."""

    injects_faults = True

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> str:
        """See :meth:`Target.why_not`."""
        version = installed_version()
        if version is None:
            return f"vLLM is not installed ({INSTALL})"
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            return f"vLLM's Python needs {', '.join(missing)} (pip install mla-harness[vllm-host])"
        return (why_not(fault, version) or "") if fault else ""

    def run(self, poison: Poison) -> Run:
        """Run the part in a child. A child that dies is the run's error; one that refuses is an InputError."""
        child = _child()
        order = {
            "fault": self.fault,
            "params": self.case.params.model_dump(mode="json"),
            "pattern": poison.pattern,
            "sites": sorted(poison.sites),
            "strict": poison.strict,
            "seed": poison.seed,
        }
        try:
            return child.ask(order)
        except KernelError as error:
            return Run(poison.pattern, error=error, log=child.log())


class _Child:
    """A process that has imported vLLM, kept for the next case: the import takes many seconds."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.engines.vllm.host.child"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=_environ(), text=True,
        )  # fmt: skip

    def ask(self, order: dict[str, Any]) -> Run:
        """Have one order carried out. Raises KernelError when the child dies of it, else whatever it told."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as scratch:
            line = json.dumps({**order, "file": str(Path(scratch) / "run.pt")})
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
            answer = self._process.stdout.readline()
            if not answer:
                raise KernelError(f"vLLM's process {self._how_it_ended()}: {_last_line(self.log())}")
            told = json.loads(answer)
            if "ok" in told:
                # The file is our own child's.
                run: Run = torch.load(told["ok"], weights_only=False)
                return run
        if "refused" in told:
            raise InputError(told["refused"])
        # Not a crash of vLLM's: its code is other than what the harness calls.
        raise RuntimeError(f"vLLM {installed_version()}: {told['failed']}")

    @property
    def is_alive(self) -> bool:
        """Whether another order can be given."""
        return self._process.poll() is None

    def log(self) -> str:
        """The end of what it printed."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - LOG_TAIL_BYTES))
        return self._log.read().decode("utf-8", "replace")

    def close(self) -> None:
        """End it."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        return f"died ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"


_kept: list[_Child] = []


def _child() -> _Child:
    """The child of this process, another one when it is dead."""
    if _kept and not _kept[0].is_alive:
        _kept.pop().close()
    if not _kept:
        _kept.append(_Child())
    return _kept[0]


def _environ() -> dict[str, str]:
    """Without a GPU to be seen vLLM takes its platform to be unknown, and its Triton kernels are interpreted."""
    ours = {
        "PYTHONPATH": python_path(), "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    }  # fmt: skip
    return {**os.environ, **ours}


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it printed nothing"
