"""What the engines share. An engine is a folder beside this file; `ENGINE_FOLDERS` in `harness.core.catalog` names it.

Its module `tables` has ENGINE, an `EngineSpec`, and the rows that the engine adds to other tables, if it adds any:
SYSTEMS, MODELS, SITES, KERNELS, ORACLES, FAULTS. It imports neither torch nor the engine. Rows name code as
"module:name", and such a module imports the engine inside functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Container
from importlib.metadata import PackageNotFoundError, version

import torch
from packaging.version import InvalidVersion, Version

from harness.core.engine_spec import EngineSpec


def installed_version(engine: EngineSpec) -> str | None:
    """The installed version of an engine; "unknown" without metadata, None without the package. Imports nothing."""
    if importlib.util.find_spec(engine.package) is None:
        return None
    try:
        return version(engine.distribution)
    except PackageNotFoundError:
        return "unknown"


def release_of(version: str) -> tuple[int, ...]:
    """The three numbers of a version: 0.22.1rc1 -> (0, 22, 1), 0.22 -> (0, 22, 0), and zeros for other text."""
    try:
        return (*Version(version).release, 0, 0)[:3]
    except InvalidVersion:
        return (0, 0, 0)


def why_not_installed(engine: EngineSpec) -> str | None:
    """Why the engine cannot be imported here, with the command that installs it; None when it can."""
    if installed_version(engine) is not None:
        return None
    return f"{engine.title} is not installed (pip install {engine.install or engine.distribution})"


def why_no_kernels(engine: EngineSpec, device: str) -> str | None:
    """Why no CUDA kernel of the engine runs on `device` here; None when nothing is known against it."""
    if device != "cuda":
        return f"{engine.title}'s kernels run on cuda, not on {device}"
    return why_not_installed(engine) or (None if torch.cuda.is_available() else "no CUDA device on this machine")


def why_not_built(majors: Container[int], words: str) -> str | None:
    """Why a kernel built for GPUs of these major compute capabilities, in `words`, does not run here; None if it does.

    Needs a CUDA device.
    """
    major, minor = torch.cuda.get_device_capability()
    return None if major in majors else f"built for {words}; this GPU is {major}.{minor}"
