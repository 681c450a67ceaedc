"""Calling a kernel under poison: one launch, with every allocation it makes filled and named by its site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.errors import IllegalAddress, KernelError
from harness.graph.launch import launch
from harness.kernels.spec import KernelSpec
from harness.ops.contracts import OPS
from harness.poison.allocations import AllocationPoison
from harness.poison.patterns import Poison


class BoundKernel:
    """A kernel together with the poison of the run; calling it is one launch.

    Which of a kernel's allocations become its outputs is not known before it returns, so the first call with new
    shapes runs twice: once to learn it, once with outputs and scratch told apart. Kernels of ops that return
    nothing write their arguments and run once.
    """

    def __init__(self, spec: KernelSpec, poison: Poison | None) -> None:
        self.spec = spec
        self._function: Callable[..., Any] = spec.load()
        self._outputs = OPS.get(spec.op).outputs
        self._poison = poison
        self._learned: dict[tuple[Any, ...], dict[int, str]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return launch(self._run, *args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self._poison is None:
            return self._call(args, kwargs)
        if not self._outputs:
            with AllocationPoison(self._poison):
                return self._call(args, kwargs)
        key = tuple(_shape_key(value) for value in (*args, *kwargs.values()))
        if key not in self._learned:
            self._learned[key] = self._learn(args, kwargs)
        with AllocationPoison(self._poison, self._learned[key]):
            return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the kernel's own code, so that what it raises cannot be taken for the harness's fault."""
        try:
            return self._function(*args, **kwargs)
        except IllegalAddress:
            raise
        except (Exception, SystemExit) as error:
            raise KernelError(f"{self.spec.name} raised {type(error).__name__}: {error}") from error

    def _learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, str]:
        assert self._poison is not None
        with AllocationPoison(self._poison) as mode:
            result = self._call(args, kwargs)
        ordinal_of = {address: ordinal for ordinal, address in enumerate(mode.allocations)}
        sites: dict[int, str] = {}
        for output, value in zip(self._outputs, _as_tuple(result), strict=False):
            for tensor in tensors_in(value):
                ordinal = ordinal_of.get(tensor.untyped_storage().data_ptr())
                if ordinal is not None:
                    sites[ordinal] = output.site
        return sites


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a value: itself, or those among the attributes of a metadata object."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [item for item in getattr(value, "__dict__", {}).values() if isinstance(item, torch.Tensor)]


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _shape_key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype)
    return value if isinstance(value, int | float | str | bool | None) else type(value).__name__
