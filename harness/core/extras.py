"""Packages imported at their first use: extras, and numpy.

A missing extra is one line that says what to install.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.core.cause_codes import Code, WhyNot
from harness.core.errors import InputError

__all__ = [
    "ACCURACY",
    "gguf",
    "httpx",
    "lazily",
    "numpy",
    "pandas",
    "require",
    "ruptures",
    "safetensors",
    "stats",
    "tokenizers",
    "why_module_missing",
    "why_not",
]

ACCURACY = ("lm_eval", "scipy", "httpx", "safetensors", "tokenizers")
_EXTRAS = {
    "accuracy": ACCURACY,
    "dev": ("transformers", "griffe"),
    "gguf": ("gguf",),
    "pytest": ("pytest", "pluggy"),
    "sglang": ("sglang", "sgl_kernel"),
    "reports": ("pandas", "ruptures"),
}
_PIP_NAMES = {
    "lm_eval": "lm-eval",
    "griffe": "griffelib",
    "flashinfer": "flashinfer-python",
    "sgl_kernel": "sglang-kernel",
}
_BY_EXTRA = _EXTRAS | {
    extra: (extra,) for extra in ("ray", "triton", "vllm", "flashinfer", "lmdeploy")
}
PACKAGES = {
    name: (_PIP_NAMES.get(name, name), extra)
    for extra, names in _BY_EXTRA.items()
    for name in names
}
"""Name for import -> name for pip, and the extra of this package that brings it."""


class MissingPackage(InputError):
    """What was asked for needs a package of an extra."""


class _Lazy(ModuleType):
    """Stands for a module that is imported when one of its attributes is asked for."""

    def __getattr__(self, name: str) -> Any:
        require({self.__name__.partition(".")[0]} & PACKAGES.keys())
        return getattr(importlib.import_module(self.__name__), name)


def lazily(module: str) -> Any:
    """A stand-in for `module`.

    Each use of it raises MissingPackage if its package is not installed.
    """
    return _Lazy(module)


if TYPE_CHECKING:
    import gguf
    import httpx
    import numpy
    import pandas
    import ruptures
    import safetensors.torch as safetensors
    import scipy.stats as stats
    import tokenizers
else:
    gguf = lazily("gguf")
    httpx = lazily("httpx")
    tokenizers = lazily("tokenizers")
    numpy, pandas, ruptures, safetensors, stats = map(
        lazily, ("numpy", "pandas", "ruptures", "safetensors.torch", "scipy.stats")
    )


def why_not(packages: Iterable[str]) -> WhyNot | None:
    """Which of `packages` (keys of PACKAGES) are not installed, and what brings them; None if all
    are there.
    """
    missing = [PACKAGES[name] for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    extras = ",".join(sorted({extra for _, extra in missing}))
    names = ", ".join(name for name, _ in missing)
    command = f"pip install '.[{extras}]'"
    return WhyNot(f"{names} not installed: {command}", Code.NOT_INSTALLED, names, command)


def why_module_missing(error: ModuleNotFoundError) -> WhyNot | None:
    """As `why_not`, for the package of the module that an import did not find; None if no extra
    brings it.
    """
    return why_not({(error.name or "").partition(".")[0]} & PACKAGES.keys())


def require(packages: Iterable[str]) -> None:
    """Raise MissingPackage unless all of `packages` are installed."""
    if reason := why_not(packages):
        raise MissingPackage(reason.sentence)
