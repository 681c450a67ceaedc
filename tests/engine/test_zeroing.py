"""Which new blocks are zeroed: wherever bits of one type may be NaN in another, for every pair of
types.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from harness.core.engine_params import EngineParams
from harness.core.params import KvType
from harness.core.serving_params import LayerKind
from harness.engine.faults.memory import gate_by_kind
from harness.engine.memory import KV_DTYPES, CacheLayout
from harness.engine.schedule.block_pool import CacheGroup, groups_to_zero
from harness.engine.schedule.config import KV_SCALE, model_config

PAIRS = list(itertools.permutations(KV_DTYPES, 2))


def left_by(owner: KvType) -> torch.Tensor:
    """The bytes of a page of latents, as a layer with this cache type leaves them."""
    latents = torch.randn(64 * 48 * 16, generator=torch.Generator().manual_seed(0))
    scaled = latents / KV_SCALE if owner == "fp8_e4m3" else latents
    return scaled.clamp(-448, 448).to(KV_DTYPES[owner]).view(torch.uint8)


def groups(
    owner: KvType, reader: KvType, layers: tuple[LayerKind, ...] = ("window", "mla")
) -> tuple[CacheGroup, ...]:
    return CacheLayout(model_config(EngineParams(layers=layers)), reader, 8, owner).groups


@pytest.mark.parametrize(("owner", "reader"), PAIRS)
def test_pages_that_may_read_as_nan_are_zeroed(owner: KvType, reader: KvType) -> None:
    is_finite = bool(left_by(owner).view(KV_DTYPES[reader]).float().isfinite().all())
    assert is_finite or groups_to_zero(groups(owner, reader)) >= {"attention"}


def test_some_pairs_do_read_as_nan_so_that_the_rule_is_needed() -> None:
    odd = {
        pair
        for pair in PAIRS
        if not left_by(pair[0]).view(KV_DTYPES[pair[1]]).float().isfinite().all()
    }
    assert odd == {("fp32", "bf16"), ("fp32", "fp8_e4m3"), ("bf16", "fp8_e4m3")}


def test_a_rule_by_kind_of_layer_misses_every_pair_without_a_state() -> None:
    assert all(gate_by_kind(groups(*pair)) == frozenset() for pair in PAIRS)


@pytest.mark.parametrize("kv", list(KV_DTYPES))
def test_a_pool_of_one_type_is_never_zeroed(kv: KvType) -> None:
    assert groups_to_zero(groups(kv, kv)) == frozenset()
    assert groups_to_zero(groups(kv, kv, ("sparse", "mla"))) == frozenset()


def test_pages_of_a_model_with_states_are_zeroed_and_states_are_not() -> None:
    assert groups_to_zero(groups("fp32", "fp32", ("kda", "mla"))) == {"attention"}
