"""The kernel target: the kernel runs before its reference, inputs are guarded, broken outputs are
findings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import KERNELS, ORACLES, SITES
from harness.core.cause_codes import Code
from harness.core.errors import IllegalAddress, KernelError, UnknownNameError
from harness.core.findings import Finding
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.evidence.observed import Observed
from harness.evidence.records import Evidence, Run
from harness.evidence.sentinel import Guard
from harness.judge.targets import kernel
from harness.judge.targets.kernel import KernelTarget
from harness.kernels import plugins
from harness.kernels.call import keeping_output_sites
from harness.ops.parts.call import BadOutput, placed
from harness.ops.quantize_fp8 import reference as quantize_fp8_reference
from tests.transcripts import Approved

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kernels"
ALL_SITES = frozenset(SITES.names())
SMALL: dict[str, Any] = {
    "kernel": "tiled",
    "seq_lens": [5, 64, 70, 0],
    "num_heads": 2,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
}


def case_of(op: str, **params: Any) -> Case:
    values = KERNEL_PARAMS[op].model_validate(params).model_dump(mode="json")
    return Case(id="case", scenario="s", system="kernel", op=op, params=values, seed=7)


def decode_case(**changes: Any) -> Case:
    return case_of("mla_decode", **{**SMALL, **changes})


def poison(pattern: str = "nan", sites: frozenset[str] = ALL_SITES, strict: bool = False) -> Poison:
    return Poison(pattern, sites, strict)


def judged_by(case: Case, patterns: tuple[str, ...] = ("nan", "zeros")) -> dict[str, list[Finding]]:
    target = KernelTarget(case)
    with keeping_output_sites():  # as in a job
        evidence = Evidence(case, [target.run(poison(pattern)) for pattern in patterns])
    names = (
        ("crash",)
        if evidence.runs[0].error
        else ("finite", "sentinel", "reference", "non_interference")
    )
    found = {name: ORACLES.get(name).judge(evidence).findings for name in names}
    return {name: findings for name, findings in found.items() if findings}


def use(name: str, op: str = "mla_decode") -> str:
    """Load a plug-in of the fixtures; returns the short name of its kernel."""
    (spec,) = plugins.load_plugin(FIXTURES / f"{name}.py")
    assert spec.op == op
    return spec.short_name


@pytest.mark.parametrize("kv", ["fp32", "bf16", "fp8_e4m3"])
@pytest.mark.parametrize("query_len", [1, 2])
def test_a_correct_plugin_has_no_finding(kv: str, query_len: int) -> None:
    case = decode_case(kernel=use("correct"), kv=kv, query_len=query_len)
    assert judged_by(case, ("nan", "zeros", "max", "random")) == {}


@pytest.mark.parametrize(
    ("name", "oracle", "site"),
    [
        ("last_row_unwritten", "finite", "output"),
        ("last_row_unwritten", "sentinel", "output"),
        ("last_row_unwritten", "non_interference", None),
        ("multiplies_tail", "finite", None),
        ("zeros", "reference", None),
        ("zeros", "non_interference", None),
        ("negates", "reference", None),
        ("permutes_rows", "reference", None),
        ("all_nan", "finite", None),
        ("all_nan", "reference", None),
        ("writes_inputs", "sentinel", None),
    ],
)
def test_a_planted_bug_in_decode_is_found_by_its_oracle(
    name: str, oracle: str, site: str | None
) -> None:
    findings = judged_by(decode_case(kernel=use(name), seq_lens=[5, 64, 70, 9])).get(oracle, [])
    assert findings
    if site is not None:
        assert site in {finding.site for finding in findings}


def test_a_kernel_that_writes_its_inputs_cannot_change_its_reference() -> None:
    found = judged_by(decode_case(kernel=use("writes_inputs")))
    assert [finding.tensor for finding in found["sentinel"]] == ["q"]


@pytest.mark.parametrize(
    ("name", "op", "oracle", "site"),
    [
        ("ignores_num_live", "quantize_fp8", "finite", None),
        ("writes_slot_zero", "write_kv", "sentinel", "kv.null"),
        ("half_of_the_ids", "route_experts", "sentinel", "router.ids"),
    ],
)
def test_a_planted_bug_in_another_op_is_found(
    name: str, op: str, oracle: str, site: str | None
) -> None:
    findings = judged_by(case_of(op, kernel=use(name, op)))[oracle]
    assert site is None or site in {finding.site for finding in findings}


@pytest.mark.parametrize(
    ("name", "op", "says"),
    [
        (
            "wrong_shape",
            "mla_decode",
            r"returned out of shape \[4, 1, 64\]; \[4, 1, 2, 32\] is promised",
        ),
        (
            "wrong_dtype",
            "mla_decode",
            r"returned out of type torch.float64; torch.bfloat16 is promised",
        ),
        ("wrong_count", "mla_decode", r"returned 1 values; return 2: out, lse"),
        ("wide_ids", "route_experts", r"returned ids of type torch.int64; torch.int32 is promised"),
    ],
)
def test_an_output_that_breaks_the_contract_ends_the_run_with_what_is_promised(
    name: str, op: str, says: str
) -> None:
    short = use(name, op)
    run = KernelTarget(
        decode_case(kernel=short) if op == "mla_decode" else case_of(op, kernel=short)
    ).run(poison())
    assert isinstance(run.error, BadOutput)
    with pytest.raises(BadOutput, match=says):
        raise run.error


def test_what_a_kernel_raises_is_a_finding_of_the_crash_oracle() -> None:
    case = decode_case(kernel=use("raises"))
    run = KernelTarget(case).run(poison())
    assert isinstance(run.error, KernelError)
    (finding,) = judged_by(case)["crash"]
    assert (finding.cause, finding.error, finding.kernel) == (
        Code.RAISED,
        "ZeroDivisionError",
        "mla_decode/raises",
    )


def test_an_illegal_address_ends_the_run_and_names_the_table() -> None:
    # Without its promise, the prefetching kernel meets the strict padding of the empty request's
    # table.
    old = KERNELS.get("mla_decode/tiled-prefetch")
    assert isinstance(old.impl, str)
    bare = KernelSpec("mla_decode", "tiled-prefetch", old.summary, old.impl)
    case = decode_case(kernel="tiled-prefetch")
    with KERNELS.scoped(bare):
        run = KernelTarget(case).run(poison(strict=True))
    assert isinstance(run.error, IllegalAddress) and "block_table" in str(run.error)
    (finding,) = ORACLES.get("crash").judge(Evidence(case, [run])).findings
    assert finding.site == "block_table.pad"


def test_rows_of_empty_requests_are_judged_only_by_a_declared_rule() -> None:
    plain = KernelTarget(decode_case(kernel="tiled")).run(poison())
    assert [observed.name for observed in plain.all(Observed)] == ["out", "lse"]
    assert plain.all(Observed)[0].live.tolist() == [True, True, True, False]
    run = KernelTarget(decode_case(kernel="tiled-identity")).run(poison())
    declared = {observed.name: observed for observed in run.all(Observed)}
    assert declared["out of empty rows"].live.tolist() == [False, False, False, True]
    assert declared["out of empty rows"].site == "graph.pad_rows"
    expected = declared["lse of empty rows"].expected
    assert expected is not None and bool((expected == float("-inf")).all())


def test_a_kernel_that_breaks_its_rule_for_empty_rows_is_found() -> None:
    old = KERNELS.get("mla_decode/tiled")
    KERNELS.add(
        KernelSpec("mla_decode", "liar", "", old.impl, empty_rows="identity", empty_lse="-inf")
    )
    found = judged_by(decode_case(kernel="liar"))
    assert {finding.tensor for finding in found["reference"]} == {
        "out of empty rows",
        "lse of empty rows",
    }
    assert {"output", "lse"} <= {finding.site for finding in found["finite"]}


def test_a_kernel_that_returns_its_lse_in_base_2_is_said_to_do_so(approved: Approved) -> None:
    inner = KERNELS.get("mla_decode/tiled").load()

    def base_2(*args: Any, **keywords: Any) -> Any:
        out, lse = inner(*args, **keywords)
        return out, lse * 1.4426950408889634

    KERNELS.add(KernelSpec("mla_decode", "base-2", "", base_2))
    (finding,) = judged_by(decode_case(kernel="base-2"), ("nan",))["reference"]
    assert finding.tensor == "lse"
    approved(finding.message)


def test_the_kernel_runs_before_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    compute, invoke = quantize_fp8_reference.expected, kernel.invoke
    monkeypatch.setattr(
        quantize_fp8_reference,
        "expected",
        lambda *a, **k: (order.append("reference"), compute(*a, **k))[1],
    )
    monkeypatch.setattr(
        "harness.judge.targets.kernel.invoke", lambda *a: (order.append("kernel"), invoke(*a))[1]
    )
    KernelTarget(case_of("quantize_fp8")).run(poison())
    # The first call has other values.
    assert order == ["kernel", "kernel", "reference"]


def test_a_scale_kept_from_the_call_before_is_found() -> None:
    inner = KERNELS.get("quantize_fp8/torch").load()
    kept: list[torch.Tensor] = []

    def late(x: torch.Tensor, **keywords: Any) -> Any:
        x8, scale = inner(x, **keywords)
        kept.append(scale)
        # The scale of the call before, and of the first call its own.
        return x8, kept[max(len(kept) - 2, 0)].clone()

    KERNELS.add(KernelSpec("quantize_fp8", "late", "", late))
    assert "reference" in judged_by(case_of("quantize_fp8", kernel="late"), ("nan",))


def guards_of(run: Run) -> dict[str, torch.Tensor]:
    return {guard.name: guard.before for guard in run.all(Guard)}


def test_poisoned_and_friendly_runs_differ_in_unowned_memory_only() -> None:
    target = KernelTarget(decode_case(kv="fp32"))
    dirty, clean = target.run(poison()), target.run(poison(sites=frozenset()))
    assert (
        guards_of(dirty)["kv_cache"].isnan().any()
        and not guards_of(clean)["kv_cache"].isnan().any()
    )
    assert torch.equal(guards_of(dirty)["q"], guards_of(clean)["q"])
    table = guards_of(dirty)["block_table"]
    trap = guards_of(dirty)["kv_cache"].shape[0] - 1
    assert table[3].tolist() == [trap] * table.shape[1]
    assert guards_of(clean)["block_table"][3].tolist() == [0] * table.shape[1]


@pytest.mark.parametrize("pattern", ["nan", "inf", "max"])
def test_a_kernel_that_needs_a_finite_tail_gets_one(pattern: str) -> None:
    target = KernelTarget(decode_case(kernel="tiled-multiply", kv="fp32"))
    cache = guards_of(target.run(poison(pattern)))["kv_cache"]
    assert bool(cache[:-1].isfinite().all())
    assert float(cache[0, 0, 0]) == torch.finfo(torch.float32).max


def test_runs_of_one_target_do_not_influence_each_other() -> None:
    target = KernelTarget(decode_case())
    first = target.run(poison())
    target.run(poison("max"))
    again = target.run(poison())
    assert torch.equal(first.all(Observed)[0].tensor[:3], again.all(Observed)[0].tensor[:3])


def test_a_plan_comes_from_the_kernel_itself_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    inner = KERNELS.get("mla_decode/tiled").load()

    def spying(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["metadata"])
        return inner(*args, **kwargs)

    KERNELS.add(KernelSpec("mla_decode", "spy", "", spying))
    KernelTarget(decode_case(kernel="spy", planned=True)).run(poison())
    KernelTarget(decode_case(kernel="spy", planned=False)).run(poison())
    KERNELS.add(KernelSpec("mla_decode", "guest", "", spying, origin="guest.py"))
    KernelTarget(decode_case(kernel="guest", planned=True)).run(poison())
    assert seen[0] is not None and seen[-1] is None and seen[-3] is None
    KERNELS.add(
        KernelSpec(
            "mla_decode_plan", "guest", "", lambda seq_lens, *, num_heads: "plan", origin="guest.py"
        )
    )
    KernelTarget(decode_case(kernel="guest", planned=True)).run(poison())
    assert "plan" in seen


def test_a_kernel_that_nobody_registered_is_refused_with_the_nearest_name(
    approved: Approved,
) -> None:
    with approved.raises(UnknownNameError):
        KernelTarget(decode_case(kernel="tile"))


@pytest.mark.parametrize("name", ["hangs", "exits", "segfaults"])
def test_a_deadly_plugin_loads_quietly(name: str) -> None:
    assert use(name) == name


def test_what_is_moved_keeps_its_strides_and_what_lies_in_its_gaps() -> None:
    wide = torch.arange(40.0).view(4, 10)
    moved = placed(wide[:, 2:6], "cpu:0")
    assert moved.stride() == (10, 1) and torch.equal(moved, wide[:, 2:6])
    assert torch.equal(moved.as_strided((3, 8), (10, 1)), wide[:3, 2:])
    assert placed(wide, "cpu:0").stride() == wide.stride()


def test_gaps_of_a_pool_that_takes_up_address_space_only_are_not_moved() -> None:
    pages = torch.full((1 << 20,), 7.0).as_strided((2, 3), ((1 << 20) - 8, 1))
    moved = placed(pages, "cpu:0")
    assert moved.stride() == pages.stride() and torch.equal(moved, pages)
