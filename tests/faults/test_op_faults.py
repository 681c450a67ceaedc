"""Faults of single kernels: each is caught where it should be, and is gone afterwards whatever happens."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from harness.catalog import FAULTS, ORACLES, SITES
from harness.poison.patterns import Poison
from harness.records import Case, Finding
from harness.scenario.params import KERNEL_PARAMS
from harness.targets.base import Evidence
from harness.targets.kernel import KernelTarget

SMALL: dict[str, Any] = {"num_heads": 2, "kv_lora_rank": 32, "qk_rope_head_dim": 16}
EMPTY = {"kernel": "tiled-identity", "seq_lens": [5, 0, 70], **SMALL}

# fault, op, params that show it, oracle, site in a finding of that oracle, sites to poison
CAUGHT = [
    ("merge.ignore-context-count", "merge_attn_states", {}, "finite", None, {"context.output"}),
    ("merge.ignore-context-count", "merge_attn_states", {}, "finite", None, {"context.lse"}),
    ("merge.empty-lse-finite", "context_attention", {}, "reference", "context.output", set()),
    ("merge.empty-lse-finite", "context_attention", {"kernel": "torch-plus-inf"}, "reference", "context.output", set()),
    ("kv.tail-masked-by-multiply", "mla_decode", {"seq_lens": [5, 70], **SMALL}, "finite", None, {"kv.tail"}),
    ("decode.zero-length-row-nan", "mla_decode", EMPTY, "finite", "graph.pad_rows", set()),
]


def findings(op: str, params: dict[str, Any], oracle: str, sites: set[str]) -> list[Finding]:
    torch.set_num_threads(1)
    values = KERNEL_PARAMS[op].model_validate(params).model_dump(mode="json")
    case = Case(id="case", scenario="s", system="kernel", params={"op": op, **values}, seed=7)
    runs = [KernelTarget(case).run(Poison(pattern, frozenset(sites))) for pattern in ("nan", "zeros")]
    return ORACLES.get(oracle).judge(Evidence(case, runs)).findings


@pytest.mark.parametrize(("name", "op", "params", "oracle", "site", "sites"), CAUGHT)
def test_a_fault_is_caught_while_it_is_applied_and_only_then(
    name: str, op: str, params: dict[str, Any], oracle: str, site: str | None, sites: set[str]
) -> None:
    assert findings(op, params, oracle, sites) == []
    with FAULTS.get(name).applied():
        found = findings(op, params, oracle, sites)
    assert found and (site is None or site in {finding.site for finding in found})
    assert findings(op, params, oracle, sites) == []


@pytest.mark.parametrize(
    ("name", "op", "params", "oracle", "sites"),
    [
        ("merge.ignore-context-count", "merge_attn_states", {"num_with_context": 12}, "finite", None),
        ("kv.tail-masked-by-multiply", "mla_decode", {"seq_lens": [64, 128], **SMALL}, "finite", None),
        (
            "kv.tail-masked-by-multiply",
            "mla_decode",
            {"seq_lens": [5, 70], **SMALL},
            "finite",
            set(SITES.names()) - {"kv.tail"},
        ),
        ("decode.zero-length-row-nan", "mla_decode", {**EMPTY, "kernel": "tiled"}, "finite", None),
        ("decode.zero-length-row-nan", "mla_decode", {**EMPTY, "seq_lens": [5, 70]}, "finite", None),
    ],
)
def test_a_fault_stays_silent_where_its_condition_is_not_met(
    name: str, op: str, params: dict[str, Any], oracle: str, sites: set[str] | None
) -> None:
    with FAULTS.get(name).applied():
        assert findings(op, params, oracle, set(SITES.names()) if sites is None else sites) == []


NAMES = sorted({row[0] for row in CAUGHT})


def target_of(name: str) -> object:
    module, _, attribute = FAULTS.get(name).target.partition(":")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", NAMES)
def test_applying_a_fault_twice_raises_and_leaves_the_first_in_place(name: str) -> None:
    original = target_of(name)
    with FAULTS.get(name).applied():
        replaced = target_of(name)
        with pytest.raises(RuntimeError, match="applied already"), FAULTS.get(name).applied():
            pass
        assert target_of(name) is replaced is not original
    assert target_of(name) is original


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_taken_out_again_after_an_exception(name: str) -> None:
    original = target_of(name)
    with pytest.raises(KeyError), FAULTS.get(name).applied():
        assert target_of(name) is not original
        raise KeyError("from within")
    assert target_of(name) is original
    with FAULTS.get(name).applied():
        assert target_of(name) is not original
