"""The machine and its versions, as `doctor` and every report show them.

A worker gathers them once.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.core.catalog import ENGINES
from harness.core.cause_codes import Code, WhyNot
from harness.core.checkout import on_path
from harness.core.errors import InputError
from harness.core.installed import folder_of, version_of
from harness.core.params import Record

DEVICES = ("cpu", "cuda")


class Gpu(Record):
    """One CUDA device."""

    name: str
    capability: str
    memory_bytes: int
    uuid: str = ""


class Environment(Record):
    """The machine and the versions that a result depends on; a missing package is None."""

    harness: str | None = None
    python: str = ""
    platform: str = ""
    cpu: str = ""
    num_cores: int = 1
    torch: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    triton: str | None = None
    engines: dict[str, str] = Field(default={})
    """The version of each engine of the catalog that is installed, by its name."""
    engine_paths: dict[str, str] = Field(default={})
    """The folder that each installed engine is imported from."""
    variables: dict[str, str] = Field(default={})
    """Environment variables of engines that are set, of those that reports show."""
    pandas: str | None = None
    cluster: str = ""
    """The cluster at the start of the run, if there is one.

    The other facts are about one of its nodes.
    """

    def why_not(self, device: str) -> WhyNot | None:
        """Why `device` cannot be used here, None when it can."""
        if self.torch is None:
            why = "torch is not installed: python3 -m pip install torch"
            return WhyNot(why, Code.NOT_INSTALLED)
        if device == "cpu" or (device == "cuda" and self.gpus):
            return None
        if device != "cuda":
            return WhyNot(f"device {device!r} is unknown: choose one of {', '.join(DEVICES)}")
        if self.cuda is None:
            return WhyNot(f"torch {self.torch} is built without CUDA", Code.NO_DEVICE)
        why = f"torch {self.torch} is built for CUDA {self.cuda} but sees no GPU"
        return WhyNot(why, Code.NO_DEVICE)


def import_first(folder: Path) -> None:
    """Have this process and its workers import engines from `folder`: a checkout, or a folder of
    pip --target.

    Raises InputError if no engine is there.
    """
    folder = folder.expanduser().resolve()
    if not any((folder / engine.package).is_dir() for engine in ENGINES):
        names = " or ".join(engine.package for engine in ENGINES)
        raise InputError(
            f"--engine-path {folder}: no package {names} there; name the folder that holds it"
        )
    # Workers read the variable. This process has its path already, and needs the second line.
    os.environ |= on_path(folder)
    sys.path.insert(0, str(folder))


def num_usable_cores() -> int:
    """Cores that this process may run on: in a container perhaps fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_machine() -> Environment:
    """Gather the facts about this machine. Imports torch, so only workers call it."""
    return Environment(
        harness=version_of("mla-harness"),
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu_name(),
        num_cores=num_usable_cores(),
        **_torch_facts(),
        triton=version_of("triton"),
        engines=_found((engine.name, engine.version()) for engine in ENGINES),
        engine_paths=_found((engine.name, folder_of(engine.package)) for engine in ENGINES),
        variables=_found(
            (name, os.environ.get(name)) for engine in ENGINES for name in engine.reported
        ),
        pandas=version_of("pandas"),
    )


def _found(facts: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    return {name: value for name, value in facts if value is not None}


def _torch_facts() -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        return {"torch": version_of("torch")}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = tuple(_gpu(torch.cuda.get_device_properties(index)) for index in range(count))
    return {"torch": str(torch.__version__), "cuda": torch.version.cuda, "gpus": gpus}


def _gpu(properties: Any) -> Gpu:
    return Gpu(
        name=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        memory_bytes=int(properties.total_memory),
        uuid=str(getattr(properties, "uuid", "")),
    )


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
