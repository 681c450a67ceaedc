"""Whether vLLM's kernels can run here, by package metadata and device. vLLM is not imported.

A KernelSpec names one of these functions as `requires`. Each returns why the kernel cannot run, or None.
"""

from __future__ import annotations

from harness.engines import base
from harness.engines.vllm.tables import ENGINE

OLDEST = "0.20"
"""The first release whose kernels are called with these signatures."""


def on_any(device: str) -> str | None:
    """For kernels that run on every CUDA device that vLLM supports."""
    return _missing(device)


def on_hopper(device: str) -> str | None:
    """For kernels built for compute capability 9.0 alone."""
    return _missing(device) or base.why_not_built((9,), "Hopper (9.0)")


def on_hopper_or_blackwell(device: str) -> str | None:
    """For kernels built for compute capabilities 9.0 and 10.0."""
    return _missing(device) or base.why_not_built((9, 10), "Hopper (9.0) or data-center Blackwell (10.0)")


def on_blackwell(device: str) -> str | None:
    """For kernels built for compute capability 10.x alone."""
    return _missing(device) or base.why_not_built((10,), "data-center Blackwell (10.0, 10.3)")


def _missing(device: str) -> str | None:
    if reason := base.why_no_kernels(ENGINE, device):
        return reason
    found = str(base.installed_version(ENGINE))
    if found != "unknown" and base.release_of(found) < base.release_of(OLDEST):
        return f"vLLM {found} is older than {OLDEST}, whose signatures are called"
    return None
