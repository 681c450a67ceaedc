from __future__ import annotations

import pytest
import torch

from harness.errors import UnknownNameError
from harness.oracles.thresholds import BOUNDS, bound

KV = ("fp32", "bf16", "fp8_e4m3")
NEEDED = [
    *(f"mla_decode.{output}.{kv}" for output in ("out", "lse") for kv in KV),
    *(f"{op}.{output}" for op in ("context_attention", "merge_attn_states") for output in ("out", "lse")),
    *(f"write_kv.{kv}" for kv in KV),
    "quantize_fp8",
    "quantize_fp8.scale",
    "route_experts.weights",
    *(f"engine.logits.{kv}{activations}" for kv in KV for activations in ("", ".fp8act")),
]


@pytest.mark.parametrize("name", NEEDED)
def test_every_output_has_a_bound(name):
    assert bound(name).name == name


@pytest.mark.parametrize("entry", BOUNDS, ids=lambda entry: entry.name)
def test_every_bound_says_why_and_stays_far_below_what_zeros_give(entry):
    assert len(entry.why) > 15
    assert 0 <= entry.relative_l2 <= 0.25
    assert 0 <= entry.floor <= 0.6
    assert entry.ulps * torch.finfo(entry.dtype).eps < 0.2


def test_an_unknown_bound_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match=r"did you mean 'mla_decode.out.bf16'"):
        bound("mla_decode.out.bf61")
