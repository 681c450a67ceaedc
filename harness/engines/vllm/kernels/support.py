"""Whether vLLM's kernels can run here, by package metadata and device. vLLM is not imported.

A KernelSpec names one of the `on_...` checks as `requires`. Each returns why the kernel cannot run, or None.
"""

from __future__ import annotations

from functools import partial

from harness.engines import base
from harness.engines.vllm.tables import ENGINE

OLDEST = "0.20"
"""The first release with the kernel signatures that are called."""


def on_any(device: str, majors: tuple[int, ...] | None = None, words: str = "") -> str | None:
    """For kernels built for these major compute capabilities, called `words`; by default for every CUDA device."""
    if reason := base.why_no_kernels(ENGINE, device):
        return reason
    found = str(base.installed_version(ENGINE))
    if found != "unknown" and base.release_of(found) < base.release_of(OLDEST):
        return f"vLLM {found} is older than {OLDEST}, the first release with the signatures that are called"
    return None if majors is None else base.why_not_built(majors, words)


on_hopper = partial(on_any, majors=(9,), words="Hopper (9.0)")
on_hopper_or_blackwell = partial(on_any, majors=(9, 10), words="Hopper (9.0) or data-center Blackwell (10.0)")
on_blackwell = partial(on_any, majors=(10,), words="data-center Blackwell (10.0, 10.3)")
