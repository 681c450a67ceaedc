"""Whether vLLM's kernels can run here: asked of package metadata and the device, without importing vLLM.

A kernel's KernelSpec names one of these functions as `requires`; each answers with one clause or None.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Container
from importlib.metadata import PackageNotFoundError, version

import torch

OLDEST = (0, 20)
"""The first release whose kernels are called with these signatures."""
TRIED = ("0.21.0", "0.22.1", "0.24.0")
"""Releases on which the kernels were run; see docs/vllm.md."""


def installed_version() -> str | None:
    """The installed vLLM's version, or None."""
    if importlib.util.find_spec("vllm") is None:
        return None
    try:
        return version("vllm")
    except PackageNotFoundError:
        return "unknown"


def on_any(device: str) -> str | None:
    """For kernels that run on every CUDA device that vLLM supports."""
    return _missing(device)


def on_hopper(device: str) -> str | None:
    """For kernels built for compute capability 9.0 alone."""
    return _missing(device) or other_capability((9,), "Hopper (9.0)")


def on_hopper_or_blackwell(device: str) -> str | None:
    """For kernels built for compute capabilities 9.0 and 10.0."""
    return _missing(device) or other_capability((9, 10), "Hopper (9.0) or data-center Blackwell (10.0)")


def on_blackwell(device: str) -> str | None:
    """For kernels built for compute capability 10.x alone."""
    return _missing(device) or other_capability((10,), "data-center Blackwell (10.0, 10.3)")


def _missing(device: str) -> str | None:
    if device != "cuda":
        return f"vLLM's kernels run on cuda, not on {device}"
    found = installed_version()
    if found is None:
        return "vLLM is not installed (pip install mla-harness[vllm])"
    numbers = found.split(".")
    if found != "unknown" and (int(numbers[0]), int(numbers[1])) < OLDEST:
        return f"vLLM {found} is older than {OLDEST[0]}.{OLDEST[1]}, whose signatures are called"
    return None if torch.cuda.is_available() else "no CUDA device on this machine"


def other_capability(majors: Container[int], words: str) -> str | None:
    """Why this machine's GPU is none of a kernel's, which is built for these major numbers; None where it is."""
    major, minor = torch.cuda.get_device_capability()
    return None if major in majors else f"built for {words}; this GPU is {major}.{minor}"
