"""The MLA harness.

Importing it is instant: what it offers to plug-ins is loaded when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_poison import frames, sites

if TYPE_CHECKING:
    from harness.core.errors import Refused
    from harness.core.findings import Finding
    from harness.kernels.plugins import kernel
    from harness.memory.first_nan.recorder import first_nan

    __version__: str

__all__ = ["Finding", "Refused", "__version__", "first_nan", "kernel"]


def __getattr__(name: str) -> Any:
    if name == "kernel":
        from harness.kernels.plugins import kernel

        return kernel
    if name == "first_nan":
        from harness.memory.first_nan.recorder import first_nan

        return first_nan
    if name == "Refused":
        from harness.core.errors import Refused

        return Refused
    if name == "Finding":
        from harness.core.findings import Finding

        return Finding
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'harness' has no attribute {name!r}")


def _tags_of_sites() -> Mapping[str, int]:
    """Site -> the tag in its sentinels, of the harness and of every engine."""
    from harness.core.catalog import SITES

    return {site.name: site.tag for site in SITES}


# The poison knows no site of MLA: it asks for them when it first fills or finds one.
sites.ask(_tags_of_sites)
# What the harness allocates, it allocates for the kernel or the engine that it calls.
frames.skip_package(str(Path(__file__).parent))


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mla-harness")
    except PackageNotFoundError:
        # A checkout that was never installed.
        return "0+unknown"
