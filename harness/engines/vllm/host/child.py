"""The process that imports vLLM. It runs one part after another and writes each Run to a file.

Only the vllm-host target starts it, with no visible GPU and with Triton's interpreter on: both must be set before torch
and Triton are imported. A fault is injected for one request, so that one import of vLLM serves all requests.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

import torch

from harness.core.params import Record
from harness.engines.patches import find_owner
from harness.engines.vllm.faults import patch_for
from harness.engines.vllm.params import VllmHostParams
from harness.judge.run_records import Run
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


def main(parent: Parent) -> None:
    """Answer requests until the parent has no more. An error ends one request only."""
    torch.set_num_threads(1)
    # Triton's interpreter is repaired before vLLM defines kernels with it.
    prepare()
    for request in parent.requests(HostRequest):
        parent.reply(answer(request))


def answer(request: HostRequest) -> Reply:
    """Run one part. A missing package is refused with the command that installs it."""
    try:
        torch.save(run(request), request.file)
    except ModuleNotFoundError as error:
        # A missing module of vLLM itself means that this release has other code than the harness calls.
        if error.name and error.name.partition(".")[0] != "vllm":
            return Reply(refused=f"vLLM's Python needs {error.name} (pip install '.[vllm-host]')")
        return reply_to_error(error)
    except Exception as error:
        return reply_to_error(error)
    return Reply(result={})


def run(request: HostRequest) -> Run:
    """Import the part's module of this package, which imports vLLM, and run it with the request's fault injected."""
    poison = Poison(request.pattern, frozenset(request.sites), strict=request.strict, seed=request.seed)
    torch.manual_seed(request.seed)
    part = importlib.import_module(f"{__package__}.{request.params.part.replace('-', '_')}")
    with injected(request.fault):
        found: Run = part.run(poison, request.params)
    return found


@contextlib.contextmanager
def injected(fault: str | None) -> Iterator[None]:
    """Inject one of vLLM's bugs for the life of the block. Raises PatchRefused if the patch does not fit the code."""
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
