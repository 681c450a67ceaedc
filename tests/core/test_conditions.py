"""Spaces of conditions: what is allowed, what is shown, and what a greedy cover of calls
reaches.
"""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from harness.core.conditions.model import Dimension, Never, Shown, Space
from harness.core.conditions.rows import space_of
from harness.core.conditions.table import SPACES, space_for
from harness.core.kernels import KernelSpec
from harness.core.shapes import DEEPSEEK, Shapes
from tests.transcripts import Approved

TINY = Space(
    op="tiny",
    reader=lambda points: points,
    optional=frozenset({"order"}),
    dimensions=(
        Dimension("pages", ("0", "1", "2"), ""),
        Dimension("order", ("up", "down"), ""),
        Dimension("kv", ("bf16", "fp8"), ""),
    ),
    rules=(
        Never({"pages": ("0", "1"), "order": ("up", "down")}, "needs two pages"),
        Never({"pages": ("2",), "order": ("down",), "kv": ("fp8",)}, "not so"),
    ),
)


def test_allowed_are_the_combinations_that_some_legal_point_has() -> None:
    legal = [
        {"pages": pages, "kv": kv} | ({"order": order} if order else {})
        for pages, order, kv in product(("0", "1", "2"), ("", "up", "down"), ("bf16", "fp8"))
        if not (order and pages != "2") and (pages, order, kv) != ("2", "down", "fp8")
    ]
    for strength in (2, 3):
        found = {frozenset(combination) for combination in TINY.combinations(strength)}
        every = [p for d in TINY.dimensions for p in [(d.name, label) for label in d.classes]]
        wanted = {
            frozenset(labels)
            for labels in product(every, repeat=strength)
            if len({name for name, _ in labels}) == strength
            and any(set(labels) <= set(point.items()) for point in legal)
        }
        assert found == wanted
    assert {why for _, why in TINY.refused_pairs()} == {"needs two pages"}
    assert TINY.why_not([("pages", "2"), ("order", "down"), ("kv", "fp8")]) == "not so"


def test_points_are_counted_once_and_only_where_they_are() -> None:
    shown = Shown(TINY)
    points = TINY.shown(
        {
            "points": [
                {"pages": "2", "order": "up", "kv": "bf16"},
                {"pages": "0", "order": None, "kv": "fp8"},
            ]
        }
    )
    assert shown.gain(points) == (4, 1)
    shown.add(points)
    assert shown.gain(points) == (0, 0)
    assert shown.counts(2) == (4, len(TINY.allowed))
    assert shown.counts(3)[0] == 1
    assert shown.has((("pages", "2"), ("order", "up"), ("kv", "bf16")))
    assert not shown.has((("pages", "2"), ("kv", "fp8")))
    assert (("pages", "2"), ("kv", "fp8")) in set(shown.unmet(2))
    assert TINY.decoded(points[0]) == {"pages": "0", "kv": "fp8"}


def test_the_mark_changes_with_the_classes() -> None:
    other = Space("tiny", (*TINY.dimensions, Dimension("more", ("a",), "")), TINY.rules, TINY.read)
    assert other.mark != TINY.mark


def test_classes_that_a_kernel_refuses_are_not_allowed_and_say_why(approved: Approved) -> None:
    spec = KernelSpec(
        "mla_decode",
        "mine",
        "",
        "",
        kv=("bf16",),
        shapes=Shapes(heads_multiple_of=16, query_len=(1,)),
    )
    space = space_for(spec)
    refused = {label for label in space.refused}
    assert {("kv", "fp32"), ("heads", "2-15"), ("tokens", "2"), ("window", "one")} <= refused
    assert (
        not {
            ("kv", "bf16"),
            ("heads", "16"),
            ("heads", "17-63"),
            ("tokens", "1"),
            ("window", "none"),
        }
        & refused
    )
    approved(space.why_not([("tokens", "2"), ("kv", "bf16")]))
    assert not any(("kv", "fp32") in pair for pair in space.combinations(2))
    assert len(space.allowed) < len(SPACES["mla_decode"].allowed)


def test_a_kernel_without_the_default_cache_type_refuses_no_other_class_for_it() -> None:
    space = space_for(KernelSpec("mla_decode", "mine", "", "", kv=("fp8_e4m3",), shapes=DEEPSEEK))
    assert space.allowed and ("heads", "16") not in space.refused
    assert ("kv", "bf16") in space.refused and ("kv", "fp8_e4m3") not in space.refused


ROW: dict[str, Any] = {
    "units": "tokens",
    "previous": ["before"],
    "empty": {"keys": "none"},
    "dimensions": {
        "tokens": {"is": "tokens of the call", "from": "1 2 17", "param": "num_tokens"},
        "keys": {"is": "keys of the token", "from": "0 1 2"},
        "block": {
            "is": "its block",
            "from": {"low": 0, "high": 128},
            "classes": {"low": {"n": 1}, "high": []},
        },
        "kv": {"is": "type of the cache", "classes": ["bf16", "one key"], "param": "kv"},
        "place": {"is": "place", "classes": ["only", "first", "middle", "last"]},
        "around": {"is": "", "classes": ["live", "empty before", "empty after", "empty both"]},
        "neighbour": {"is": "", "classes": ["equal", "other"]},
        "before": {"is": "", "classes": ["same", "other"]},
    },
    "never": {
        "no keys": [{"keys": "none", "each": {"kv": "any", "block": {"but": "low"}}}],
        "both": [
            {"either": [{"tokens": 1}, {"place": "only"}], "kv": "bf16", "block": ["low", "high"]}
        ],
    },
}


def test_a_row_says_the_classes_of_each_dimension_and_what_shows_them() -> None:
    space = space_of("tiny", ROW, lambda: [{"tokens": 16, "keys": 0, "block": 128, "kv": "bf16"}])
    assert space["tokens"].classes == ("1", "2-16", "17+") and space["keys"].classes == (
        "none",
        "1",
        "2+",
    )
    assert space["tokens"].shown_by("2-16")[:2] == [{"num_tokens": 2}, {"num_tokens": 3}]
    assert space["block"].shown_by("low") == ({"n": 1},) and not space["block"].shown_by("high")
    assert space["kv"].shown_by("one key") == ({"kv": "one_key"},)
    assert space.read() == [{"tokens": "2-16", "keys": "none", "block": "high", "kv": "bf16"}]


def test_a_row_says_which_classes_no_call_has_together() -> None:
    rules: dict[str, list[dict[str, Any]]] = {}
    for rule in space_of("tiny", ROW, list).rules:
        rules.setdefault(rule.why, []).append(dict(rule.classes))
    assert rules["no keys"] == [
        {"keys": ("none",), "kv": ("bf16", "one key")},
        {"keys": ("none",), "block": ("high",)},
    ]
    assert rules["both"] == [
        {"kv": ("bf16",), "block": ("low", "high"), "tokens": ("1",)},
        {"kv": ("bf16",), "block": ("low", "high"), "place": ("only",)},
    ]
    assert rules["nothing is before it"] == [
        {"tokens": ("1",), "before": ("same", "other")},
        {"place": ("only", "first"), "before": ("same", "other")},
        {"place": ("only", "first"), "around": ("empty before", "empty both")},
    ]
    live = {"around": ("live", "empty after"), "neighbour": ("equal",), "keys": ("none",)}
    assert live in rules["of two equal neighbours both are empty, or none is"]


@pytest.mark.parametrize("op", SPACES)
def test_every_rule_names_classes_that_there_are(op: str) -> None:
    space = SPACES[op]
    named = {
        (name, label)
        for rule in space.rules
        for name, labels in rule.classes.items()
        for label in labels
    }
    assert named <= set(space.labels) and space.optional <= {
        dimension.name for dimension in space.dimensions
    }
    assert all(len(rule.classes) in (2, 3) and all(rule.classes.values()) for rule in space.rules)


@pytest.mark.parametrize("op", SPACES)
def test_every_class_goes_with_one_class_of_each_other_dimension_at_least(op: str) -> None:
    space = SPACES[op]
    met = {n for pair in space.allowed for n in pair}
    assert met == set(range(len(space.labels)))
    assert all(why for _, why in space.refused_pairs())


def test_a_cover_reaches_every_pair_and_stops_where_no_draw_can() -> None:
    from trust.arrays.covering_calls import covering_calls

    points = [
        dict(zip(("pages", "kv"), labels, strict=True))
        for labels in product(("0", "1", "2"), ("bf16", "fp8"))
    ]
    points += [{"pages": "2", "order": "up", "kv": kv} for kv in ("bf16", "fp8")]
    points += [{"pages": "2", "order": "down", "kv": "bf16"}]

    def draw(random: Random, wanted: object) -> dict[str, object]:
        return {"point": random.randrange(len(points))}

    def show(given: dict[str, object]) -> tuple[str, ...]:
        return TINY.shown({"points": [points[int(str(given["point"]))]]})

    calls, shown = covering_calls(
        TINY, draw, show, lambda given: 1.0, triples=1.0, seed="x", most=50
    )
    assert shown.counts(2) == (len(TINY.allowed),) * 2 and len(calls) <= len(points)
    points = points[:1]
    calls, shown = covering_calls(
        TINY, draw, show, lambda given: 1.0, triples=1.0, seed="x", most=20
    )
    assert len(calls) == 1 and shown.counts(2)[0] == 1


def test_calls_that_are_not_needed_are_left_out() -> None:
    from trust.arrays.covering_calls import needed

    one, other = {"pages": "2", "order": "up", "kv": "bf16"}, {"pages": "0", "kv": "fp8"}
    calls = [
        (TINY.shown({"points": points}), cost)
        for points, cost in (([one], 1.0), ([one, other], 5.0), ([], 1.0))
    ]
    assert needed(TINY, calls, 0.0) == [1]
    assert needed(TINY, calls[:1], 1.0) == [0]


def test_the_call_that_shows_most_for_its_cost_stands_first_and_then_what_it_lacks() -> None:
    from trust.arrays.covering_calls import most_telling_first

    one, other = {"pages": "2", "order": "up", "kv": "bf16"}, {"pages": "0", "kv": "fp8"}
    calls = [
        (TINY.shown({"points": points}), cost)
        for points, cost in (([one], 4.0), ([other], 1.0), ([one, other], 2.0), ([one], 3.0))
    ]
    assert most_telling_first(TINY, calls)[0] == 2
    assert most_telling_first(TINY, calls[:2]) == [1, 0]
    assert most_telling_first(TINY, [calls[0], calls[1], calls[3]]) == [2, 1, 0]


def test_the_stages_before_sparse_attention_are_read_from_their_arguments() -> None:
    import torch

    positions = torch.tensor(
        [[0, 63, -1], [-1, -1, -1], [-1, 64, -1], [5, 6, 7]], dtype=torch.int32
    )
    table, owners = (
        torch.tensor([[3, 200], [4, 0]], dtype=torch.int32),
        torch.tensor([0, 0, 0, 1, 1]),
    )
    found = SPACES["map_indices"].read(positions, table, owners, page_size=64)
    assert [point["list"] for point in found] == ["short", "none", "holes", "full"]
    assert [point.get("block") for point in found] == ["below 128", None, "128+", "below 128"]
    assert [point.get("edge") for point in found] == ["last slot", None, "inner", "inner"]
    logits = torch.tensor([[3.0, 1, 1, 0], [2, 2, 2, 0], [4, 3, 0, 0], [0, 0, 0, 0]])
    found = SPACES["select_topk"].read(logits, torch.tensor([3, 3, 2, 0]), topk=2)
    assert [point.get("ties") for point in found] == ["at the last", "all", None, None]
    assert [point.get("rank") for point in found] == ["above", "above", "at", None]
