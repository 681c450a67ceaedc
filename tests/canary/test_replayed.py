"""Recorded decisions of an engine: rounding passes, also at near ties; small errors are found with
their blame.

The engine is transformers in bfloat16. Its decisions are packed as the recorder for vLLM packs
them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_faults

pytest.importorskip("transformers")
from canaries import judge_logprobs, random_model, replayed
from canaries.recorded import UNKNOWN, Decider, Ids, packed, unpacked
from harness.evidence.records import Judgement
from tests.canary.small_models import SMALL
from tests.transcripts import Approved

Change = Callable[[Any], Any]
LENGTHS = (230, 96, 96, 90, 80)
INDEX, EXPERTS = Decider(1, "index"), Decider(1, "experts")


class Engine:
    """A tiny model in bfloat16 beside its checkpoint's truth."""

    def __init__(self, architecture: str, folder: Path) -> None:
        self.folder = folder
        self.model = random_model.build(architecture, 0)
        self.prompts = random_model.prompts(256, 0, LENGTHS)
        sequences = [{"tokens": tokens} for tokens in self.prompts]
        random_model.save_truth(
            folder, {"architecture": architecture, "seed": 0, "sequences": sequences}
        )

    def in_bfloat16(self) -> Any:
        engine = copy.deepcopy(self.model).to(torch.bfloat16)
        for ours, exact in zip(engine.buffers(), self.model.buffers(), strict=True):
            ours.data = exact.data.clone()
        return engine

    @functools.cached_property
    def plain(self) -> dict[str, Any]:
        """What the engine says with nothing injected."""
        return self.answers()

    def answers(
        self, change: Change | None = None, decide: Callable[[int, Ids], None] | None = None
    ) -> dict[str, Any]:
        """What the engine says; `change` is made to the model, `decide` to the decisions of a
        prompt.
        """
        engine = self.in_bfloat16()
        if change:
            change(engine)
        found: dict[str, Any] = {"logprobs": [], "decisions": []}
        for number, tokens in enumerate(self.prompts):
            with replayed.Replay(engine, {}) as own:
                values = random_model.token_logprobs(engine, tokens)
            ids = {decider: replayed.as_ids(taken) for decider, taken in own.taken.items()}
            if decide:
                decide(number, ids)
                with replayed.Replay(engine, ids):
                    values = random_model.token_logprobs(engine, tokens)
            found["logprobs"].append(values.tolist())
            written: dict[str, dict[str, Any]] = {}
            for decider, rows in ids.items():
                written.setdefault(decider.stage, {})[str(decider.layer)] = packed(rows)
            found["decisions"].append(written)
        return found

    def judge(self, found: dict[str, Any]) -> Judgement:
        return judge_logprobs.judged(self.folder, found, "bf16", generated=False)

    def same_answers(self, change: Change) -> float:
        """The share of likeliest tokens that a changed model keeps."""
        right, wrong = self.in_bfloat16(), self.in_bfloat16()
        change(wrong)
        with torch.no_grad():
            likeliest = [
                [model(torch.tensor([tokens])).logits[0].argmax(-1) for tokens in self.prompts]
                for model in (right, wrong)
            ]
        return float((torch.cat(likeliest[0]) == torch.cat(likeliest[1])).float().mean())


def small(architecture: str, folder: Path) -> Engine:
    torch.set_num_threads(1)
    row = random_model.ARCHITECTURES[architecture]
    sizes = row.sizes | {name: size for name, size in SMALL.items() if name in row.sizes}
    random_model.ARCHITECTURES[architecture] = dataclasses.replace(row, sizes=sizes)
    return Engine(architecture, folder)


@pytest.fixture(scope="module", autouse=True)
def small_sizes() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_model, "ARCHITECTURES", dict(random_model.ARCHITECTURES))
        yield


@pytest.fixture(scope="module")
def v32(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return small("deepseek_v32", tmp_path_factory.mktemp("v32"))


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return small("kimi_linear", tmp_path_factory.mktemp("kimi"))


def rope_of_a_position(engine: Any) -> None:
    """Layer 1 rotates position 40 as the next one."""

    def shifted(_module: Any, args: Any, kwargs: Any) -> Any:
        tables = tuple(table.clone() for table in kwargs["position_embeddings"])
        for table in tables:
            table[:, 40] = table[:, 41]
        return args, kwargs | {"position_embeddings": tables}

    engine.model.layers[1].self_attn.register_forward_pre_hook(shifted, with_kwargs=True)


def epsilon(engine: Any) -> None:
    """1e-6 where the checkpoint has 1e-5, after linear attention."""
    engine.model.layers[0].self_attn.o_norm.variance_epsilon = 1e-6


@pytest.mark.nightly
def test_rounding_passes_also_where_near_ties_fall_otherwise(v32: Engine, kimi: Engine) -> None:
    for engine in (v32, kimi):
        found = engine.plain
        judgement = engine.judge(found)
        assert not judgement.findings and judgement.looked_at > 500
        assert "decisions replayed" in judgement.notes[0]
        with replayed.Replay(engine.model, {}) as own:
            random_model.token_logprobs(engine.model, engine.prompts[0])
        ours = unpacked(found["decisions"][0])[EXPERTS]
        assert (ours != replayed.as_ids(own.taken[EXPERTS]).sort(1).values).any()


def test_replayed_decisions_leave_rounding_alone(v32: Engine) -> None:
    """The largest distance falls by a third at least, as other choices are no distance any more."""
    found = copy.deepcopy(v32.plain)
    far = {"replayed": 0.0, "own": 0.0}
    for number, tokens in enumerate(v32.prompts):
        values = torch.tensor(found["logprobs"][number])
        ids = unpacked(found["decisions"][number])
        for name, choices in (("replayed", ids), ("own", {})):
            with replayed.Replay(v32.model, choices):
                truth = random_model.token_logprobs(v32.model, tokens)
            far[name] = max(far[name], float((values - truth).abs().max()))
    assert far["replayed"] < far["own"] / 1.5


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("name", "change", "blame"),
    [
        ("v32", rope_of_a_position, "token 4[01]"),
        ("kimi", epsilon, "layer 1, experts"),
    ],
)
def test_an_error_that_answers_do_not_show_is_found(
    name: str, change: Change, blame: str, request: pytest.FixtureRequest
) -> None:
    engine: Engine = request.getfixturevalue(name)
    findings = engine.judge(engine.answers(change)).findings
    assert findings and any(re.search(blame, finding.message) for finding in findings)
    assert engine.same_answers(change) > 0.85


def test_one_wrong_token_of_an_indexer_is_named_with_request_token_layer_and_stage(
    v32: Engine,
    approved: Approved,
) -> None:
    with replayed.Replay(v32.model, {}) as own:
        random_model.token_logprobs(v32.model, v32.prompts[0])
    best = int(own.scores[INDEX][200].argmax())

    def decide(number: int, ids: Ids) -> None:
        if number == 0:
            row = ids[INDEX][200].tolist()
            ids[INDEX][200] = torch.tensor([best, *(one for one in row if one != best)])
            vllm_faults.swap_one(ids[INDEX][200:201])

    (finding,) = v32.judge(v32.answers(decide=decide)).findings
    assert f", not {best}: " in finding.message
    approved(finding.message)
    assert (finding.tensor, finding.cause) == ("index of layer 1", "diverged")


def test_one_wrong_expert_is_named_with_request_token_layer_and_stage(
    v32: Engine, approved: Approved
) -> None:
    def decide(number: int, ids: Ids) -> None:
        if number == 2:
            ids[EXPERTS][:8] = vllm_faults.with_neighbours(ids[EXPERTS][:8], 8)

    (finding,) = v32.judge(v32.answers(decide=decide)).findings
    assert "not" in finding.message
    approved(finding.message)


@pytest.mark.nightly
def test_choices_that_are_no_set_of_experts_are_findings(v32: Engine, approved: Approved) -> None:
    for row in [
        (0, 0),
        (0, 9),
        (0, -1),
    ]:
        found = copy.deepcopy(v32.plain)
        ids = unpacked(found["decisions"][4])[EXPERTS]
        ids[30] = torch.tensor(row)
        found["decisions"][4]["experts"]["1"] = packed(ids)
        (finding,) = v32.judge(found).findings
        approved(finding.message)


def test_a_token_of_the_future_is_a_finding(v32: Engine, approved: Approved) -> None:
    found = copy.deepcopy(v32.plain)
    ids = unpacked(found["decisions"][0])[INDEX]
    ids[120, -1] = 121
    found["decisions"][0]["index"]["1"] = packed(ids)
    approved(v32.judge(found).findings[0].message)


@pytest.mark.nightly
def test_with_a_decision_that_was_not_recorded_none_is_replayed(
    v32: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_logprobs, "of_prompts", lambda *args: Judgement(looked_at=1))
    found = copy.deepcopy(v32.plain)
    ids = unpacked(found["decisions"][1])[EXPERTS]
    ids[-1] = UNKNOWN
    found["decisions"][1]["experts"]["1"] = packed(ids)
    assert v32.judge(found).looked_at > 1
    ids[5] = UNKNOWN
    found["decisions"][1]["experts"]["1"] = packed(ids)
    judgement = v32.judge(found)
    assert (judgement.looked_at, judgement.notes) == (
        1,
        ["not all decisions were recorded, so none is replayed"],
    )


def test_generated_tokens_are_judged_after_their_prompts(v32: Engine, approved: Approved) -> None:
    found = copy.deepcopy(v32.plain)
    cut = 20
    prompts, whole = [tokens[:-cut] for tokens in v32.prompts], v32.prompts
    random_model.save_truth(
        v32.folder,
        {
            "architecture": "deepseek_v32",
            "seed": 0,
            "sequences": [{"tokens": one} for one in prompts],
        },
    )
    answers = {
        "generated": [tokens[-cut:] for tokens in whole],
        "generated_logprobs": [values[-cut:] for values in found["logprobs"]],
        "generated_decisions": found["decisions"],
    }
    judgement = judge_logprobs.judged(v32.folder, answers, "bf16", generated=True)
    assert judgement.looked_at == cut * len(whole) and not judgement.findings
    answers["generated_logprobs"][3][4] -= 2.0
    (finding,) = judge_logprobs.judged(v32.folder, answers, "bf16", generated=True).findings
    approved(finding.message)


def test_without_decisions_the_present_bound_judges(
    v32: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_logprobs, "of_prompts", lambda *args: Judgement(looked_at=1))
    judgement = v32.judge({"logprobs": [], "decisions": [{}, {}]})
    assert (judgement.looked_at, judgement.notes) == (1, [])
