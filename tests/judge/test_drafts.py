"""Guesses of a drafter that a graph makes, beside the guesses from the eager step; and drafts that
are partly right.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.catalog import ORACLES
from harness.core.findings import Finding
from harness.core.records import Case
from harness.engine import engine, speculation
from harness.engine.speculation import GraphDrafter
from harness.evidence.facts import Happened
from harness.evidence.records import Evidence
from harness.judge.targets.engine import EngineTarget

GRAPH: dict[str, Any] = {
    "layers": ("mla",),
    "graph": "full",
    "drafter": True,
    "requests": ((5, 5), (30, 4)),
}
PARTLY: dict[str, Any] = {
    "layers": ("mla",),
    "kv": "fp32",
    "requests": ((64, 3), (64, 7), (64, 7)),
    "chains": ("a", "a", "a"),
    "arrivals": (0, 4, 9),
    "speculative_tokens": 3,
    "happens": ("drafts.some", "drafts.all"),
}


def findings(oracle: str, params: dict[str, Any]) -> list[Finding]:
    case = Case(id="case", scenario="s", system="engine", params=params, seed=3)
    run = EngineTarget(case).run(Poison("nan", frozenset()))
    assert all(run.all(Happened)[0].counts.get(event) for event in params.get("happens", ()))
    judgement = ORACLES.get(oracle).judge(Evidence(case, [run]))
    assert judgement.looked_at
    return list(judgement.findings)


def test_replayed_guesses_equal_the_eager_ones() -> None:
    assert findings("replay", GRAPH) == []


@pytest.mark.parametrize("late", ["hidden", "tokens"])
def test_a_copy_behind_the_replay_is_a_finding_of_the_guess(
    monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    replay = GraphDrafter.replay
    copied: dict[int, torch.Tensor] = {}

    def copies_late(
        drafter: GraphDrafter, hidden: torch.Tensor, tokens: torch.Tensor
    ) -> torch.Tensor:
        given = {"hidden": hidden, "tokens": tokens}
        now = given[late]
        # The graph reads what the replay before left; at first, the zeros of its capture.
        given[late] = copied.get(len(now), torch.zeros_like(now))
        copied[len(now)] = now.clone()
        return replay(drafter, **given)

    monkeypatch.setattr(GraphDrafter, "replay", copies_late)
    found = findings("replay", GRAPH)
    assert found and {one.tensor.partition(" of the graph")[0] for one in found} == {"draft logits"}


def test_partly_right_drafts_give_the_dense_models_answers() -> None:
    assert (
        findings("reference", PARTLY)
        == findings("tokens", PARTLY)
        == findings("policy", PARTLY)
        == []
    )


def test_a_last_draft_that_is_kept_though_wrong_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = speculation.confirmed
    monkeypatch.setattr(
        engine, "confirmed", lambda drafts, tokens: right(drafts[:2] + tokens[2:3], tokens)
    )
    assert findings("reference", PARTLY | {"happens": ()})


def test_a_last_draft_that_is_refused_though_right_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = speculation.confirmed
    monkeypatch.setattr(engine, "confirmed", lambda drafts, tokens: right(drafts, tokens)[:3])
    assert findings("policy", PARTLY | {"happens": ()})
