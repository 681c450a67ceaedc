"""What a step of the engine shows: each class is read from what the step did."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.conditions.engine import SPACE, ObservedRequest, ObservedStep
from tests.transcripts import Approved


def points(
    *requests: ObservedRequest, layers: dict[str, str | None] | None = None, **step: Any
) -> list[dict[str, str | None]]:
    return SPACE.read(ObservedStep(requests, layers or {"full": "fp32"}, **step))


def decode(computed: int, **more: Any) -> ObservedRequest:
    return ObservedRequest(computed, more.pop("new", 1), computed + 1, 1, is_decode=True, **more)


def prompt(computed: int, new: int, known: int, **more: Any) -> ObservedRequest:
    return ObservedRequest(computed, new, known, 0, **more)


DECODE, WHOLE, LAST = (
    decode(70, given=1),
    prompt(0, 9, 9, given=1, grown=1),
    prompt(64, 9, 73, given=1, grown=1),
)


@pytest.mark.parametrize(
    ("requests", "step", "name", "wanted"),
    [
        ([DECODE], {}, "mix", "decodes"),
        ([DECODE, LAST], {}, "mix", "both both"),
        ([WHOLE], {}, "mix", "prompts"),
        ([DECODE] * 4, {}, "place", "first middle middle last"),
        ([DECODE], {}, "place", "only"),
        ([DECODE, DECODE, WHOLE], {}, "behind", "decode prompt none"),
        ([DECODE], {"sizes": [2], "replayed": 2}, "behind", "padding"),
        ([decode(9, row=0), decode(9, row=0), decode(9)], {}, "moved", "kept moved new"),
        (
            [prompt(0, 9, 9), prompt(0, 9, 10), prompt(9, 9, 20), prompt(9, 9, 18)],
            {},
            "phase",
            "whole first inner last",
        ),
        ([prompt(64, 9, 73, hit=64), prompt(64, 9, 80, hit=64)], {}, "phase", "whole first"),
        (
            [decode(9), ObservedRequest(9, 1, 10, 0, is_decode=True), decode(9, preempted_at=10)],
            {},
            "phase",
            "decode tail tail",
        ),
        ([decode(63), decode(64), decode(65)], {}, "start", "last page inner"),
        ([decode(62), decode(63), decode(64), decode(65)], {}, "end", "last whole first inner"),
        ([decode(n) for n in (63, 64, 128, 256)], {}, "pages", "1 2 3-4 5+"),
        ([decode(63), decode(64, grown=1), prompt(0, 70, 70, grown=2)], {}, "growth", "none 1 2+"),
        ([prompt(n, 9, n + 9, hit=n) for n in (0, 64, 192)], {}, "hit", "none 1 2+"),
        ([WHOLE], {"context_chunk": 64}, "context", "none"),
        ([DECODE, LAST, WHOLE], {"context_chunk": 64}, "context", "None|one round|beside"),
        # Two prompts with context share a round of 64: 300 tokens take ten rounds, 20 tokens one.
        (
            [prompt(300, 9, 309), prompt(20, 9, 29)],
            {"context_chunk": 64},
            "context",
            "rounds|fewer rounds",
        ),
        ([WHOLE], {"context_chunk": 64, "ranks": 2}, "ranks", "None"),
        ([LAST, WHOLE], {"context_chunk": 64, "ranks": 2}, "ranks", "2+ 2+"),
        (
            [DECODE, prompt(0, 9, 9, preempted_at=9), decode(9, preempted_at=9)],
            {},
            "life",
            "first again resumed",
        ),
        ([decode(9, given=1), decode(9, given=1, ends=True)], {}, "after", "goes on|ends"),
        (
            [
                decode(9, drafts=3, confirmed=3, given=2, ends=True),
                decode(9, drafts=3, confirmed=1, given=2, ends=True),
            ],
            {},
            "after",
            "cut ends",
        ),
        (
            [decode(9, drafts=3, confirmed=n) for n in range(4)],
            {},
            "accepted",
            "none|some|all but one|all",
        ),
        ([decode(9, drafts=1, confirmed=n) for n in range(2)], {}, "accepted", "none all"),
        ([DECODE, LAST], {"num_drafts": 3}, "drafts", "2-3 2-3"),
        ([decode(9, recycled={"full": True}), DECODE], {}, "block", "recycled|first owner"),
        ([DECODE] * 3, {}, "graph", "none none none"),
        ([DECODE] * 3, {"sizes": [2]}, "graph", "eager eager eager"),
        ([DECODE] * 2, {"sizes": [2], "replayed": 2}, "graph", "exact exact"),
        ([DECODE] * 3, {"sizes": [4], "replayed": 4}, "graph", "padded 1|padded 1|padded 1"),
        ([DECODE] * 2, {"sizes": [4], "replayed": 4}, "graph", "padded more|padded more"),
        ([DECODE] * 2, {"sizes": [2, 4], "replayed": 4}, "size", "larger larger"),
        ([DECODE] * 2, {"sizes": [2, 4], "replayed": 2, "plan": "lazy"}, "plan", "lazy lazy"),
        ([DECODE] * 2, {"sizes": [2], "replayed": 2, "padding": "trash"}, "padding", "None None"),
        ([DECODE] * 2, {"sizes": [3], "replayed": 3, "padding": "trash"}, "padding", "trash trash"),
        ([DECODE, WHOLE], {"persistent_output": True}, "output", "persistent None"),
        (
            [DECODE],
            {"experts": 2, "after_dummy": True, "activations": "mxfp8"},
            "experts",
            "more ranks",
        ),
    ],
)
def test_classes_are_read_from_the_step(
    requests: list[ObservedRequest], step: dict[str, Any], name: str, wanted: str
) -> None:
    found = [str(point.get(name)) for point in points(*requests, **step)]
    assert found == (wanted.split("|") if "|" in wanted or len(found) == 1 else wanted.split())


def test_each_kind_of_layer_has_a_point_with_what_it_reads() -> None:
    kinds = {"full": "fp32", "window": "bf16", "sparse": "fp32", "state": None}
    request, limits = (
        decode(99, evicted=1, recycled={"window": True}),
        {"window": 30, "sparse": 100},
    )
    found = {str(point["layer"]): point for point in points(request, layers=kinds, limits=limits)}
    assert {name: point["kv"] for name, point in found.items()} == kinds
    assert [found[name].get("seen") for name in kinds] == [None, "evicted", "at", None]
    assert [found[name].get("output") for name in kinds] == ["new", "new", None, None]
    assert [found[name]["block"] for name in kinds] == [
        "first owner",
        "recycled",
        "first owner",
        "first owner",
    ]


def test_reasons_are_given_for_what_no_step_has(approved: Approved) -> None:
    approved(SPACE.why_not([("layer", "window"), ("hit", "1")]))
    assert SPACE.why_not([("layer", "state"), ("accepted", "all")])
    assert (
        SPACE.why_not([("mix", "both"), ("phase", "decode"), ("place", "last")])
        == "prompts come last"
    )
    latest = "the latest request loses its blocks, and a prompt is the latest"
    assert SPACE.why_not([("change", "preempted"), ("phase", "tail")]) == latest
    assert SPACE.why_not([("change", "preempted"), ("life", "again")])
    assert SPACE.why_not([("graph", "padded 1"), ("phase", "decode"), ("layer", "sparse")]) == ""
