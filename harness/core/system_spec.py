"""A system: one kind of case, and everything that the project must know about it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from harness.core.errors import UnknownNameError
from harness.core.registry import nearest

if TYPE_CHECKING:
    from harness.core.params import Params


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """One kind of case. Nothing outside the table of systems compares their names.

    `params` is "module:Model", the model of its parameters; for a system `with_op`, "module:TABLE" of models by op.
    `target` is "module:Class", a `harness.judge.target.Target` that runs its cases in a worker.
    `kernels` maps each parameter that names a kernel to its op; a system `with_op` has the one parameter `kernel`.
    `uses_twins` says that on CUDA each kernel is replaced by its `cuda_twin`, which a graph can capture.
    `devices` are the devices of its jobs. A case that `serves` starts a process that takes the GPU itself.
    A case that `asks_canary` takes long, needs the fixtures, and keeps each answer in the folder of its run.
    A file may name a system with `in_scenarios`, and have an accuracy section if it `has_accuracy`.
    `shows_launches`: kernel launches can be traced, and a run lasts seconds. Such a case can be shrunk, exported as a
    script, and used to judge a fix. `records_first_nan`: the first-NaN recorder can watch it.
    """

    name: str
    summary: str
    params: str
    target: str = ""
    with_op: bool = False
    kernels: Mapping[str, str] = field(default_factory=dict)
    uses_twins: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")
    serves: bool = False
    asks_canary: bool = False
    in_scenarios: bool = True
    has_accuracy: bool = False
    shows_launches: bool = False
    records_first_nan: bool = False

    def model(self, op: str | None = None) -> type[Params]:
        """The model of the parameters of a case. Raises UnknownNameError for an op that has none."""
        found = attribute_at(self.params)
        if not self.with_op:
            return cast("type[Params]", found)
        if op not in found:
            raise UnknownNameError(f"system {self.name} has no op {op!r}; {nearest(str(op), list(found))}")
        return cast("type[Params]", found[op])

    def ops(self) -> list[str]:
        """The ops that its cases can have; empty for a system without ops."""
        return list(attribute_at(self.params)) if self.with_op else []

    def kernels_of(self, op: str | None) -> Mapping[str, str]:
        """Each parameter that names a kernel, with the op of that kernel."""
        return {"kernel": op or ""} if self.with_op else self.kernels


def attribute_at(path: str) -> Any:
    """The object at "module:name" or "module:Class.name". Imports the module."""
    module, _, name = path.partition(":")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
