"""What the recorder reads from the arguments of a call, and that the shipped calls show every
pair.
"""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

import pytest
import torch

from harness.core.cases import AskVerdict, Job
from harness.core.conditions.model import Shown
from harness.core.conditions.table import SPACES, key_of
from harness.judge.run_case import run_case
from harness.ops.mla_decode import inputs as mla_decode_inputs
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.parts import attention as reference
from harness.scenario.calls import drawn_call
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory

SPACE = SPACES["mla_decode"]
SMALL = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "num_heads": 2}
SCENARIOS = {
    s.op: s for s in load_scenarios(shipped_directory()) if s.op and "conditions" in s.tags
}


def points(**given: Any) -> list[dict[str, str | None]]:
    params = MlaDecodeParams.model_validate(SMALL | given)
    made = mla_decode_inputs.draw(params, 3)
    return SPACE.read(
        made.q,
        made.kv_cache,
        made.block_table,
        made.seq_lens,
        scale=made.scale,
        kv_scale=made.kv_scale,
        window=params.window,
        metadata=params.planned or None,
    )


@pytest.mark.parametrize(
    ("given", "name", "wanted"),
    [
        (
            {"seq_lens": [0, 1, 30, 32, 63, 64, 65]},
            "end",
            "empty first inner tile last whole first",
        ),
        ({"seq_lens": [0, 64, 65, 200, 2100]}, "pages", "none 1 2 3-4 33+"),
        ({"seq_lens": [9, 0, 9, 9], "query_len": 2}, "place", "first middle middle last"),
        ({"seq_lens": [9, 0, 9, 9], "query_len": 2}, "neighbour", "None other other equal"),
        ({"seq_lens": [9, 0, 9, 0], "query_len": 2}, "around", "empty after|live|empty both|live"),
        ({"seq_lens": [9, 200], "table_pad": 0}, "spare", "1-7 none"),
        ({"seq_lens": [9, 200], "high_blocks": 120}, "block", "below 128|below 128"),
        ({"seq_lens": [9, 200], "high_blocks": 130}, "block", "below 32768|below 32768"),
        ({"seq_lens": [9, 200], "page_stride": 2**31}, "offset", "past 2^31|past 2^31"),
        ({"seq_lens": [9, 200], "layout": "block_major"}, "pool", "apart apart"),
        (
            {"seq_lens": [200, 200, 200, 200], "page_order": ["rising", "falling", "repeated"]},
            "order",
            "rising falling repeated rising",
        ),
        (
            {"seq_lens": [200, 200, 65, 65], "page_order": ["random", "prefix", "same", "random"]},
            "shared",
            "some some all own",
        ),
        ({"seq_lens": [70, 1, 2], "window": 2}, "window", "inside past past"),
        ({"seq_lens": [70, 70], "contiguous_q": False, "planned": False}, "q", "slice slice"),
        (
            {"seq_lens": [70] * 5, "values": ["plain", "zero", "ties", "one_key", "large"]},
            "values",
            "plain|zero|ties|one key|large",
        ),
        (
            {
                "seq_lens": [70] * 5,
                "kv": "fp8_e4m3",
                "values": ["plain", "zero", "ties", "one_key", "large"],
            },
            "values",
            "plain|zero|ties|one key|large",
        ),
        ({"seq_lens": [70], "kv": "fp8_e4m3", "num_heads": 128, "query_len": 4}, "heads", "128+"),
    ],
)
def test_classes_are_read_from_the_arguments(given: dict[str, Any], name: str, wanted: str) -> None:
    found = [str(point.get(name)) for point in points(**given)]
    assert found == (wanted.split("|") if "|" in wanted else wanted.split())


def test_a_kernel_that_gets_another_table_is_seen_in_the_points() -> None:
    made = mla_decode_inputs.draw(
        MlaDecodeParams.model_validate(SMALL | {"seq_lens": [200], "page_order": ["rising"]}), 3
    )
    rest: dict[str, Any] = {"seq_lens": made.seq_lens, "scale": made.scale}
    (before,) = SPACE.read(made.q, made.kv_cache, made.block_table, **rest)
    (after,) = SPACE.read(made.q, made.kv_cache, made.block_table[:, [3, 2, 1, 0]], **rest)
    assert (before["order"], after["order"]) == ("rising", "falling")


def test_random_calls_show_only_allowed_combinations() -> None:
    random, allowed, labels = Random(5), SPACE.allowed, SPACE.number
    for _ in range(25):
        params = MlaDecodeParams.model_validate(
            drawn_call("mla_decode", random, iter(lambda: {}, None), largest=8)
        )
        if params.high_blocks > 1000:
            continue
        made = mla_decode_inputs.draw(params, 1)
        for word in SPACE.shown(
            {
                "q": made.q,
                "kv_cache": made.kv_cache,
                "block_table": made.block_table,
                "seq_lens": made.seq_lens,
            }
            | {"scale": made.scale, "kv_scale": made.kv_scale, "window": params.window}
        ):
            point = SPACE.decoded(word)
            for one, other in combinations(point.items(), 2):
                assert (labels[one], labels[other]) in allowed, (
                    SPACE.why_not((one, other)),
                    params,
                )


def test_planted_values_have_the_scores_that_they_promise_and_a_page_has_one_owner() -> None:
    given = {
        "seq_lens": [150, 150],
        "values": ["large", "one_key"],
        "page_order": ["random", "prefix"],
        "kv": "fp32",
    }
    made = mla_decode_inputs.draw(MlaDecodeParams.model_validate(SMALL | given), 3)
    keys = [reference.gather_latents(made.kv_cache, row, 150).double() for row in made.block_table]
    scores = [made.q[b, 0, 0].double() @ keys[b].T * made.scale for b in range(2)]
    assert float(scores[0].max()) == pytest.approx(1.5e4) and int((scores[0] != 0).sum()) == 1
    assert float(scores[1].softmax(0).max()) > 0.999
    assert torch.equal(keys[0][:64], keys[1][:64]) and bool(keys[0][:64].any())


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(op, marks=() if op in ("engine", "merge_attn_states") else pytest.mark.nightly)
        for op in SCENARIOS
    ],
)
def test_the_shipped_calls_show_every_pair_and_nine_triples_of_ten(op: str) -> None:
    shown = Shown(SPACES[op])
    for case in expand(SCENARIOS[op]):
        job = Job(key=case.id, case=case, ask=AskVerdict())
        result = run_case(job)
        assert result.verdict.value == "pass", result.reason
        shown.add(result.shown[key_of(SPACES[op])])
    assert list(shown.unmet(2)) == []
    met, every = shown.counts(3)
    assert met >= 0.9 * every
