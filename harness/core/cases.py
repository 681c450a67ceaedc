"""A case, and the job that a worker does with it: plain, frozen, and the same in memory and on
disk.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, SerializeAsAny, ValidationInfo, model_validator

from harness.core.catalog import KERNELS, SYSTEMS
from harness.core.errors import UnknownNameError
from harness.core.kernels import SOUND, KernelSpec
from harness.core.params import Params, ParamsT, Record
from harness.core.systems import SystemSpec


class PoisonPlan(Record):
    """Which sites are filled with which patterns; the first pattern is the main one."""

    patterns: tuple[str, ...] = ("nan",)
    sites: tuple[str, ...] = ()
    strict: bool = False
    ignore_contracts: bool = False
    """Poison memory also if the kernel declares that it must be finite.

    This explores a kernel, and judges none.
    """


class KnownFailure(Record):
    """A known failure of an engine's releases, or of a kernel.

    It does not fail a run. A pass of its case does.
    """

    issue: str
    engine: str = ""
    versions: str = ""
    """The releases with the failure, in pip's form: `>=0.21,<0.23`."""
    kernel: str = ""
    """The short name of a kernel, in place of engine and versions."""
    expect: tuple[Literal["fail", "crash"], ...] = ("fail",)
    run: Literal["always", "never"] = "always"
    """`never`: the case is not launched in these releases, for example because it takes the GPU
    down.
    """

    @property
    def where(self) -> str:
        """What has the failure: an engine with its versions, or a kernel."""
        return f"kernel {self.kernel}" if self.kernel else f"{self.engine} {self.versions}"

    def covers(self, version: str) -> bool:
        """Whether a release has the failure. A build of a commit counts as its release."""
        # Imported for a known failure only: a list is instant.
        from packaging.specifiers import SpecifierSet
        from packaging.version import Version

        return SpecifierSet(self.versions).contains(Version(version).base_version, prereleases=True)


MARK = "@"
"""In an id, behind the case of a scenario and before the values that differ from it."""


class Case(Record):
    """One point of a scenario's matrix.

    `id` alone reproduces it, as the seed is derived from the id.

    `params` is an object of the model in the table of systems; for a kernel the op selects it.
    """

    id: str
    scenario: str
    system: str
    op: str | None = None
    refs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    params: SerializeAsAny[Params]
    poison: PoisonPlan = PoisonPlan()
    oracles: tuple[str, ...] = ()
    seed: int = 0
    named: tuple[str, ...] = ()
    """The parameters with a kernel that the id names.

    The case does not pass unless it was launched.
    """
    known: tuple[KnownFailure, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _typed(cls, values: Any, info: ValidationInfo) -> Any:
        """Convert the parameters to their model."""
        if not isinstance(values, dict) or isinstance(values.get("params"), Params):
            return values
        given = values.get("params") or {}
        if not isinstance(given, dict):
            raise ValueError("params is no map")
        try:
            model = SYSTEMS.get(values.get("system", "")).model(values.get("op"))
        except UnknownNameError as error:
            raise ValueError(str(error)) from None
        return values | {"params": model.model_validate(given, context=info.context)}

    @property
    def kind(self) -> SystemSpec:
        return SYSTEMS.get(self.system)

    @property
    def is_varied(self) -> bool:
        """Whether parameters or poison are others than those that its scenario says."""
        return MARK in self.id

    def params_as(self, model: type[ParamsT]) -> ParamsT:
        """The parameters as `model`. Raises TypeError if they are of another model."""
        if not isinstance(self.params, model):
            raise TypeError(f"{self.id}: has {type(self.params).__name__}, not {model.__name__}")
        return self.params

    def values(self) -> dict[str, JsonValue]:
        """The op, if there is one, and the parameters, as plain JSON."""
        return ({"op": self.op} if self.op else {}) | self.params.model_dump(mode="json")

    def kernels(self) -> dict[str, str]:
        """Parameter -> kernel that it names, as `op/short_name`."""
        named = self.kind.kernels_of(self.op)
        return {field: f"{op}/{getattr(self.params, field)}" for field, op in named.items()}

    @property
    def uses_sound_variant(self) -> bool:
        """Whether it judges a kernel that is right by construction."""
        return any(name.partition("/")[2].startswith(SOUND) for name in self.kernels().values())

    def uses_kernel(self, names: Collection[str]) -> bool:
        """Whether one of its kernels has a name of `names`, with or without its op:

        `mine`, `mla_decode/mine`.
        """
        return any(
            name in names or name.partition("/")[2] in names for name in self.kernels().values()
        )

    def known_kernels(self) -> list[KernelSpec]:
        return [KERNELS.get(name) for name in self.kernels().values() if name in KERNELS]

    @property
    def has_plugin(self) -> bool:
        """Whether a kernel of a user is called, which may round otherwise than ours."""
        return any(spec.is_plugin for spec in self.known_kernels())

    def compile_seconds(self) -> dict[str, float]:
        """The kernels that compile on their first call, and for how long they may."""
        return {
            spec.name: spec.compile_seconds for spec in self.known_kernels() if spec.compile_seconds
        }


class AskVerdict(Record):
    """Run the case under its poison, and judge it."""

    kind: Literal["verdict"] = "verdict"


class AskFirstNan(Record):
    """Run the case with the first-NaN recorder, and find the first launch that reads memory of
    `sites`.
    """

    kind: Literal["first_nan"] = "first_nan"
    sites: tuple[str, ...] = ()


Ask = Annotated[AskVerdict | AskFirstNan, Field(discriminator="kind")]


class CellOf(Record):
    """Where the kernels of plug-in files run, in place of a worker: in a cell, see
    :mod:`harness.cell`.

    `server` is the socket of the server of cells. With `name`, the function of this name is the
    kernel. `words` are what its decorator does not say: the op, the name.
    """

    server: str
    device: str = "cpu"
    name: str = ""
    words: dict[str, JsonValue] = Field(default_factory=dict)
    seconds: float = 60.0
    """How long one call may take."""


class MeasureSpeed(Record):
    """What :mod:`harness.judge.speed` measures: the kernels of `file` in a cell, at `sizes`
    (requests and keys), or at those of its device.
    """

    cell: CellOf
    file: str
    sizes: tuple[tuple[int, int], ...] = ()


class Job(Record):
    """What a worker does with one case."""

    key: str
    case: Case
    ask: Ask = AskVerdict()
    fault: str | None = None
    sites: tuple[str, ...] | None = None
    """Sites to poison instead of the case's own, to find the one to blame.

    The others hold zeros.
    """
    device: str = "cpu"
    plugins: tuple[str, ...] = ()
    """The plug-in files that its kernels come from. No others are imported for it."""
    cell: CellOf | None = None
    """Where the kernels of `plugins` run; None for the worker itself."""
    ends_worker: bool = False
    """It imports plug-ins, which is quick, so no other case needs its process."""
    timeout_seconds: float = 60.0
    gpus: tuple[int, ...] = ()
    """The GPUs reserved for a case that needs several, numbered as its worker sees them."""
    directory: str | None = None
    """The folder in which a long case stores its progress for `--resume`."""

    @property
    def kernel_device(self) -> str:
        """Where its kernels run: in its cell, if it has one; its worker judges on `device`."""
        return self.cell.device if self.cell else self.device

    @property
    def foreign_code(self) -> tuple[str, ...]:
        """The files of people that a worker imports for it: plug-ins, and modules of installed
        packages.
        """
        installed = {spec.origin for spec in self.case.known_kernels() if spec.is_plugin}
        return tuple(sorted(installed.union(self.plugins)))

    @property
    def poisoned_sites(self) -> tuple[str, ...]:
        return self.case.poison.sites if self.sites is None else self.sites


class JobBatch(Record):
    """Jobs for one process, in order."""

    jobs: tuple[Job, ...]
