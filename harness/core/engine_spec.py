"""An engine: a folder of `harness/engines` with a module `tables`, which the catalog reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A serving engine, or a package of kernels, that the harness judges.

    `name` is its folder, `title` its name in texts, `distribution` its name for pip, `package` its name for import,
    `install` the argument for pip if it is not the distribution. Environment variables that begin with one of
    `variables` change what it does, and are stored with a case.
    """

    name: str
    title: str
    distribution: str
    package: str
    install: str = ""
    variables: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One sentence for lists."""
        return f"{self.title}, installed as {self.distribution}"


def engine_versions(environment: Mapping[str, Any]) -> dict[str, str]:
    """Name -> installed version of each engine, from the environment of a run."""
    versions: dict[str, str] = environment.get("engines") or {}
    # Runs of version 0.1 have no key `engines`.
    return versions or {name: environment[name] for name in ("vllm", "flashinfer") if environment.get(name)}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A kind of model that `mla-harness epochs --model NAME:WHERE` can ask.

    `open` is "module:function": (where, *, concurrency, options) -> Backend, called in a child process. `options` are
    the fields of `ModelParams` for this kind only.
    """

    name: str
    where: str
    summary: str
    open: str
    options: tuple[str, ...] = ()
