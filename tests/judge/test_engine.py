"""The engine gives the dense model's logits, whatever memory nobody wrote holds, however it batches
and captures.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch_poison.patterns import Poison

from harness.core.cases import Case, Job
from harness.core.catalog import ORACLES, SITES
from harness.core.errors import InputError
from harness.core.records import Verdict
from harness.engine.runner import ModelRunner
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.scheduler import Scheduler
from harness.engine.schedule.sequence import Sequence
from harness.evidence.addresses import Binding
from harness.evidence.compare import compare_bits
from harness.evidence.observed import Observed
from harness.evidence.records import Evidence, Run
from harness.evidence.replay import ReplayedStep
from harness.evidence.sentinel import Guard
from harness.judge.probes.trace import Trace
from harness.judge.run_case import run_case
from harness.judge.targets.engine import EngineTarget
from tests.transcripts import Approved

EVERY_SITE = frozenset(SITES.names())
REQUESTS = ((5, 6), (70, 5), (17, 7), (130, 4))
HYBRID = ("kda", "mla")
BOUNDED = {
    "requests": REQUESTS,
    "capture_sizes": (3, 4),
    "max_batched_tokens": 64,
    "context_chunk": 40,
}


def case(**params: Any) -> Case:
    return Case(id="case", scenario="s", system="engine", params={**BOUNDED, **params}, seed=3)


def serve(
    sites: frozenset[str] = EVERY_SITE, pattern: str = "nan", strict: bool = False, **params: Any
) -> Run:
    return EngineTarget(case(**params)).run(Poison(pattern, sites, strict=strict, seed=5))


def judge(oracle: str, *runs: Run) -> list[str]:
    """Messages of an oracle's findings; it must have looked at something."""
    judgement = ORACLES.get(oracle).judge(Evidence(case(), list(runs)))
    assert judgement.looked_at > 0
    return [finding.message for finding in judgement.findings]


def logits(run: Run) -> torch.Tensor:
    return torch.cat([observed.tensor for observed in run.all(Observed)])


COMBINATIONS = [
    {},
    {"kv": "fp32"},
    {"kv": "fp8_e4m3"},
    {"graph": "full"},
    {"graph": "full", "capture": "lazy", "kv": "fp8_e4m3"},
    {"graph": "full", "layers": HYBRID},
    {
        "layers": ("kda", "mla", "mla", "kda"),
        "kv": "fp8_e4m3",
        "decode_kernel": "tiled-multiply",
        "num_blocks": 9,
    },
    {
        "graph": "full",
        "capture": "lazy",
        "layers": HYBRID,
        "decode_kernel": "tiled-multiply",
        "epochs": 2,
    },
    {"num_experts": 6},
    {"graph": "full", "num_experts": 6, "kv": "fp32", "layers": HYBRID},
    {"graph": "full", "quantize": "fp8_per_tensor"},
    {"graph": "full", "quantize": "fp8_per_tensor", "num_experts": 4, "zero_fill_output": True},
    {"graph": "full", "quantize": "fp8_per_token", "kv": "fp8_e4m3"},
    {"graph": "full", "quantize": "fp8_per_tensor", "quantize_kernel": "torch-fmax", "kv": "fp32"},
    {"graph": "full", "drafter": True, "dummy_steps": True},
    {"context_kernel": "torch-plus-inf", "free_list": "lifo", "dummy_steps": True, "drafter": True},
    {"graph": "full", "decode_kernel": "tiled-identity", "max_num_seqs": 2, "shared_prefix": 4},
    {"graph": "full", "decode_kernel": "tiled-prefetch", "num_blocks": 6},
]


@pytest.mark.parametrize(
    "params", COMBINATIONS, ids=lambda params: ",".join(f"{k}={v}" for k, v in params.items())
)
def test_a_poisoned_run_keeps_every_promise(params: dict[str, Any]) -> None:
    run = serve(**params)
    oracles = ["finite", "sentinel", "reference"]
    if params.get("graph") == "full":
        oracles += ["replay", "address"]
    assert {oracle: judge(oracle, run) for oracle in oracles} == {oracle: [] for oracle in oracles}


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "params",
    [
        {
            "graph": "full",
            "quantize": "fp8_per_tensor",
            "num_experts": 4,
            "drafter": True,
            "dummy_steps": True,
        },
        {
            "layers": HYBRID,
            "graph": "full",
            "capture": "lazy",
            "decode_kernel": "tiled-multiply",
            "num_blocks": 9,
        },
    ],
    ids=["experts", "hybrid"],
)
def test_live_logits_have_the_same_bits_under_every_poison(params: dict[str, Any]) -> None:
    friendly = logits(serve(sites=frozenset(), **params))
    live = torch.ones(len(friendly), dtype=torch.bool)
    for pattern in ("nan", "zeros", "max", "inf", "random"):
        for strict in (False, True):
            poisoned = logits(serve(pattern=pattern, strict=strict, **params))
            assert compare_bits(poisoned, friendly, live).mismatch is None, (pattern, strict)


def test_the_same_case_gives_the_same_bits_and_another_seed_gives_others() -> None:
    first, again = logits(serve(graph="full")), logits(serve(graph="full"))
    assert torch.equal(first, again)
    other = EngineTarget(case(graph="full").model_copy(update={"seed": 4})).run(
        Poison("nan", EVERY_SITE)
    )
    assert not torch.equal(first, logits(other))


def test_each_epoch_gives_the_same_bits_as_long_as_batches_are_alike() -> None:
    run = serve(epochs=3, layers=HYBRID, num_blocks=10, graph="full")
    assert len(run.all(Observed)) == 3
    for observed in run.all(Observed)[1:]:
        assert torch.equal(observed.tensor, run.all(Observed)[0].tensor)


def test_preemption_does_not_show_in_the_logits() -> None:
    # Six usable blocks for requests that need eight at their ends.
    run = serve(
        num_blocks=8, requests=((60, 20), (62, 20), (61, 20), (60, 20)), kv="fp32", layers=HYBRID
    )
    assert judge("reference", run) == []


def test_a_row_says_whose_token_it_is() -> None:
    (observed,) = serve().all(Observed)
    ranges = "request 0 has 0-5, request 1 has 6-10, request 2 has 11-17, request 3 has 18-21"
    assert observed.describe == f"generated token ({ranges})"
    assert observed.tensor.shape == (22, 128)
    assert observed.bound == "engine.logits.bf16"
    assert serve(quantize="fp8_per_tensor").all(Observed)[0].bound == "engine.logits.bf16.fp8act"


def test_graph_runs_show_every_replay_beside_its_eager_twin_and_every_input_of_it() -> None:
    run = serve(graph="full")
    assert {step.replayed.shape[0] for step in run.all(ReplayedStep)} >= {3, 4}
    assert all(int(step.live.sum()) <= step.replayed.shape[0] for step in run.all(ReplayedStep))
    assert any(int(step.live.sum()) < step.replayed.shape[0] for step in run.all(ReplayedStep))
    names = {binding.name.partition(" of ")[0] for binding in run.all(Binding)}
    assert names >= {
        "hidden",
        "positions",
        "slot_mapping",
        "block_table",
        "seq_lens",
        "plan.work",
        "plan.num_splits",
    }
    assert {b.site for b in run.all(Binding) if b.name.startswith("plan.")} == {"sched_meta"}
    assert all(step.replayed.data_ptr() != step.eager.data_ptr() for step in run.all(ReplayedStep))


def test_eager_runs_have_no_replays() -> None:
    run = serve()
    assert run.all(ReplayedStep) == [] and run.all(Binding) == []


def test_the_null_block_is_guarded() -> None:
    (guard,) = serve(dummy_steps=True).all(Guard)
    assert guard.site == "kv.null"
    assert torch.equal(guard.before, guard.after)


def test_there_is_no_case_whose_rank_kernels_cannot_tell(approved: Approved) -> None:
    with approved.raises(ValidationError):
        case(kv_lora_rank=24)


def test_there_is_no_case_whose_pool_is_too_small(approved: Approved) -> None:
    assert not EngineTarget.why_not(case(num_blocks=5))
    with approved.raises(ValidationError):
        case(num_blocks=4)


def test_an_error_that_the_engine_raises_is_a_crash_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    monkeypatch.setattr(Scheduler, "_fits", lambda self, sequence, count: count // 0)
    result = run_case(Job(key="k", case=case().model_copy(update={"oracles": ("finite",)})))
    assert result.verdict is Verdict.CRASH
    approved(result.reason)
    assert (
        result.findings[0].at.startswith("scheduler.py:")
        and "_schedule_running" in result.findings[0].at
    )


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(InputError("too long"), Verdict.ERROR), (torch.OutOfMemoryError("full"), Verdict.SKIP)],
)
def test_a_refusal_and_a_full_memory_are_no_crash_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, error: Exception, verdict: Verdict
) -> None:
    def refuse(self: Scheduler, sequence: object, count: int) -> bool:
        raise error

    monkeypatch.setattr(Scheduler, "_fits", refuse)
    assert (
        run_case(Job(key="k", case=case().model_copy(update={"oracles": ("finite",)}))).verdict
        is verdict
    )


def test_an_error_of_a_probe_that_watches_the_engine_is_none_of_the_engine() -> None:
    broken = Trace()
    del broken.events
    with pytest.raises(AttributeError, match="events"):
        EngineTarget(case()).run_traced(Poison("zeros", frozenset()), broken)


@pytest.mark.parametrize(
    "params", [{}, {"graph": "full"}, {"prefix_caching": True, "epochs": 2}, {"layers": HYBRID}]
)
def test_no_request_and_no_block_is_lost(params: dict[str, Any]) -> None:
    found = serve(**params)
    assert [judge(oracle, found) for oracle in ("conserved", "tokens")] == [[], []]


def test_an_engine_that_captures_graphs_and_replays_none_is_a_finding_and_no_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ModelRunner, "_graph_size", lambda self, batch: None)
    graphs = case(graph="full").model_copy(update={"oracles": ("replay", "conserved")})
    result = run_case(Job(key="k", case=graphs))
    assert result.verdict is Verdict.FAIL
    assert {finding.oracle for finding in result.findings} == {"policy"}
    assert result.findings[0].tensor == "rows of the graph that replays a batch of decodes"


def test_a_block_that_is_not_freed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    free = BlockPool.free
    monkeypatch.setattr(BlockPool, "free", lambda self, blocks: free(self, list(blocks)[1:]))
    found = judge("conserved", serve())
    assert any("blocks that are free or owned" in message for message in found)
    assert any("free blocks after the last request" in message for message in found)


def test_a_request_past_the_length_it_was_admitted_with_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sequence, "max_length", property(lambda self: self.num_prompt_tokens))
    assert any(
        message.startswith("requests past the length") for message in judge("conserved", serve())
    )


def test_a_request_that_gets_too_few_tokens_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Sequence, "is_finished", property(lambda self: self.num_generated_tokens >= 3)
    )
    assert any(
        message.startswith("tokens of request 0: 3, not 6")
        for message in judge("conserved", serve())
    )


def test_a_token_that_is_not_the_largest_logit_is_found(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(
        "harness.engine.engine.greedy_tokens", lambda logits: logits.topk(2).indices[:, 1]
    )
    approved(judge("tokens", serve())[0])
