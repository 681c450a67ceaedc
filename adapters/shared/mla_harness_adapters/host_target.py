"""An engine's own Python as a target: a child process without a GPU runs its code on inputs of the
harness.
"""

from __future__ import annotations

import pkgutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch_poison.patterns import Poison

from harness.api import (
    Case,
    Child,
    ChildDied,
    Code,
    EngineSpec,
    InputError,
    KernelError,
    MissingPackage,
    Record,
    Refused,
    Run,
    Target,
    WhyNot,
    read_rows,
)
from mla_harness_adapters import base
from mla_harness_adapters.patches import Patches


@dataclass(frozen=True, slots=True)
class Host:
    """How an engine's Python runs on a CPU.

    `parts` is the package with a module for each part. It has `run(poison, params)`, and may import
    the engine. `prepare` is "module:function" to call before that. `needed` are packages that the
    engine imports and that are often missing. `install` puts the engine beside the extra of the
    same name as the system.
    """

    engine: EngineSpec
    parts: str
    install: str
    needed: tuple[str, ...]
    patches: Patches
    environ: Mapping[str, str] = field(default_factory=dict)
    prepare: str = ""

    @property
    def extra(self) -> str:
        return f"pip install '.[{self.engine.name}-host]'"

    def lacks(self, packages: str) -> str:
        """The sentence about missing packages."""
        return f"{self.engine.title}'s Python needs {packages} ({self.extra})"


def read_host(engine: EngineSpec, patches: Patches, file: Path) -> Host:
    """The row of an engine, in YAML."""
    row: dict[str, Any] = read_rows(file)
    return Host(engine, patches=patches, **row | {"needed": tuple(row["needed"])})


ENVIRON = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1", "HF_HUB_OFFLINE": "1"}
"""The engine sees no GPU, and its Triton kernels are interpreted."""

CHILDREN: dict[str, Child] = {}
"""Engine -> the child that has imported it.

It is kept for the next case, because the import needs many seconds.
"""


class HostRequest(Record):
    """The part of one case to run under one poison, with the file for its Run."""

    case: Case
    pattern: str
    sites: tuple[str, ...]
    strict: bool
    seed: int
    fault: str | None
    file: str

    @property
    def host(self) -> Host:
        """The engine's row."""
        target: type[HostTarget] = pkgutil.resolve_name(self.case.kind.target)
        return target.host


class HostTarget(Target):
    """One part of the installed engine, run once for each poison pattern."""

    host: ClassVar[Host]
    injects_faults = True

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> WhyNot | None:
        host = cls.host
        version = base.installed_version(host.engine)
        if version is None:
            how = f"{host.extra} && {host.install}"
            why = f"{host.engine.title} is not installed ({how})"
            return WhyNot(why, Code.NOT_INSTALLED, f"{host.engine.title}'s Python", how)
        missing = [name for name in host.needed if find_spec(name) is None]
        if missing:
            names = ", ".join(missing)
            return WhyNot(host.lacks(names), Code.NOT_INSTALLED, names, host.extra)
        return host.patches.why_not(fault, version)

    def run(self, poison: Poison) -> Run:
        """Run the part in a child.

        A child that dies is the run's error. Raises InputError or Refused if it refuses.
        """
        title = self.host.engine.title
        child = _child(self.host)
        with tempfile.TemporaryDirectory() as scratch:
            file = str(Path(scratch) / "run.pt")
            child.empty_log()
            child.send(
                HostRequest(
                    case=self.case,
                    pattern=poison.pattern,
                    sites=tuple(sorted(poison.sites)),
                    strict=poison.strict,
                    seed=poison.seed,
                    fault=self.fault,
                    file=file,
                )
            )
            try:
                reply = child.receive()
            except ChildDied as died:
                message = f"{title}'s process {died.death.ended}: {child.last_line()}"
                error = KernelError(message, **died.death.as_cause)
                return Run(poison.pattern, error=error, log=died.log)
            if reply.result and "refused" in reply.result:
                raise Refused(str(reply.result["refused"]))
            if reply.result:
                raise MissingPackage(self.host.lacks(str(reply.result["missing"])))
            if reply.result is not None:
                # Safe to unpickle: our own child wrote the file.
                run: Run = torch.load(file, weights_only=False)
                return run
        if reply.refused is not None:
            raise InputError(reply.refused)
        # This is no crash of the engine: the release has other code than the harness calls.
        raise RuntimeError(f"{title} {base.installed_version(self.host.engine)}: {reply.failed}")


def _child(host: Host) -> Child:
    """The kept child of the engine, or a new one if it is dead."""
    name = host.engine.name
    if name in CHILDREN and CHILDREN[name].ended():
        CHILDREN.pop(name).close()
    if name not in CHILDREN:
        title = f"{host.engine.title}'s process"
        CHILDREN[name] = Child(
            "mla_harness_adapters.host", name=title, environ=ENVIRON | dict(host.environ)
        )
    return CHILDREN[name]
