"""The systems, engines and kinds of models: what a row says, and the rows of the harness.

Engines add their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.errors import UnknownNameError
from harness.core.files import rows_beside, with_tuples
from harness.core.installed import stated_version, version_of
from harness.core.params import Params
from harness.core.registry import attribute_at, nearest


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """One kind of case. Nothing outside the table of systems compares their names.

    `subject` completes the sentence "12 cases of ...". `params` is "module:Model", the model of its
    parameters; for a system `with_op`, "module:TABLE" of models by op. `target` is "module:Class",
    a `harness.judge.target.Target` that runs its cases in a worker. `kernels` maps each parameter
    that names a kernel to its op; a system `with_op` has the one parameter `kernel`. `uses_twins`
    says that on CUDA each kernel is replaced by its `cuda_twin`, which a graph can capture.
    `devices` are the devices of its jobs. A case that `serves` starts a process that takes the
    device `serves_on` itself. A case that `asks_canary` takes long, needs the fixtures, and keeps
    each answer in the folder of its run. A file may name a system with `in_scenarios`, and have an
    accuracy section if it `has_accuracy`. `shows_launches`: kernel launches can be traced, and a
    run lasts seconds. Such a case can be shrunk, exported as a script, and used to judge a fix.
    `records_first_nan`: the first-NaN recorder can watch it. `unusable` says why no case can run
    anywhere: the tables of its engine do not load. `serve_command` is "module:function" that makes
    the shell command of a case, without this project. `plain_script` is "module:function": (case,
    marker) -> a script that runs the case without this project, with one marked line.
    """

    name: str
    summary: str
    params: str
    subject: str = ""
    target: str = ""
    with_op: bool = False
    kernels: Mapping[str, str] = field(default_factory=dict)
    uses_twins: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")
    serves: bool = False
    serves_on: str = "cuda"
    asks_canary: bool = False
    in_scenarios: bool = True
    has_accuracy: bool = False
    shows_launches: bool = False
    records_first_nan: bool = False
    serve_command: str = ""
    plain_script: str = ""
    unusable: str = ""

    @property
    def needs_gpu(self) -> bool:
        """Whether its cases serve on a GPU, although a worker without one starts them."""
        return self.serves and self.serves_on == "cuda"

    @property
    def is_asked(self) -> bool:
        """Whether its cases are questions to a model elsewhere, which no worker runs."""
        return not self.target

    def model(self, op: str | None = None) -> type[Params]:
        """The model of the parameters of a case.

        Raises UnknownNameError for an op that has none.
        """
        found = attribute_at(self.params)
        if self.with_op and op not in found:
            raise UnknownNameError(
                f"system {self.name} has no op {op!r}; {nearest(str(op), list(found))}"
            )
        model: type[Params] = found[op] if self.with_op else found
        return model

    def ops(self) -> list[str]:
        """The ops that its cases can have; empty for a system without ops."""
        return list(attribute_at(self.params)) if self.with_op else []

    def kernels_of(self, op: str | None) -> Mapping[str, str]:
        """Each parameter that names a kernel, with the op of that kernel."""
        return {"kernel": op or ""} if self.with_op else self.kernels


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A serving engine, or a package of kernels, that the harness judges.

    `name` is its folder, `title` its name in texts, `distribution` its name for pip, `package` its
    name for import, `install` the argument for pip if it is not the distribution. Environment
    variables that begin with one of `variables` change what it does; `doctor` and reports show
    those in `reported`. `slow_modules` take seconds to import; a spare worker imports them before
    it has a case.
    """

    name: str
    title: str
    distribution: str
    package: str
    install: str = ""
    variables: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    slow_modules: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One sentence for lists."""
        return f"{self.title}, installed as {self.distribution}"

    def version(self) -> str | None:
        """The version that would be imported, without importing it; None if it is not there.

        A checkout on the path states its version; the installed distribution may be another one.
        """
        return stated_version(self.package) or version_of(self.distribution)


def engine_versions(environment: Mapping[str, Any]) -> dict[str, str]:
    """Name -> installed version of each engine, from the environment of a run."""
    versions: dict[str, str] = environment.get("engines") or {}
    return versions


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A kind of model that `mla-harness epochs --model NAME:WHERE` can ask.

    `open` is "module:function": (where, *, concurrency, options) -> Backend, called in a child
    process. `options` are the fields of `ModelParams` for this kind only.
    """

    name: str
    where: str
    summary: str
    open: str
    options: tuple[str, ...] = ()


_ROWS = rows_beside(__file__)
SYSTEMS = tuple(SystemSpec(name, **with_tuples(row)) for name, row in _ROWS["systems"].items())
MODELS = tuple(ModelSpec(name, **with_tuples(row)) for name, row in _ROWS["models"].items())
"""The entries of `systems.yaml`, in its order.

`mla-harness epochs --model KIND:WHERE` can ask a model.
"""
ENGINE_KERNELS: Mapping[str, str] = _ROWS["systems"]["engine"]["kernels"]
"""Parameter of the reference engine -> op of the kernel that it names."""
