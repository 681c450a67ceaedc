"""What the probe of conditions reads from steps of the engine, and that the rules allow all that
happens.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.conditions.engine import SPACE
from harness.core.conditions.model import Shown
from harness.core.conditions.table import key_of
from harness.core.engine_params import EngineParams
from harness.engine.runner import ModelRunner
from harness.judge.targets.engine import EngineTarget

SMALL = {
    "layers": ["mla"],
    "hidden_size": 32,
    "num_heads": 2,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "vocab_size": 16,
    "kv": "fp32",
}


def shown(**given: Any) -> list[dict[str, str]]:
    params = EngineParams.model_validate(SMALL | given)
    case = Case(id="c", scenario="s", system="engine", params=params)
    words = EngineTarget(case).run(Poison("zeros", frozenset())).shown[key_of(SPACE)]
    return [SPACE.decoded(word) for word in words]


def has(points: list[dict[str, str]], **wanted: str) -> bool:
    return any(set(wanted.items()) <= set(point.items()) for point in points)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            {"requests": [[9, 2], [100, 1]], "max_batched_tokens": 65},
            [
                {"phase": "first", "end": "inner"},
                {"phase": "last", "mix": "both", "context": "one round"},
                {
                    "phase": "decode",
                    "moved": "kept",
                    "change": "none",
                    "behind": "prompt",
                    "after": "ends",
                },
            ],
        ),
        (
            {"requests": [[62, 8], [60, 7], [57, 9]], "num_blocks": 6, "max_batched_tokens": 256},
            [
                {"change": "preempted", "phase": "decode"},
                {"life": "again", "block": "recycled", "growth": "1"},
                {"life": "resumed", "growth": "1", "start": "page"},
            ],
        ),
        (
            {
                "requests": [[9, 3], [70, 3], [9, 2]],
                "graph": "full",
                "capture_sizes": [1, 4],
                "pad_tokens": "trash",
                "dummy_steps": True,
                "max_batched_tokens": 256,
                "aborts": [[1, 2]],
            },
            [
                {"graph": "eager", "phase": "whole"},
                {"graph": "padded 1", "padding": "trash", "dummy": "before"},
                {"graph": "exact", "size": "smallest", "change": "aborted"},
            ],
        ),
        (
            {
                "requests": [[9, 8], [130, 8]],
                "layers": ["window", "mla"],
                "window": 20,
                "speculative_tokens": 2,
                "max_batched_tokens": 256,
                "window_kv": "bf16",
                "zero_fill_output": True,
                "num_experts": 2,
            },
            [
                {"layer": "window", "seen": "evicted", "kv": "bf16"},
                {"layer": "full", "accepted": "none", "drafts": "2-3"},
                {"experts": "one rank", "output": "persistent"},
            ],
        ),
        (
            {
                "requests": [[100, 2], [100, 2]],
                "layers": ["kda", "mla"],
                "shared_prefix": 70,
                "prefix_caching": True,
                "arrivals": [0, 3],
            },
            [
                {"layer": "state", "phase": "first", "end": "whole"},
                {"layer": "state", "hit": "1", "phase": "whole"},
            ],
        ),
        (
            {
                "requests": [[100, 2], [100, 2]],
                "shared_prefix": 70,
                "prefix_caching": True,
                "arrivals": [0, 2],
            },
            [
                {"hit": "1", "phase": "whole", "context": "one round"},
                {"hit": "1", "phase": "decode"},
            ],
        ),
    ],
)
def test_steps_show_what_they_did_and_the_rules_allow_it(
    given: dict[str, Any], wanted: list[dict[str, str]]
) -> None:
    points = shown(**given)
    assert [one for one in wanted if not has(points, **one)] == []
    met = Shown(SPACE)
    met.add(SPACE.coded(point) for point in points)
    for pair, later in met.with_pair.items():
        names = [SPACE.labels[n] for n in pair]
        assert pair in SPACE.allowed, (names, SPACE.why_not(names))
        assert not later & ~SPACE.allowed[pair], names


def test_the_step_counts_and_not_what_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"requests": [[9, 3]], "graph": "full", "capture_sizes": [1]}
    assert has(shown(**given), graph="exact")
    monkeypatch.setattr(ModelRunner, "_graph_size", lambda self, batch: None)
    assert not has(shown(**given), graph="exact") and has(
        shown(**given), graph="eager", phase="decode"
    )


def test_a_cancelled_request_is_seen_by_its_blocks() -> None:
    points = shown(requests=[[9, 4], [9, 4], [9, 4]], cancelled=[1], arrivals=[0, 1, 2])
    assert has(points, change="cancelled", batch="1")
