"""What an engine brings: a folder of `harness/engines` with a module `tables`, read by the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A serving engine, or a package of kernels, that the harness judges.

    `name` is its folder, `title` how people write it, `distribution` its package in pip's words, `package` the one to
    import, `install` what users give to pip unless it is the distribution. Environment variables that begin with one
    of `variables` decide what it does, and travel with a case.
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
    """The installed version of each engine by its name, from the environment of a run."""
    versions: dict[str, str] = environment.get("engines") or {}
    # Runs of version 0.1 keep them beside the other facts.
    return versions or {name: environment[name] for name in ("vllm", "flashinfer") if environment.get(name)}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A kind of model that `mla-harness epochs --model NAME:WHERE` can ask.

    `open` is "module:function": (where, *, concurrency, options) -> Backend, run in a child process. `options` are
    the fields of `ModelParams` that only this kind has.
    """

    name: str
    where: str
    summary: str
    open: str
    options: tuple[str, ...] = ()
