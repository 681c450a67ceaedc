"""What a step must do with its requests: each count, and an engine that does not keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cases import Case, Job
from harness.core.engine_params import EngineParams
from harness.core.records import CaseResult, Verdict
from harness.engine import attention, runner
from harness.engine import batch as batches
from harness.engine import engine as engines
from harness.engine.engine import ReferenceEngine
from harness.engine.schedule import block_pool
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.scheduler import Scheduler
from harness.engine.schedule.sequence import Step
from harness.engine.speculation import SuffixDrafts
from harness.judge.run_case import run_case
from harness.ops.mla_decode_plan.kernels import tiled as plan
from harness.run.in_process import InProcessPool
from harness.run.planning import JobPlanner, Wanted
from harness.scenario.drawn import drawn_cases
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select
from harness.scenario.variant import changed
from tests.transcripts import Approved

from .planted_sequences import SCHEDULER, other_text  # type: ignore[import-not-found]

SMALL = {"layers": "[mla]", "kv": "fp32", "patterns": "[nan]"}
GRAPH = SMALL | {
    "graph": "full",
    "capture_sizes": "[2,4]",
    "max_num_seqs": "8",
    "requests": "[[5,8],[9,9],[7,3]]",
}
QUEUE = SMALL | {"graph": "none", "max_num_seqs": "2", "requests": "[[5,4],[9,5],[7,3],[5,2]]"}
DRAFTS = SMALL | {"graph": "none", "speculative_tokens": "2", "requests": "[[5,8],[9,8]]"}
TIGHT = SMALL | {"graph": "none", "max_batched_tokens": "16", "requests": "[[5,9],[140,2]]"}


def draws(*numbers: int) -> list[Case]:
    """The draws of `fuzz-sequences` with these numbers."""
    (scenario,) = (one for one in load_scenarios(None) if one.name == "fuzz-sequences")
    assert scenario.fuzz is not None
    fuzz = scenario.fuzz.model_copy(update={"examples": max(numbers) + 1})
    drawn = drawn_cases(scenario.model_copy(update={"fuzz": fuzz}), seed=0)
    return [drawn[number] for number in numbers]


def judged(**params: str) -> CaseResult:
    """A run of a case of the engine with these parameters."""
    (case,) = draws(0)
    reset = {
        "chains": "[]",
        "arrivals": "[]",
        "aborts": "[]",
        "adapters": "[]",
        "changes": "[]",
        "num_blocks": "24",
    }
    text = ",".join(f"{name}={value}" for name, value in (reset | params).items())
    oracles = ("finite", "reference", "tokens", "conserved", "policy") + (
        ("replay",) if params["graph"] == "full" else ()
    )
    case = changed(case, text).model_copy(update={"oracles": oracles})
    return run_case(Job(key="job", case=case))


def broken(**params: str) -> set[str]:
    """The numbers that are not kept."""
    return {
        finding.tensor
        for finding in judged(**params).findings
        if finding.oracle in ("conserved", "policy")
    }


@pytest.mark.parametrize(
    "params", [GRAPH, QUEUE, DRAFTS, TIGHT, GRAPH | DRAFTS | {"graph": "full"}]
)
def test_a_sound_engine_keeps_every_count(params: dict[str, str]) -> None:
    result = judged(**params)
    assert result.verdict is Verdict.PASS, result.reason
    assert result.looked_at["conserved"] > 30


@pytest.mark.parametrize("size", ["None", "4"])
def test_an_engine_without_replays_or_with_too_large_a_graph_is_found(size: str) -> None:
    right = "next((size for size in self._graphs.sizes if size >= batch.num_decodes), None)"
    with other_text("harness.engine.runner:ModelRunner._graph_size", right, size):
        assert broken(**GRAPH) == {"rows of the graph that replays a batch of decodes"}


def test_a_replay_of_an_engine_without_graphs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = runner.ModelRunner.__init__

    def with_graphs(self: Any, model: Any, params: EngineParams, *more: Any) -> None:
        right(self, model, params.model_copy(update={"graph": "full"}), *more)

    monkeypatch.setattr(runner.ModelRunner, "__init__", with_graphs)
    assert broken(**QUEUE) == {"replays of an engine without graphs"}


def test_a_drafter_that_is_never_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = runner.ModelRunner.__init__

    def without_drafter(self: Any, model: Any, params: EngineParams, *more: Any) -> None:
        right(self, model, params.model_copy(update={"drafter": False}), *more)

    monkeypatch.setattr(runner.ModelRunner, "__init__", without_drafter)
    assert broken(**GRAPH | {"drafter": "true"}) == {"replays of a drafter"}


def test_a_block_that_no_request_can_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BlockPool.__init__

    def reserving(self: BlockPool, *more: Any) -> None:
        right(self, *more)
        self.reserve()

    monkeypatch.setattr(BlockPool, "__init__", reserving)
    assert broken(**QUEUE) == {"blocks that requests may own"}


def test_an_engine_that_proposes_no_drafts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SuffixDrafts, "propose", lambda self, sequence: [])
    assert broken(**DRAFTS) == {"tokens of decoding requests"}


def test_a_right_draft_that_is_not_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "confirmed", lambda drafts, tokens: tokens[:1])
    # One token is drawn as an answer again and again, so drafts come true.
    assert broken(**DRAFTS | {"requests": "[[5,30],[9,30]]"}) == {
        "requests with a right draft that is not taken"
    }


def test_a_prompt_that_takes_the_place_of_a_decode_is_found(approved: Approved) -> None:
    place = SCHEDULER + "Scheduler._schedule_running"
    with other_text(place, "not sequence.is_decoding", "sequence.is_decoding"):
        approved(broken(**TIGHT))


def test_a_request_that_waits_for_nothing_is_found() -> None:
    place = SCHEDULER + "Scheduler._schedule_waiting"
    right = "places < min(self.least_admitted, len(self.waiting))"
    with other_text(place, right, "True"):
        assert broken(**QUEUE) == {"requests that wait while there is room"}


def test_a_request_that_is_preempted_for_nothing_is_found() -> None:
    place = SCHEDULER + "Scheduler._schedule_running"
    wrong = "not self._fits(sequence, num_new_tokens) or not self.num_preemptions"
    with other_text(place, "not self._fits(sequence, num_new_tokens)", wrong):
        assert broken(**QUEUE) == {"requests preempted while there is room"}


def test_an_engine_that_refuses_a_request_or_lacks_a_field_has_crashed(
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    monkeypatch.setattr(Scheduler, "_blocks_for", lambda self, sequence, num_tokens: 99)
    result = judged(**QUEUE)
    assert result.verdict is Verdict.CRASH
    approved(result.reason)
    monkeypatch.undo()
    right = ReferenceEngine.__init__

    def forgetful(self: ReferenceEngine, *more: Any, **named: Any) -> None:
        right(self, *more, **named)
        del self.pool

    monkeypatch.setattr(ReferenceEngine, "__init__", forgetful)
    result = judged(**QUEUE)
    assert result.verdict is Verdict.CRASH and "no attribute 'pool'" in result.reason


@pytest.mark.nightly
def test_a_conversation_over_a_reload_is_judged_beside_a_cold_engine_with_its_very_prompt() -> None:
    planner = JobPlanner(Wanted(device="cpu"), InProcessPool())
    for job in planner.jobs_of(draws(447, 912)):
        result = run_case(job)
        assert result.verdict is Verdict.PASS and result.looked_at["cold_warm"] > 0


def test_requests_that_never_end_are_a_finding_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    def stays(self: ReferenceEngine, step: Step) -> Step:
        cancelled = [item for item in step.scheduled if item.sequence.request in self._cancelled]
        return replace(
            step, scheduled=tuple(item for item in step.scheduled if item not in cancelled)
        )

    monkeypatch.setattr(ReferenceEngine, "_without_cancelled", stays)
    planner = JobPlanner(Wanted(device="cpu"), InProcessPool())
    (case,) = select(
        planner.scenarios(), ["prefix-cache[kv=fp8_e4m3,graph=full,clients=leave]"], seed=0
    )
    result = run_case(Job(key="job", case=case))
    assert result.verdict is Verdict.FAIL, result.reason
    approved({finding.tensor for finding in result.findings})


Patch = pytest.MonkeyPatch


def half_the_budget(patch: Patch) -> None:
    right = Scheduler._schedule_running
    patch.setattr(
        Scheduler,
        "_schedule_running",
        lambda self, scheduled, budget: right(self, scheduled, budget // 2),
    )


def a_larger_graph(patch: Patch) -> None:
    right = runner.ModelRunner._graph_size

    def larger(self: Any, batch: Any) -> int | None:
        size = right(self, batch)
        return size and max(self._graphs.sizes)

    patch.setattr(runner.ModelRunner, "_graph_size", larger)


def the_page_freed_last(patch: Patch) -> None:
    right = BlockPool.__init__
    patch.setattr(
        BlockPool,
        "__init__",
        lambda self, num_blocks, free_list="fifo": right(self, num_blocks, "lifo"),
    )


def pages_from_the_end(patch: Patch) -> None:
    right = block_pool.blocks_to_give
    patch.setattr(block_pool, "blocks_to_give", lambda *more: right(*more)[::-1])


def one_place_less(patch: Patch) -> None:
    right = Scheduler._schedule_waiting

    def schedule(self: Scheduler, scheduled: Any, budget: int) -> None:
        if not self.running or self.max_num_seqs - len(self.running) > 1:
            right(self, scheduled, budget)

    patch.setattr(Scheduler, "_schedule_waiting", schedule)


def last_pages_first(patch: Patch) -> None:
    right = Scheduler._release
    patch.setattr(
        Scheduler, "_release", lambda self, one: (one.blocks.reverse(), right(self, one))[1]
    )


def no_graph_at_all(patch: Patch) -> None:
    patch.setattr(runner.ModelRunner, "_graph_size", lambda self, batch: None)


def prompts_reversed(patch: Patch) -> None:
    right = batches.prompts_in_order
    patch.setattr(batches, "prompts_in_order", lambda prompts: right(prompts[::-1]))


def every_new_page_is_zeroed(patch: Patch) -> None:
    patch.setattr(
        engines, "groups_to_zero", lambda groups: frozenset(group.name for group in groups)
    )


def padded_attention(patch: Patch) -> None:
    def padded(q: Any, k: Any, v: Any, spans: Any, scale: float) -> Any:
        return attention.padded_causal_attention(q, k, v, spans, scale)

    patch.setattr(attention, "causal_attention", padded)


def smaller_chunks(patch: Patch) -> None:
    right = attention.context_chunks
    patch.setattr(
        attention, "context_chunks", lambda requests, chunk: right(requests, max(chunk // 2, 1))
    )


def no_drafts_twice(patch: Patch) -> None:
    right = SuffixDrafts.propose
    patch.setattr(
        SuffixDrafts, "propose", lambda self, one: right(self, one) if len(one.tokens) % 2 else []
    )


def fewer_splits(patch: Patch) -> None:
    right = plan.mla_decode_plan

    def one_split(seq_lens: Any, *, num_heads: int, **more: Any) -> Any:
        return right(seq_lens, num_heads=10_000, **more)

    patch.setattr(plan, "mla_decode_plan", one_split)


PREFIX = SMALL | {
    "graph": "none",
    "prefix_caching": "true",
    "epochs": "2",
    "requests": "[[70,3],[140,3]]",
}
CONTEXT = TIGHT | {"max_batched_tokens": "24", "requests": "[[140,2],[5,9]]"}


@pytest.mark.parametrize(
    ("change", "params", "allowed"),
    [
        (half_the_budget, CONTEXT, {"policy"}),
        (a_larger_graph, GRAPH, {"policy"}),
        (no_graph_at_all, GRAPH, {"policy"}),
        (one_place_less, QUEUE, {"policy"}),
        (no_drafts_twice, DRAFTS, {"policy"}),
        (the_page_freed_last, PREFIX, {"policy"}),
        (the_page_freed_last, QUEUE, set()),
        (pages_from_the_end, PREFIX, set()),
        (last_pages_first, PREFIX, set()),
        (prompts_reversed, QUEUE, set()),
        (every_new_page_is_zeroed, QUEUE, set()),
        (padded_attention, CONTEXT, set()),
        (smaller_chunks, CONTEXT, set()),
        (fewer_splits, CONTEXT, set()),
    ],
)
def test_another_policy_keeps_every_promise(
    monkeypatch: Patch, change: Callable[[Patch], None], params: dict[str, str], allowed: set[str]
) -> None:
    """Harmless changes: at most `policy` finds them, which a scenario must name."""
    change(monkeypatch)
    result = judged(**params)
    assert {finding.oracle for finding in result.findings} <= allowed, result.reason
    assert result.verdict is (Verdict.FAIL if allowed else Verdict.PASS), result.reason
