"""The first wrong stage: each stage is named for a bug of its own, and none in a right engine."""

from __future__ import annotations

from typing import Any

import pytest
from torch_poison.patterns import Poison

from harness.core.records import Case, FirstNan
from harness.engine import attention, batch, engine, experts, runner, speculation
from harness.engine.attention import PagedMLA
from harness.engine.batch import Batch
from harness.judge.targets.engine import EngineTarget
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory
from tests.transcripts import Approved

from .planted_sequences import SCHEDULER, other_text  # type: ignore[import-not-found]

SMALL: dict[str, Any] = {
    "requests": ((5, 4), (70, 4), (12, 3)),
    "max_batched_tokens": 64,
    "layers": ("mla",),
}
DRAFTS = {
    "requests": ((64, 3), (64, 7)),
    "chains": ("a", "a"),
    "arrivals": (0, 4),
    "speculative_tokens": 3,
}


def record(**params: Any) -> FirstNan:
    case = Case(id="case", scenario="s", system="engine", params={**SMALL, **params}, seed=3)
    return EngineTarget(case).first_writer(Poison("nan", frozenset()))


@pytest.mark.parametrize(
    "params",
    [
        {"layers": ("window", "kda", "mla"), "window": 20, "graph": "full", "num_experts": 4},
        {"layers": ("sparse",), "kv": "fp8_e4m3", "prefix_caching": True, "epochs": 2},
        {"quantize": "fp8_per_tensor", "context_ranks": 2},
        DRAFTS,
    ],
    ids=str,
)
def test_a_right_engine_has_no_wrong_stage(params: dict[str, Any]) -> None:
    assert record(**params).stage == ""


def test_a_plan_of_an_earlier_eager_step_names_the_plan_and_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attend, plans = PagedMLA.__call__, {}

    def keeps(layer: PagedMLA, x: Any, inputs: Batch, memory: Any) -> Any:
        if inputs.decode is None:
            return attend(layer, x, inputs, memory)
        size = len(inputs.decode.seq_lens)
        inputs.decode.metadata.plan = plans.get(size, inputs.decode.metadata.plan)
        out = attend(layer, x, inputs, memory)
        plans[size] = inputs.decode.metadata.plan
        return out

    monkeypatch.setattr(PagedMLA, "__call__", keeps)
    found = record(requests=((5, 4), (61, 6)))
    assert found.stage.startswith("the plan, step") and found.stage_site == "sched_meta"


@pytest.mark.parametrize("name", ["state_blocks", "seq_lens", "block_table"])
def test_an_input_of_the_step_before_names_the_static_inputs_of_the_graph(
    monkeypatch: pytest.MonkeyPatch, name: str, approved: Approved
) -> None:
    fill, kept = batch.fill_static, []

    def stale(static: Any, live: Any, *rest: Any) -> None:
        fill(static, live, *rest)
        kept.append(getattr(static.decode, name).clone())
        getattr(static.decode, name).copy_(kept[-2] if len(kept) > 1 else kept[-1])

    monkeypatch.setattr(batch, "fill_static", stale)
    found = record(layers=("kda", "mla"), graph="full", requests=((5, 4), (62, 6), (12, 3)))
    assert name in found.stage and not found.stage_site
    approved(found.stage)


def test_a_wrong_weight_of_an_expert_names_the_experts(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    apply = experts.apply_experts

    def flipped(x: Any, ids: Any, weights: Any, *more: Any) -> Any:
        return apply(x, ids, weights.flip(-1), *more)

    monkeypatch.setattr(experts, "apply_experts", flipped)
    approved(record(num_experts=4).stage)


def test_a_merge_that_is_left_out_names_the_attention(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(attention, "context_chunks", lambda requests, size: [])
    approved(record(kv="fp32").stage)


def test_latents_in_the_slots_of_others_name_the_pages(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    stored = Batch.stored_slots.fget
    monkeypatch.setattr(Batch, "stored_slots", property(lambda self: stored(self).roll(1)))
    approved(record().stage)


def test_tokens_that_count_as_computed_without_their_pages_name_the_scheduler(
    approved: Approved,
) -> None:
    right = "sequence.num_computed_tokens = sequence.num_shared_tokens = 0"
    wrong = "sequence.num_computed_tokens = min(sequence.num_computed_tokens, 1)"
    with other_text(SCHEDULER + "Scheduler._start_over", right, wrong):
        found = record(requests=((60, 12), (61, 12)), num_blocks=5, max_batched_tokens=128)
    assert found.stage.startswith("the scheduler, step")
    approved(found.stage)


def test_hidden_states_that_come_late_name_the_drafter(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    replay, late = speculation.GraphDrafter.replay, []

    def behind(drafter: Any, hidden: Any, tokens: Any) -> Any:
        late.append(hidden.clone())
        return replay(drafter, late[-2] if len(late) > 1 else late[-1], tokens)

    monkeypatch.setattr(speculation.GraphDrafter, "replay", behind)
    found = record(graph="full", drafter=True, requests=((5, 6), (7, 6)))
    approved(found.stage)


def test_the_second_best_token_names_the_sampler(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(engine, "greedy_tokens", lambda logits: logits.topk(2).indices[:, 1])
    approved(record().stage)


def test_a_wrong_draft_that_is_kept_names_the_scheduler(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    right = speculation.confirmed
    monkeypatch.setattr(
        engine, "confirmed", lambda drafts, tokens: right(drafts[:2] + tokens[2:3], tokens)
    )
    found = record(**DRAFTS)
    assert found.stage.startswith("the scheduler")
    approved(found.stage)


def test_rows_of_another_request_name_what_hands_out_the_logits(
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    run = runner.ModelRunner.run
    monkeypatch.setattr(runner.ModelRunner, "run", lambda self, step: run(self, step).roll(1, 0))
    approved(record().stage)


@pytest.mark.nightly
def test_no_shipped_case_of_a_right_engine_has_a_wrong_stage() -> None:
    cases = [
        case
        for one in load_scenarios(shipped_directory())
        for case in expand(one)
        if case.system == "engine"
    ]
    able = [case for case in cases if not EngineTarget.why_not(case)]
    found = {
        case.id: EngineTarget(case).first_writer(Poison("nan", frozenset())).stage for case in able
    }
    assert len(found) > 250 and {name: stage for name, stage in found.items() if stage} == {}
