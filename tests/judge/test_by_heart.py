"""A drafter that knows the answers by heart: each draft comes true, and each of its numbers has a
reference.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from torch_poison.patterns import Poison

from harness.core.catalog import FAULTS, ORACLES
from harness.core.engine_params import EngineParams
from harness.core.findings import Finding
from harness.core.records import Case
from harness.core.seams import inject
from harness.evidence.counts import Count
from harness.evidence.facts import Happened
from harness.evidence.observed import Observed
from harness.evidence.records import Evidence, Run
from harness.evidence.replay import ReplayedStep
from harness.judge.targets.engine import EngineTarget
from tests.transcripts import Approved

SMALL: dict[str, Any] = {
    "layers": ("mla",),
    "kv": "fp32",
    "speculative_tokens": 1,
    "speculative": "mtp",
    "requests": ((5, 5), (50, 6)),
    "max_batched_tokens": 32,
}


def serve(**params: Any) -> Run:
    case = Case(id="case", scenario="s", system="engine", params={**SMALL, **params}, seed=3)
    return EngineTarget(case).run(Poison("nan", frozenset({"kv.free", "kv.new", "kv.tail"})))


def findings(oracle: str, run: Run) -> list[Finding]:
    judgement = ORACLES.get(oracle).judge(
        Evidence(Case(id="c", scenario="s", system="engine", params=SMALL), [run])
    )
    assert judgement.looked_at
    return list(judgement.findings)


@pytest.mark.parametrize(
    "params",
    [{}, {"speculative": "eagle"}, {"graph": "full", "layers": ("window", "mla")}],
    ids=str,
)
def test_each_draft_comes_true_and_agrees_with_the_reference(params: dict[str, Any]) -> None:
    run = serve(**params)
    (happened,) = run.all(Happened)
    assert happened.counts["drafts.all"] >= 4 and not happened.counts.get("drafts.none")
    assert (
        findings("acceptance", run) == findings("reference", run) == findings("finite", run) == []
    )
    assert any(observed.name.startswith("draft logits") for observed in run.all(Observed))


def test_a_refused_draft_is_a_finding_with_request_step_and_layer(approved: Approved) -> None:
    with inject(FAULTS.get("drafter.row-of-partial-accept")):
        run = serve()
    assert findings("reference", run) == findings("tokens", run) == []
    found = findings("acceptance", run)[0]
    assert found.where.startswith("step ")
    approved(found.tensor)
    assert found.where.endswith("layer 1")
    approved(found.message)


def test_a_chunk_that_ends_in_a_guess_leaves_answers_alone_and_wrong_drafts() -> None:
    with inject(FAULTS.get("drafter.unverified-token-in-pages")):
        run = serve()
    assert findings("tokens", run) == []
    assert {found.tensor for found in findings("reference", run)} == {"draft logits of epoch 0"}


def test_replayed_guesses_of_the_module_are_compared_with_eager_ones() -> None:
    run = serve(graph="full")
    names = {step.name.partition(" of the graph")[0] for step in run.all(ReplayedStep)}
    assert names == {"decode logits", "draft logits"} and findings("replay", run) == []


def test_a_write_of_a_dummy_step_is_named_with_its_owner_and_layer() -> None:
    with inject(FAULTS.get("drafter.dummy-through-stale-rows")):
        run = serve(dummy_steps=True)
    owned = [found for found in findings("sentinel", run) if "of request" in found.tensor]
    assert owned and "layer 1" in owned[0].message


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"speculative_tokens": 2}, "guesses one token"),
        ({"requests": ((5, 40),)}, "at most half as many tokens"),
    ],
)
def test_what_a_module_cannot_draft_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineParams.model_validate({**SMALL, **params})


@pytest.mark.parametrize(
    ("fault", "params", "share", "oracle"),
    [
        ("drafter.row-of-partial-accept", {}, 0.6, "acceptance"),
        ("drafter.placeholder-as-token", {}, 0.8889, "acceptance"),
        # Its guesses come true all the same: their logits alone show it.
        ("drafter.reduced-twice", {"speculative": "eagle"}, 1.0, "reference"),
    ],
)
def test_broken_drafters_give_each_right_answer_and_are_caught(
    fault: str, params: dict[str, Any], share: float, oracle: str
) -> None:
    requests = {"requests": ((9, 6), (66, 5), (30, 7)), "max_batched_tokens": 40}
    with inject(FAULTS.get(fault)):
        run = serve(**requests, **params)
    verified = [
        count.found == count.expected for count in run.all(Count) if count.oracle == "acceptance"
    ]
    assert findings("tokens", run) == [] and findings(oracle, run)
    assert round(sum(verified) / len(verified), 4) == share
