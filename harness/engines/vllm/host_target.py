"""vLLM's own Python as a target, without a GPU: its code runs in a child process on inputs of the harness."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

from harness.core.cases import Case
from harness.core.errors import InputError, KernelError
from harness.engines import base
from harness.engines.vllm.faults import why_not
from harness.engines.vllm.host.child import HostRequest
from harness.engines.vllm.params import VllmHostParams
from harness.engines.vllm.tables import ENGINE
from harness.judge.run_records import Run
from harness.judge.target import Target
from harness.memory.poison.patterns import Poison
from harness.run.child import Child, ChildDied

INSTALL = "pip install mla-harness[vllm-host] && pip install --no-deps vllm==0.33.0"
NEEDED = ("triton", "transformers", "msgspec", "cbor2", "xgrammar", "regex", "zmq")
"""Some of the packages that vLLM's Python imports: the ones that people miss."""


class VllmHostTarget(Target):
    """One part of the installed vLLM, run once for each poison pattern."""

    injects_faults = True

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> str:
        """See :meth:`Target.why_not`."""
        version = base.installed_version(ENGINE)
        if version is None:
            return f"vLLM is not installed ({INSTALL})"
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            return f"vLLM's Python needs {', '.join(missing)} (pip install mla-harness[vllm-host])"
        return (why_not(fault, version) or "") if fault else ""

    def run(self, poison: Poison) -> Run:
        """Run the part in a child. A child that dies is the run's error; one that refuses is an InputError."""
        child = _child()
        with tempfile.TemporaryDirectory() as scratch:
            file = str(Path(scratch) / "run.pt")
            child.empty_log()
            child.send(HostRequest.of(self.case.params_as(VllmHostParams), poison, self.fault, file))
            try:
                reply = child.receive()
            except ChildDied as died:
                error = KernelError(f"vLLM's process {died.death.ended}: {child.last_line()}")
                return Run(poison.pattern, error=error, log=died.log)
            if reply.result is not None:
                # The file is our own child's.
                run: Run = torch.load(file, weights_only=False)
                return run
        if reply.refused is not None:
            raise InputError(reply.refused)
        # Not a crash of vLLM's: its code is other than what the harness calls.
        raise RuntimeError(f"vLLM {base.installed_version(ENGINE)}: {reply.failed}")


ENVIRON = {
    "CUDA_VISIBLE_DEVICES": "",
    "TRITON_INTERPRET": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""Without a GPU to be seen vLLM takes its platform to be unknown, and its Triton kernels are interpreted."""

_kept: list[Child] = []
"""The child that has imported vLLM, kept for the next case: the import takes many seconds."""


def _child() -> Child:
    """The child of this process, another one when it is dead."""
    if _kept and _kept[0].ended():
        _kept.pop().close()
    if not _kept:
        _kept.append(Child("harness.engines.vllm.host.child", name="vLLM's process", environ=ENVIRON))
    return _kept[0]
