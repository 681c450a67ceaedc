"""The process that imports vLLM: it runs one part after another, and each Run goes to a file.

Started by the vllm-host target alone, with no GPU to be seen and Triton's interpreter on; both must be decided before
torch and Triton are imported. A fault is injected for one request, so that one import of vLLM serves all.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

import torch

from harness.core.params import Record
from harness.engines.patches import find_owner
from harness.engines.vllm.faults import patch_for
from harness.engines.vllm.host.parts import part
from harness.engines.vllm.params import VllmHostParams
from harness.memory.poison.patterns import Poison
from harness.memory.triton_interpreter import prepare
from harness.run.protocol import Parent, Reply, reply_to_error, run_child


class HostRequest(Record):
    """One part to run under one poison, with the file for its Run."""

    params: VllmHostParams
    pattern: str
    sites: tuple[str, ...]
    strict: bool
    seed: int
    fault: str | None
    file: str

    @classmethod
    def of(cls, params: VllmHostParams, poison: Poison, fault: str | None, file: str) -> HostRequest:
        """The request for a part under `poison`."""
        return cls(
            params=params,
            pattern=poison.pattern,
            sites=tuple(sorted(poison.sites)),
            strict=poison.strict,
            seed=poison.seed,
            fault=fault,
            file=file,
        )


def main(parent: Parent) -> None:
    """Answer requests. What vLLM raises is the answer to one request, and the next may do better."""
    torch.set_num_threads(1)
    # Triton's interpreter is repaired before vLLM defines kernels with it.
    prepare()
    for request in parent.requests(HostRequest):
        parent.reply(answer(request))


def answer(request: HostRequest) -> Reply:
    """Run one part. A package that is not installed is refused with the line that installs it."""
    try:
        run(request)
    except ModuleNotFoundError as error:
        # A module of vLLM's own that is not there is other code than the harness calls.
        if error.name and error.name.partition(".")[0] != "vllm":
            return Reply(refused=f"vLLM's Python needs {error.name} (pip install mla-harness[vllm-host])")
        return reply_to_error(error)
    except Exception as error:
        return reply_to_error(error)
    return Reply(result={})


def run(request: HostRequest) -> None:
    """Run one part and write its Run to the request's file."""
    poison = Poison(request.pattern, frozenset(request.sites), strict=request.strict, seed=request.seed)
    torch.manual_seed(request.seed)
    judged = part(request.params.part)
    with _injected(request.fault):
        torch.save(judged.run(poison, request.params), request.file)


@contextlib.contextmanager
def _injected(fault: str | None) -> Iterator[None]:
    """One of vLLM's bugs injected for one request. Raises PatchRefused if its code is not what the patch expects."""
    if fault is None:
        yield
        return
    version = importlib.import_module("vllm").__version__
    patch = patch_for(fault, version)
    edited = {edit.target for edit in patch.edits}
    originals = [(owner, name, owner.__dict__[name]) for owner, name in map(find_owner, edited)]
    try:
        patch.apply(version)
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


if __name__ == "__main__":
    run_child(main)
