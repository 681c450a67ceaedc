"""The recorder on the engine: five known bugs, each named by the op that a person would name, and
silence without.
"""

from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.cases import AskFirstNan, Case, Job
from harness.core.catalog import FAULTS
from harness.core.records import FirstNan
from harness.core.seams import inject
from harness.judge.probes.recorder import recorder_on
from harness.judge.run_case import run_case
from harness.judge.targets.engine import EngineTarget
from harness.ops.mla_decode.watched import cache_rows
from harness.scenario.expand import fault_cases
from harness.scenario.load import load_scenarios
from tests.transcripts import Approved

from .hooks import has_hooks  # type: ignore[import-not-found]

DECLARED = {
    use.name: case
    for scenario in load_scenarios()
    for use, case in fault_cases(scenario, seed=0)
    if case.system == "engine"
}
"""Fault -> the point of a matrix where its scenario tries it."""


def writer(fault: str, put_back: bool = True) -> FirstNan:
    case = DECLARED[fault]
    job = Job(key=case.id, case=case, fault=fault if put_back else None, ask=AskFirstNan())
    found = run_case(job).first_nan
    assert found is not None
    return found


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "fault",
    [
        "merge.ignore-context-count",
        "kv.skip-zero-new-blocks",
        "graph.fresh-plan-each-step",
        "graph.plan-in-warmup-only",
        "router.int64-ids",
        "sparse.topk-from-unwritten",
        "window.evicted-blocks-in-table",
        "verify.nan-row-to-vocab-size",
        "graph.shared-pool-overwrite",
    ],
)
def test_an_engine_without_a_fault_is_silent_under_all_its_poison(fault: str) -> None:
    assert writer(fault, put_back=False) == FirstNan()


def test_of_36540_it_names_the_merge_whose_suffix_was_finite() -> None:
    found = writer("merge.ignore-context-count")
    assert (found.writer, found.tensor, found.is_input) == ("merge_attn_states/torch", "out", False)
    assert found.finite == ("suffix_out", "suffix_lse") and found.not_watched == (
        "prefix_out",
        "prefix_lse",
    )
    assert found.request and found.phase in ("prefill", "mixed")


def test_of_43961_it_names_the_decode_whose_used_pages_were_finite_and_whose_tails_were_not() -> (
    None
):
    found = writer("kv.skip-zero-new-blocks")
    assert (found.writer.partition("/")[0], found.tensor, found.layer) == ("mla_decode", "out", 1)
    assert "kv_cache in use" in found.finite and found.not_finite == ("kv_cache past the lengths",)


@pytest.mark.parametrize("fault", ["graph.fresh-plan-each-step", "graph.plan-in-warmup-only"])
def test_of_35175_and_42444_it_names_the_decode_that_was_given_another_steps_plan(
    fault: str,
    approved: Approved,
) -> None:
    found = writer(fault)
    assert (found.writer.partition("/")[0], found.tensor, found.is_input) == (
        "mla_decode",
        "metadata",
        True,
    )
    assert found.phase == "decode" and "q" in found.finite
    approved(found.bad)


def test_of_38359_it_names_the_ids_before_the_experts_read_them() -> None:
    found = writer("router.int64-ids")
    assert (found.writer, found.tensor, found.bad) == ("hand_over_ids", "ids", "no expert's id")


def test_of_53488_it_names_the_hand_out_whose_graph_had_finite_logits() -> None:
    found = writer("graph.shared-pool-overwrite")
    assert (found.writer, found.before) == ("what hands out the logits", "lm_head output")


def test_the_scans_of_a_capture_are_in_the_graph_and_those_of_padding_are_silent() -> None:
    """Rows of padding are full of poison in this case, and its graphs are larger than its
    batches.
    """
    case = DECLARED["graph.padded-rows-in-amax"]
    with recorder_on() as recorder:
        EngineTarget(case).run(
            Poison("nan", frozenset(case.poison.sites), seed=case.seed), recorder
        )
    assert recorder.report() is None
    scanned = {slot.op.partition("/")[0] for slot in recorder.table.scanned()}
    assert {
        "mla_decode",
        "quantize_fp8",
        "apply_experts",
        "lm_head",
        "layers.0.input_layernorm",
    } <= scanned
    with inject(FAULTS.get("graph.padded-rows-in-amax")), recorder_on() as recorder:
        EngineTarget(case).run(
            Poison("nan", frozenset(case.poison.sites), seed=case.seed), recorder
        )
    found = recorder.report()
    assert found is not None
    assert (found.writer.partition("/")[0], found.phase, found.finite) == (
        "quantize_fp8",
        "decode",
        ("x",),
    )


def test_with_outputs_alone_a_nan_is_still_named() -> None:
    case = DECLARED["kv.skip-zero-new-blocks"]
    with inject(FAULTS.get("kv.skip-zero-new-blocks")), recorder_on(inputs=False) as recorder:
        EngineTarget(case).run(
            Poison("nan", frozenset(case.poison.sites), seed=case.seed), recorder
        )
    found = recorder.report()
    assert found is not None and found.writer.partition("/")[0] == "mla_decode" and found.before
    assert not any(slot.kind != "output" for slot in recorder.table.slots)


def test_no_hook_stays_on_the_model() -> None:
    """Engines of one process share a model."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(RuntimeError), recorder_on() as recorder:
        recorder.hook(model)
        assert has_hooks(model)
        raise RuntimeError
    assert not has_hooks(model)


def test_a_window_sees_its_last_keys_only() -> None:
    cache = torch.arange(2 * 64, dtype=torch.float32).view(2, 64, 1) + 1
    table, lengths = (
        torch.tensor([[0, 1]], dtype=torch.int32),
        torch.tensor([66], dtype=torch.int32),
    )
    args = (torch.zeros(1, 1, 1, 1), cache, table, lengths)
    used, past = cache_rows(args, {"window": 3})
    assert used.flatten().nonzero().flatten().tolist() == [63, 64, 65]
    assert past.flatten().nonzero().flatten().tolist() == list(range(66, 128))


def test_a_job_with_the_recorder_tells_writer_reader_and_sites() -> None:
    fault = "kv.skip-zero-new-blocks"
    case: Case = DECLARED[fault]
    result = run_case(Job(key="k", case=case, fault=fault, ask=AskFirstNan(sites=("kv.new",))))
    found = result.first_nan
    assert found is not None and result.verdict.value == "fail"
    assert (
        found.sites == ("kv.new",)
        and found.reader.startswith("mla_decode")
        and "step" in found.reader_at
    )
    silent = run_case(Job(key="k", case=case, ask=AskFirstNan(sites=("kv.new",)))).first_nan
    assert silent == FirstNan(sites=("kv.new",))
