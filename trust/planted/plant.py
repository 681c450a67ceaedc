"""How a planted kernel is written down, and how the shipped cases of its op judge it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from harness.core.cases import Case, Job
from harness.core.catalog import KERNELS
from harness.core.kernels import KernelSpec
from harness.core.records import FAILED, Blame, CaseResult
from harness.core.registry import attribute_at
from harness.diagnose.blame import find_blame
from harness.judge.run_case import run_case
from harness.run.in_process import InProcessPool
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios
from harness.scenario.override import KernelOverride
from harness.scenario.schema import Scenario
from harness.scenario.selection import is_for_a_plain_run

FILES = (
    *("sizes", "values", "public", "drawn", "legal"),
    *("unseen_attention", "unseen_tables", "unseen_legal"),
)
"""The modules with planted kernels, in the order of the table."""
RIGHT = {
    "align_experts": "dense:align_experts",
    "context_attention": "dense:context_attention",
    "index_logits": "dense:index_logits",
    "map_indices": "dense:map_indices",
    "merge_attn_states": "dense:merge_attn_states",
    "mla_decode": "tiled:mla_decode",
    "mla_decode_sparse": "gather:mla_decode_sparse",
    "quantize_blocks": "dense:quantize_blocks",
    "quantize_fp8": "dense:quantize_fp8",
    "read_records": "dense:read_records",
    "route_experts": "dense:route_experts",
    "select_topk": "by_row:select_topk",
    "write_kv": "by_slot:write_kv",
    "write_records": "dense:write_records",
}
"""Op -> the right kernel from which planted ones start."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A kernel of `op`. `blames` are the sites of which one must be named, none for an error that
    reads no memory without an owner. `is_legal`: it breaks no promise, and must pass.
    """

    file: str
    spec: KernelSpec
    blames: frozenset[str]
    is_legal: bool

    @property
    def name(self) -> str:
        return self.spec.short_name


_found: dict[str, Planted] = {}


def right(op: str, *args: Any, **keywords: Any) -> Any:
    """The outputs of the right kernel of `op` for these arguments."""
    return attribute_at(f"harness.ops.{op}.kernels.{RIGHT[op]}")(*args, **keywords)


def planted(
    op: str, *, blames: Iterable[str] = (), is_legal: bool = False, **promises: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Write a kernel down under its function's name. `promises` are those of a `KernelSpec`."""

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__.replace("_", "-")
        summary = (function.__doc__ or "").partition("\n")[0]
        # As a plug-in that declares nothing.
        own = {"checks": "nothing", "is_plugin": True} | promises
        spec = KernelSpec(op, name, summary, function, **own)
        assert name not in _found, f"{name} is planted twice"
        file = function.__module__.rpartition(".")[2]
        _found[name] = Planted(file, spec, frozenset(blames), is_legal)
        return function

    return note


def all_planted(*files: str) -> list[Planted]:
    """The kernels of `files`, or of all of :data:`FILES`, in order."""
    wanted = files or FILES
    for file in wanted:
        importlib.import_module(f"trust.planted.{file}")
    return [one for file in wanted for one in _found.values() if one.file == file]


@functools.cache
def _scenarios(op: str) -> list[Scenario]:
    """The shipped scenarios that call a kernel of `op` alone."""
    return [s for s in load_scenarios(None) if s.op == op and s.system == "kernel"]


def cases_of(one: Planted, scenarios: Iterable[str] | None = None) -> list[Case]:
    """The cases of a plain run that call the kernel alone, as `--kernel` gives them.

    `scenarios` names those to take; None: all.
    """
    if one.spec.name not in KERNELS:
        KERNELS.add(one.spec)
    override = KernelOverride(one.name, frozenset({one.spec.op}))
    wanted = None if scenarios is None else set(scenarios)
    found = [
        case
        for scenario in _scenarios(one.spec.op)
        if wanted is None or scenario.name in wanted
        if scenario.device != "cuda"
        for case in expand(scenario, override=override)
        if is_for_a_plain_run(case, (), override)
    ]
    assert found, f"no case calls {one.spec.name}"
    return found


def job_of(case: Case) -> Job:
    """The job that judges a case in this process."""
    return Job(key=case.id, case=case)


def failures(cases: Iterable[Case], most: int = 1) -> Iterator[tuple[Job, CaseResult]]:
    """The first `most` failing cases, run one after the other in this process."""
    for case in cases:
        job = job_of(case)
        result = run_case(job)
        if result.verdict in FAILED:
            yield job, result
            most -= 1
            if not most:
                return


def blame_of(job: Job, result: CaseResult) -> Blame:
    """The blame of a failing case, searched for in this process."""
    with InProcessPool() as pool:
        return find_blame(pool, [(job, result)])[job.key][0]
