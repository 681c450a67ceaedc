"""Objects and arguments with which the parts call vLLM's code on a CPU, whatever the release."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from unittest import mock

from vllm.v1.attention.backends.mla import flashmla


def made_without_init(kind: type, **attributes: Any) -> Any:
    """An object of one of vLLM's classes with these attributes. Its `__init__`, which needs a GPU, does not run."""
    made: Any = object.__new__(kind)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def accepted(arguments: dict[str, Any], *functions: Callable[..., Any]) -> dict[str, Any]:
    """The `arguments` that at least one of the functions has as a parameter. Parameters differ between releases."""
    named = {name for function in functions for name in inspect.signature(function).parameters}
    return {name: value for name, value in arguments.items() if name in named}


def lazy_plans() -> Any:
    """A patch with which FlashMLA's builder returns an empty plan, as its CUDA extension does before the first call."""
    return mock.patch.object(flashmla, "get_mla_metadata", lambda *a, **k: (flashmla.FlashMLASchedMeta(), None))
