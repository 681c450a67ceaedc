"""Bugs of padding, dummy steps, graph memory and plans: caught where they show, silent where they
cannot.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from harness.core.catalog import FAULTS
from harness.core.errors import IllegalAddress
from harness.core.seams import inject

from .applied_faults import check_caught, check_silent, findings  # type: ignore[import-not-found]

GRAPH = {
    "layers": ("mla",),
    "graph": "full",
    "capture_sizes": (4,),
    "requests": ((9, 3), (66, 5), (30, 4)),
}
EXACT = {"capture_sizes": (1, 2, 3)}
WINDOW = GRAPH | {"layers": ("window",), "window": 20}
STATES = GRAPH | {"layers": ("kda", "mla")}
SCALES = GRAPH | {"quantize": "fp8_per_tensor", "decode_kernel": "tiled-identity"}
COVERED = SCALES | {"amax_rows": "batch"}
COUNTED = GRAPH | {"decode_kernel": "tiled-counted", "requests": ((9, 6), (66, 5), (130, 4))}
ABOVE = {"capture_sizes": (1, 2)}
TWO_GRAPHS = {"capture_sizes": (2, 4)}
LONG = GRAPH | {"layers": ("mla", "mla"), "requests": ((9, 4), (250, 4), (120, 4))}
CHUNKS = LONG | {"decode_kernel": "tiled-counted"}
DUMMY = GRAPH | {"dummy_steps": True, "requests": ((9, 4), (66, 4))}


# fault, oracle, params, sites that are poisoned, site that a finding names
CAUGHT = [
    ("pad.slots-of-last-replay", "finite", WINDOW, {"graph.pad_rows"}, None),
    ("pad.slots-of-last-replay", "reference", WINDOW, set(), None),
    ("pad.state-guard-below-zero", "sentinel", STATES, {"graph.pad_rows"}, "kv.null"),
    ("pad.length-one-reads-null-block", "finite", COVERED, {"kv.null"}, None),
    ("pad.length-one-reads-null-block", "padding", COVERED, {"kv.null"}, None),
    (
        "pad.shared-trash-slot",
        "sentinel",
        GRAPH | {"pad_tokens": "trash"},
        {"graph.pad_rows"},
        "kv.null",
    ),
    ("pad.private-slot-copy", "sentinel", DUMMY, set(), "kv.free"),
    ("pad.private-slot-copy", "reference", DUMMY, set(), None),
    ("null.warmup-writes-slot-zero", "sentinel", GRAPH, set(), "kv.null"),
    ("graph.workspace-grows", "address", COUNTED | ABOVE, set(), "workspace"),
    ("graph.workspace-grows", "reference", COUNTED | ABOVE, {"graph.pool"}, None),
    ("graph.workspace-in-pool", "finite", COUNTED | TWO_GRAPHS, {"graph.pool", "output"}, None),
    ("graph.buffers-by-request-limit", "sentinel", COUNTED, set(), "workspace"),
    ("graph.rebuilt-metadata", "address", GRAPH, set(), "block_table.pad"),
    ("graph.rebuilt-metadata", "replay", GRAPH, set(), None),
    ("plan.wrong-element-size", "reference", CHUNKS | {"kv": "fp8_e4m3"}, set(), None),
    ("workspace.dirty-counters", "sentinel", COUNTED, set(), "workspace"),
    ("workspace.dirty-counters", "reference", COUNTED, set(), None),
]


@pytest.mark.first(8)
@pytest.mark.parametrize(("name", "oracle", "params", "sites", "site"), CAUGHT)
def test_a_fault_is_caught_while_it_is_applied_and_only_then(
    name: str, oracle: str, params: dict[str, Any], sites: set[str], site: str | None
) -> None:
    check_caught(name, oracle, params, sites, site)


# The contract on the other side holds, or the batch is just not above a captured size: nothing can
# show.
SILENT = [
    ("pad.slots-of-last-replay", "finite", WINDOW | EXACT, {"graph.pad_rows"}),
    ("pad.slots-of-last-replay", "finite", GRAPH, {"graph.pad_rows"}),
    ("pad.state-guard-below-zero", "sentinel", STATES | {"graph": "none"}, {"graph.pad_rows"}),
    ("pad.length-one-reads-null-block", "finite", SCALES, {"kv.null"}),
    ("pad.length-one-reads-null-block", "finite", COVERED, {"kv.tail", "kv.free"}),
    (
        "pad.length-one-reads-null-block",
        "finite",
        COVERED | {"quantize": "fp8_per_token"},
        {"kv.null"},
    ),
    ("pad.shared-trash-slot", "sentinel", GRAPH, {"graph.pad_rows"}),
    ("null.warmup-writes-slot-zero", "sentinel", {"requests": ((9, 3),)}, set()),
    ("graph.workspace-grows", "address", COUNTED, set()),
    ("graph.workspace-in-pool", "finite", COUNTED, {"graph.pool", "output"}),
    ("graph.buffers-by-request-limit", "sentinel", COUNTED | EXACT, set()),
    ("plan.wrong-element-size", "reference", CHUNKS | {"kv": "bf16"}, set()),
    ("plan.wrong-element-size", "reference", LONG | {"kv": "fp8_e4m3"}, set()),
    (
        "plan.wrong-element-size",
        "reference",
        CHUNKS | {"kv": "fp8_e4m3", "requests": ((9, 3), (50, 4))},
        set(),
    ),
    ("plan.split-count-of-capture", "reference", GRAPH | {"requests": ((9, 3), (50, 4))}, set()),
    ("plan.surplus-blocks", "reference", CHUNKS, set()),
    ("plan.surplus-blocks", "reference", LONG, {"sched_meta"}),
    ("workspace.dirty-counters", "reference", GRAPH, set()),
]


@pytest.mark.parametrize(("name", "oracle", "params", "sites"), SILENT)
def test_a_fault_stays_silent_where_it_cannot_show(
    name: str, oracle: str, params: dict[str, Any], sites: set[str]
) -> None:
    check_silent(name, oracle, params, sites)


@pytest.mark.parametrize(
    ("name", "params", "sites", "what"),
    [
        ("plan.split-count-of-capture", LONG, set(), "piece in the scratch"),
        ("plan.surplus-blocks", CHUNKS, {"sched_meta"}, "work request"),
    ],
)
@pytest.mark.parametrize("capture", ["persistent", "lazy"])
def test_a_plan_that_the_grid_does_not_fit_is_an_illegal_address(
    name: str, params: dict[str, Any], sites: set[str], what: str, capture: str
) -> None:
    with inject(FAULTS.get(name)), pytest.raises(IllegalAddress, match=what):
        findings("reference", params | {"capture": capture}, sites)


@pytest.mark.parametrize("cured", ["null.warmup-writes-slot-zero", "plan.wrong-element-size", None])
def test_of_two_faults_in_one_model_each_is_still_seen_when_the_other_is_gone(
    cured: str | None,
) -> None:
    """vllm-project/vllm#38719 had both, and mending either alone left gibberish."""
    both = {"null.warmup-writes-slot-zero": "sentinel", "plan.wrong-element-size": "reference"}
    with contextlib.ExitStack() as stack:
        for name in both:
            if name != cured:
                stack.enter_context(inject(FAULTS.get(name)))
        for name, oracle in both.items():
            assert bool(findings(oracle, CHUNKS | {"kv": "fp8_e4m3"}, set())) == (name != cured)


def test_padding_that_moves_live_rows_by_finite_amounts_is_seen_by_the_oracle_of_padding() -> None:
    assert findings("padding", COVERED, {"kv.null"}, "random") == []
    with inject(FAULTS.get("pad.length-one-reads-null-block")):
        assert findings("finite", COVERED, {"kv.null"}, "random") == []
        assert findings("padding", COVERED, {"kv.null"}, "random")


@pytest.mark.parametrize(
    "control", [{"quantize": "fp8_per_token"}, {"quantize_kernel": "torch-fmax"}, {}]
)
def test_the_oracle_of_padding_is_not_fooled_by_scales_that_padding_cannot_reach(
    control: dict[str, Any],
) -> None:
    assert findings("padding", SCALES | control, {"graph.pad_rows", "output", "kv.null"}) == []


def test_a_pool_of_any_size_keeps_padding_apart_and_only_the_guard_tells_when_it_does_not() -> None:
    """The null block is spoiled in pools of every size, and read back where a window's table still
    names it.
    """
    params = WINDOW | {"pad_tokens": "trash", "decode_kernel": "tiled-multiply"}
    for num_blocks in (12, 40):
        sized = params | {"num_blocks": num_blocks, "requests": ((9, 3), (130, 5), (70, 4))}
        assert findings("finite", sized, {"graph.pad_rows"}) == []
        with inject(FAULTS.get("pad.shared-trash-slot")):
            assert findings("sentinel", sized, {"graph.pad_rows"})
            assert findings("finite", sized, {"graph.pad_rows"})
