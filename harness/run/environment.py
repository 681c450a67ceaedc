"""What this machine is and can run, asked once of a worker; `doctor` and every report use the same facts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.core.catalog import ENGINES
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
    """The folder that each of them is imported from."""
    pandas: str | None = None
    cluster: str = ""
    """What the cluster was at the start of the run, where there is one; the other facts are of one of its nodes."""

    def why_not(self, device: str) -> str:
        """Why `device` cannot be used here, or an empty string when it can."""
        if self.torch is None:
            return "torch is not installed: python3 -m pip install torch"
        if device == "cpu" or (device == "cuda" and self.gpus):
            return ""
        if device != "cuda":
            return f"device {device!r} is unknown: choose one of {', '.join(DEVICES)}"
        if self.cuda is None:
            return f"torch {self.torch} is built without CUDA"
        return f"torch {self.torch} is built for CUDA {self.cuda} but sees no GPU"


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, without importing it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def num_usable_cores() -> int:
    """Cores this process may run on, which a container can make fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def describe_machine() -> Environment:
    """Gather the facts; imports torch, so it is called in a worker only."""
    cuda, gpus = _cuda_facts()
    return Environment(
        harness=version_of("mla-harness"),
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu_name(),
        num_cores=num_usable_cores(),
        torch=_torch_version(),
        cuda=cuda,
        gpus=gpus,
        triton=version_of("triton"),
        engines=_found((engine.name, version_of(engine.distribution)) for engine in ENGINES),
        engine_paths=_found((engine.name, _path_of(engine.package)) for engine in ENGINES),
        pandas=version_of("pandas"),
    )


def _found(facts: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    return {name: value for name, value in facts if value is not None}


def _path_of(package: str) -> str | None:
    """The folder that a package would be imported from, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:
        return None
    return str(Path(spec.origin).parent) if spec is not None and spec.origin else None


def _torch_version() -> str | None:
    torch = sys.modules.get("torch")
    return str(torch.__version__) if torch is not None else version_of("torch")


def _cuda_facts() -> tuple[str | None, tuple[Gpu, ...]]:
    try:
        import torch
    except ImportError:
        return None, ()
    gpus: list[Gpu] = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found: Any = torch.cuda.get_device_properties(index)
            gpus.append(
                Gpu(
                    name=found.name,
                    capability=f"{found.major}.{found.minor}",
                    memory_bytes=int(found.total_memory),
                    uuid=str(getattr(found, "uuid", "")),
                )
            )
    return torch.version.cuda, tuple(gpus)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
