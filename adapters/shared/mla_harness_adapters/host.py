"""The process that imports an engine on a CPU.

It runs one part after another and writes each Run to a file.

Only a :class:`mla_harness_adapters.host_target.HostTarget` starts it, with no visible GPU and with
Triton's interpreter on: both must be set before torch and Triton are imported. A fault is injected
for one request, so that one import serves all requests.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch_poison.patterns import Poison

from harness.api import Refused, Run, answer_requests, explained_writes, prepare_interpreter
from mla_harness_adapters.base import installed_version
from mla_harness_adapters.host_target import Host, HostRequest
from mla_harness_adapters.patches import find_owner, replace


def begin() -> None:
    """Prepare this process for an engine on a CPU."""
    torch.set_num_threads(1)
    # Triton's interpreter is repaired before the engine defines kernels with it.
    prepare_interpreter()


def answer(request: HostRequest) -> dict[str, Any]:
    """Run one part, and write its Run to the request's file.

    The result names a package that is missing, or says that this release has no such code. Raises
    whatever else the part raises.
    """
    host = request.host
    try:
        with explained_writes(who=f"{host.engine.title}'s process"):
            torch.save(run(request), made := io.BytesIO())
        with explained_writes(file := Path(request.file)):
            file.write_bytes(made.getvalue())
    except ModuleNotFoundError as error:
        # A missing module of the engine itself means that this release has other code than the
        # harness calls.
        if error.name and error.name.partition(".")[0] != host.engine.package:
            return {"missing": error.name}
        raise
    except Refused as error:
        return {"refused": str(error)}
    return {}


def run(request: HostRequest) -> Run:
    """Import the part's module, which imports the engine, and run it with the request's fault
    injected.
    """
    poison = Poison(
        request.pattern, frozenset(request.sites), strict=request.strict, seed=request.seed
    )
    torch.manual_seed(request.seed)
    host = request.host
    params = request.case.params
    if host.prepare:
        pkgutil.resolve_name(host.prepare)()
    name = str(request.case.values()["part"])
    part = importlib.import_module(f"{host.parts}.{name.replace('-', '_')}")
    with injected(host, request.fault):
        found: Run = part.run(poison, params)
    return found


@contextlib.contextmanager
def injected(host: Host, fault: str | None) -> Iterator[None]:
    """Inject one of the engine's bugs for the life of the block.

    Raises PatchRefused if it does not fit the code.
    """
    if fault is None:
        yield
        return
    version = installed_version(host.engine) or ""
    patch = host.patches.find(fault, version)
    edited = {edit.target for edit in patch.edits}
    originals = [(owner, name, owner.__dict__[name]) for owner, name in map(find_owner, edited)]
    try:
        patch.apply(version)
        yield
    finally:
        for owner, name, original in originals:
            replace(owner, name, original)


if __name__ == "__main__":
    answer_requests(HostRequest, answer, begin=begin)
