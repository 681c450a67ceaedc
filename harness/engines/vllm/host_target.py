"""vLLM's own Python as a target: a child process without a GPU runs its code on inputs of the harness."""

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

INSTALL = "pip install '.[vllm-host]' && pip install --no-deps vllm==0.33.0"
NEEDED = ("triton", "transformers", "msgspec", "cbor2", "xgrammar", "regex", "zmq")
"""Packages that vLLM's Python imports and that are often missing."""


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
            return f"vLLM's Python needs {', '.join(missing)} (pip install '.[vllm-host]')"
        return (why_not(fault, version) or "") if fault else ""

    def run(self, poison: Poison) -> Run:
        """Run the part in a child. A child that dies is the run's error. Raises InputError if the child refuses."""
        child = _child()
        with tempfile.TemporaryDirectory() as scratch:
            file = str(Path(scratch) / "run.pt")
            child.empty_log()
            child.send(
                HostRequest(
                    params=self.case.params_as(VllmHostParams),
                    pattern=poison.pattern,
                    sites=tuple(sorted(poison.sites)),
                    strict=poison.strict,
                    seed=poison.seed,
                    fault=self.fault,
                    file=file,
                )
            )
            try:
                reply = child.receive()
            except ChildDied as died:
                error = KernelError(f"vLLM's process {died.death.ended}: {child.last_line()}")
                return Run(poison.pattern, error=error, log=died.log)
            if reply.result is not None:
                # Safe to unpickle: our own child wrote the file.
                run: Run = torch.load(file, weights_only=False)
                return run
        if reply.refused is not None:
            raise InputError(reply.refused)
        # This is no crash of vLLM: the release has other code than the harness calls.
        raise RuntimeError(f"vLLM {base.installed_version(ENGINE)}: {reply.failed}")


ENVIRON = {
    "CUDA_VISIBLE_DEVICES": "",
    "TRITON_INTERPRET": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""vLLM sees no GPU and therefore no known platform, and its Triton kernels are interpreted."""

_kept: list[Child] = []
"""The child that has imported vLLM. It is kept for the next case, because the import needs many seconds."""


def _child() -> Child:
    """The kept child, or a new one if it is dead."""
    if _kept and _kept[0].ended():
        _kept.pop().close()
    if not _kept:
        _kept.append(Child("harness.engines.vllm.host.child", name="vLLM's process", environ=ENVIRON))
    return _kept[0]
