"""Plan the jobs that a user's options ask for: scenarios, plug-ins, cases and devices.

No kernel is executed here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.cases import Case, CellOf, Job
from harness.core.catalog import FAULTS, KERNELS
from harness.core.errors import InputError
from harness.core.files import with_tuples
from harness.core.kernels import KernelSpec
from harness.core.shapes import Shapes
from harness.run.environment import DEVICES
from harness.run.plugin_files import PluginFiles
from harness.scenario.calls_alone import calls_alone
from harness.scenario.drawn import control_cases
from harness.scenario.expand import GPU, LONG, fault_cases, on_device
from harness.scenario.load import SUFFIXES, load_scenarios
from harness.scenario.override import KernelOverride
from harness.scenario.schema import FaultUse, Scenario
from harness.scenario.selection import select, select_scenarios, with_each, with_plugins
from harness.scenario.variant import changed

if TYPE_CHECKING:
    from harness.run.pool import JobPool


LATER_THAN_CELL = 60.0
"""Seconds that the judge of an untrusted kernel gets beside the time of one call."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of a run.

    A selector that is a YAML file stands for the scenarios of this file alone.
    """

    selectors: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    device: str = "auto"
    kernels: tuple[str, ...] = ()
    plugins: tuple[Path, ...] = ()
    fault: str | None = None
    seed: int = 0
    timeout_seconds: float = 60.0
    scenarios: Path | None = None
    changes: str = ""
    """Values that the cases get, as in an id:

    `fence=after`. Cases that cannot have them are left out.
    """
    sample: int | None = None
    """How many of the cases are drawn, by the seed; None: all of them."""
    engine_path: Path | None = None
    """Where engines are imported from first; :func:`harness.run.environment.import_first` was
    called.
    """

    cell: CellOf | None = None
    """Where the kernels of `plugins` run, if they are not trusted."""

    def __post_init__(self) -> None:
        files = [selector for selector in self.selectors if selector.endswith(SUFFIXES)]
        if not files:
            return
        if len(files) > 1 or self.scenarios is not None:
            raise InputError(
                f"{files[-1]}: one file at a time; name the folder of several with --scenarios"
            )
        # The record is frozen; this is part of its creation.
        object.__setattr__(self, "scenarios", Path(files[0]))
        object.__setattr__(
            self,
            "selectors",
            tuple(selector for selector in self.selectors if selector != files[0]),
        )

    @property
    def is_of_everything(self) -> bool:
        """Whether nothing is asked for by name: no scenario, case, kernel, fault or tag."""
        # A file among the selectors has become `scenarios`.
        is_of_a_file = self.scenarios is not None and self.scenarios.suffix in SUFFIXES
        names = [*self.selectors, *self.kernels, *self.plugins, self.fault]
        return (
            not any(names) and not is_of_a_file and all(tag.startswith("not ") for tag in self.tags)
        )

    def reproduction(self) -> dict[str, Any]:
        """The options that decide a case's outcome, for `run.json` and the commands in reports."""
        return {
            # What a command needs to repeat it. A judge's own device is not asked for.
            "device": self.cell.device if self.cell else self.device,
            "kernel": list(self.kernels),
            "plugins": [str(path) for path in self.plugins],
            "fault": self.fault,
            "seed": self.seed,
            "scenarios": str(self.scenarios) if self.scenarios else None,
            "engine_path": str(self.engine_path) if self.engine_path else None,
        }


class JobPlanner:
    """Plans the jobs of one request for one pool, which knows the kernels and devices of its
    workers.
    """

    def __init__(self, wanted: Wanted, pool: JobPool) -> None:
        self.wanted = wanted
        self._pool = pool
        self._plugins = PluginFiles(wanted.plugins, pool, wanted.cell)
        self._on_gpu: set[str] | None = None
        self.num_long = 0
        """How many long cases a run of everything leaves out."""

    def scenarios(self) -> list[Scenario]:
        return load(self.wanted)

    def jobs(self) -> list[Job]:
        """The jobs that the options ask for, in order. Raises InputError if there are none."""
        # First of all: scenarios may name the kernels of plug-ins.
        names = register_plugins(self.wanted, self._pool, self._plugins)
        scenarios = self.scenarios()
        cases_of = with_each if self.wanted.kernels or not names else with_plugins
        cases = self._drawn(
            self._changed(cases_of(names, lambda override: self._select(scenarios, override)))
        )
        return self.jobs_of(cases, fault=self.wanted.fault)

    def calls_alone(self) -> list[Job]:
        """The jobs that call the kernels of the plug-ins, and nothing else."""
        register_plugins(self.wanted, self._pool, self._plugins)
        # With the op: a kernel of another one may have the same short name.
        names = [f"{one['op']}/{one['short_name']}" for one in self._plugins.describe()]
        cases = calls_alone(names, seed=self.wanted.seed, selectors=self.wanted.selectors)
        return self.jobs_of(cases)

    def in_short(self, cases: list[Case]) -> list[Case]:
        """`cases` without the long ones, if everything is asked for and nothing by name."""
        if not self.wanted.is_of_everything:
            return cases
        short = [case for case in cases if LONG not in case.tags]
        self.num_long = len(cases) - len(short)
        return short

    def _changed(self, cases: list[Case]) -> list[Case]:
        """The cases with the values of `changes`.

        Raises the InputError of the first if none can have them.
        """
        if not self.wanted.changes:
            return cases
        found = []
        problems = []
        for case in cases:
            try:
                found.append(changed(case, self.wanted.changes))
            except InputError as error:
                problems.append(error)
        if not found:
            raise problems[0]
        return found

    def _drawn(self, cases: list[Case]) -> list[Case]:
        """`sample` of the cases, in drawn order: what a time limit leaves of them is a sample
        too.
        """
        if self.wanted.sample is None:
            return cases
        # Not the first ones: scenarios stand in order, and a prefix would leave whole families out.
        return random.Random(self.wanted.seed).sample(cases, min(self.wanted.sample, len(cases)))

    def jobs_of(self, cases: Iterable[Case], fault: str | None = None) -> list[Job]:
        return [self.job_of(case, fault) for case in cases]

    def job_of(self, case: Case, fault: str | None = None) -> Job:
        # Its folder has torch, which this process does not import.
        from harness.memory.triton_interpreter import time_limit

        device = self._device_of(case)
        # Measurements of accuracy take long by design and bring a limit of their own.
        limit = case.params.own_timeout or time_limit(self.wanted.timeout_seconds)
        # A compiler's time is not the case's: a limit that fits the case would end it.
        limit += sum(case.compile_seconds().values())
        files = self._plugins.of_case(case)
        cell = self.wanted.cell if files else None
        return Job(
            key=f"{case.id}!{fault}" if fault else case.id,
            case=on_device(case, device),
            fault=fault,
            device=device,
            plugins=files,
            cell=cell and cell.but(seconds=limit),
            # On CUDA a process takes seconds to start.
            # Foreign code may change its process, so each case gets a new one where that is cheap.
            ends_worker=bool(files)
            and self.wanted.cell is None
            and device == "cpu"
            and self._plugins.are_cheap(files),
            # The cell ends a call that hangs, and tells where, before the worker would be killed.
            timeout_seconds=limit + (LATER_THAN_CELL if cell else 0),
        )

    def control_jobs(self, num_draws: int) -> list[Job]:
        """Draws on right kernels, as controls. Raises InputError if no scenario draws cases."""
        drawing = [
            scenario
            for scenario in self.scenarios()
            if scenario.fuzz and scenario.fuzz.draws == "all"
        ]
        if not drawing or self.wanted.selectors or self.wanted.tags:
            raise InputError(
                "--controls: draws cases of the scenario `fuzz`; leave out selectors, -m and"
                " --scenarios"
            )
        return self.jobs_of(control_cases(drawing[0], self.wanted.seed, num_draws))

    def faults(self) -> list[tuple[FaultUse, Job]]:
        return self._faults_of(
            select_scenarios(self.scenarios(), self.wanted.selectors, tags=self.wanted.tags)
        )

    def faults_in(self, jobs: Sequence[Job]) -> list[tuple[FaultUse, Job]]:
        """The faults that scenarios declare for the cases of `jobs`, each with the job that tries
        it.

        Raises InputError if there are none, and for options that give a run another subject.
        """
        wanted = self.wanted
        if wanted.fault or wanted.kernels or wanted.plugins:
            raise InputError(
                "--with-faults: faults are of the scenarios' kernels; leave out --fault, --kernel"
                " and --plugin"
            )
        planned = {job.case.id for job in jobs}
        found = [pair for pair in self._faults_of(self.scenarios()) if pair[1].case.id in planned]
        if not found:
            raise InputError(
                "--with-faults: no scenario declares a fault for the selected cases; select others"
            )
        return found

    def _faults_of(self, scenarios: Iterable[Scenario]) -> list[tuple[FaultUse, Job]]:
        pairs = [
            pair for scenario in scenarios for pair in fault_cases(scenario, seed=self.wanted.seed)
        ]
        return [(use, self.job_of(case, use.name)) for use, case in pairs]

    def _select(self, scenarios: Sequence[Scenario], override: KernelOverride | None) -> list[Case]:
        wanted = self.wanted
        selectors = self.wanted.selectors
        if wanted.fault and not selectors:
            # A fault is tried where it is known to matter.
            selectors = tuple(
                s.name for s in scenarios if any(use.name == wanted.fault for use in s.faults)
            )
        has_gpu = wanted.device != "cpu" and not self._pool.start().why_not("cuda")
        cases = select(
            scenarios,
            selectors,
            tags=wanted.tags,
            seed=wanted.seed,
            override=override,
            has_gpu=has_gpu,
        )
        return self.in_short(cases)

    def _device_of(self, case: Case) -> str:
        """The device of a case.

        `auto` is the GPU if all kernels of the case run there, else the CPU.

        A worker that serves an engine needs no GPU: the process that it starts takes one. So such
        cases share a GPU.
        """
        # Whatever the options say: without a GPU the case is skipped, with the reason.
        if GPU in case.tags:
            return "cuda"
        if case.kind.serves:
            return "cpu"
        if self.wanted.device != "auto":
            return self.wanted.device
        if "cuda" not in case.kind.devices:
            return "cpu"
        return (
            "cuda"
            if set(on_device(case, "cuda").kernels().values()) <= self._gpu_kernels()
            else "cpu"
        )

    def _gpu_kernels(self) -> set[str]:
        if self._on_gpu is None:
            has_gpu = not self._pool.start().why_not("cuda")
            described = (
                [*self._pool.describe_kernels(), *self._plugins.describe()] if has_gpu else []
            )
            self._on_gpu = {
                f"{d['op']}/{d['short_name']}" for d in described if not d["why_not"]["cuda"]
            }
        return self._on_gpu


def load(
    wanted: Wanted, *, whole: Callable[[str], bool] = lambda name: True, only: str = ""
) -> list[Scenario]:
    """The scenarios to choose from. Raises InputError for the first error in a file or an option.

    `whole` and `only`: as in :func:`load_scenarios`, for the scenarios that come with the harness.
    """
    if wanted.device not in ("auto", *DEVICES):
        raise InputError(
            f"--device {wanted.device}: unknown device; choose one of auto, {', '.join(DEVICES)}"
        )
    if wanted.fault is not None:
        FAULTS.get(wanted.fault)
    if wanted.scenarios is None:
        return load_scenarios(whole=whole, only=only)
    return load_scenarios(wanted.scenarios)


def register_plugins(
    wanted: Wanted, pool: JobPool, plugins: PluginFiles | None = None
) -> list[str]:
    """Register the kernels of plug-in files, which only workers import.

    Returns the names of the kernels to judge.
    """
    if not wanted.plugins and not all(map(_is_known, wanted.kernels)):
        # It may be in an installed package, which only a worker imports.
        _register(pool.describe_kernels())
    if not wanted.plugins:
        return list(wanted.kernels)
    described = (plugins or PluginFiles(wanted.plugins, pool)).describe()
    _register(described)
    if wanted.kernels:
        return list(wanted.kernels)
    return list(dict.fromkeys(str(declared["short_name"]) for declared in described))


NO_PROMISES = ("why_not", "shapes", "import_seconds")
"""Keys of a description that are no fields of a spec, or that are converted first."""


def _register(described: list[dict[str, Any]]) -> None:
    for declared in described:
        promises = {
            name: value for name, value in with_tuples(declared).items() if name not in NO_PROMISES
        }
        shapes = None if declared["shapes"] is None else Shapes.model_validate(declared["shapes"])
        # Without code: this process imports no file of the user.
        spec = KernelSpec(impl="", shapes=shapes, **promises)
        # A worker describes the harness's own kernels too.
        if spec.name not in KERNELS:
            KERNELS.add(spec)


def _is_known(name: str) -> bool:
    KERNELS.add_family(name)
    return any(name in (spec.name, spec.short_name) for spec in KERNELS)
