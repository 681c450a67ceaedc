"""A case loads the plug-in files of its own kernels, and each file is described by itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from harness.core.cases import Case
from harness.core.catalog import KERNELS
from harness.core.errors import InputError
from harness.core.kernels import KernelSpec
from harness.run.planning import JobPlanner, Wanted, register_plugins
from harness.run.plugin_files import CHEAP_SECONDS, PluginFiles
from harness.run.pool import JobPool
from tests.transcripts import Approved

KERNELS_OF = {
    "/k/mine.py": ["mla_decode/mine", "merge_attn_states/mine"],
    "/k/other.py": ["mla_decode/other"],
    "/k/plan.py": ["mla_decode_plan/other"],
    "/k/connector.py": [],
}


class Describing(JobPool):
    """A pool that knows what the kernels of files declare, and counts who asks."""

    num_workers = 1

    def __init__(self, seconds: float = 0.0, kernels: dict[str, list[str]] = KERNELS_OF) -> None:
        super().__init__()
        self.seconds, self.kernels = seconds, kernels
        self.asked: list[tuple[str, ...]] = []

    def describe_kernels(self, plugins: Any = (), cell: object = None) -> list[dict[str, Any]]:
        self.asked.append(tuple(plugins))
        (file,) = plugins
        promises = {
            "devices": ["cpu"],
            "shapes": None,
            "why_not": {"cpu": "", "cuda": "no"},
            "is_plugin": True,
        }
        return [
            {
                "op": op,
                "short_name": short,
                "summary": "",
                "origin": file,
                "import_seconds": self.seconds,
                **promises,
            }
            for op, _, short in (name.partition("/") for name in self.kernels[file])
        ]

    def close(self) -> None: ...
    def start(self) -> Any: ...
    def _run(self, waiting: Any, on_start: Any) -> Any: ...


def planner(pool: Describing, files: Iterable[str] = KERNELS_OF, device: str = "cpu") -> JobPlanner:
    wanted = Wanted(plugins=tuple(map(Path, files)), device=device)
    made = JobPlanner(wanted, cast(JobPool, pool))
    register_plugins(wanted, pool, made._plugins)
    return made


def case(op: str, kernel: str) -> Case:
    return Case(
        id=f"{op}[{kernel}]", scenario="s", system="kernel", op=op, params={"kernel": kernel}
    )


def test_a_case_loads_the_files_of_its_kernels_and_of_their_planners_alone() -> None:
    plan = planner(Describing())
    assert plan.job_of(case("mla_decode", "mine")).plugins == ("/k/mine.py",)
    assert plan.job_of(case("mla_decode", "other")).plugins == ("/k/other.py", "/k/plan.py")
    assert plan.job_of(case("merge_attn_states", "mine")).plugins == ("/k/mine.py",)
    assert plan.job_of(case("merge_attn_states", "torch")).plugins == ()


def test_a_case_of_an_engine_loads_the_files_of_all_its_kernels() -> None:
    params = {"decode_kernel": "other", "merge_kernel": "mine"}
    job = planner(Describing()).job_of(Case(id="e", scenario="s", system="engine", params=params))
    assert job.plugins == ("/k/mine.py", "/k/other.py", "/k/plan.py")


def test_a_case_with_a_connector_of_a_plugin_loads_all_files() -> None:
    plan = planner(Describing())
    for connector, files in (("own", ()), ("mine", tuple(KERNELS_OF))):
        job = plan.job_of(
            Case(id="m", scenario="s", system="moves", params={"connector": connector})
        )
        assert job.plugins == files and not job.ends_worker


def test_each_file_is_described_by_itself_and_once() -> None:
    pool = Describing()
    files = PluginFiles([*KERNELS_OF, "/k/mine.py"], pool)
    assert files.describe() == files.describe()
    assert pool.asked == [(file,) for file in KERNELS_OF]


def test_a_kernel_of_the_harness_with_the_same_short_name_is_not_judged() -> None:
    # `mla_decode/tiled` is the harness's own.
    pool = Describing(kernels={"/k/mine.py": ["quantize_blocks/tiled"]})
    jobs = planner(pool, ["/k/mine.py"]).calls_alone()
    assert {job.case.op for job in jobs} == {"quantize_blocks"}
    assert {job.plugins for job in jobs} == {("/k/mine.py",)}


def test_two_files_with_one_name_are_refused(approved: Approved) -> None:
    pool = Describing(kernels={"/a.py": ["mla_decode/mine"], "/b.py": ["mla_decode/mine"]})
    with approved.raises(InputError):
        PluginFiles(["/a.py", "/b.py"], pool).describe()


@pytest.mark.parametrize(
    ("device", "seconds", "ends"),
    [("cpu", CHEAP_SECONDS / 2, True), ("cpu", CHEAP_SECONDS * 2, False), ("cuda", 0.0, False)],
)
def test_a_case_has_a_worker_of_its_own_where_the_start_and_the_import_are_quick(
    device: str, seconds: float, ends: bool
) -> None:
    plan = planner(Describing(seconds), device=device)
    assert plan.job_of(case("mla_decode", "mine")).ends_worker is ends
    assert not plan.job_of(case("mla_decode", "tiled")).ends_worker


def test_foreign_code_of_a_job_is_its_plugins_and_the_modules_of_installed_kernels() -> None:
    job = planner(Describing()).job_of(case("mla_decode", "mine"))
    assert job.foreign_code == ("/k/mine.py",)
    installed = KernelSpec(
        "mla_decode", "installed", "", "", origin="/site/kernels.py", is_plugin=True
    )
    with KERNELS.scoped(installed):
        plan = planner(Describing(), [])
        assert plan.job_of(case("mla_decode", "installed")).foreign_code == ("/site/kernels.py",)
        assert plan.job_of(case("mla_decode", "tiled")).foreign_code == ()
