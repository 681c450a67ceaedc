"""`align_experts`: the torch kernel against the reference, and what a kernel must not leave in its
runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import KERNELS, ORACLES, SITES
from harness.evidence.records import Evidence
from harness.judge.targets.kernel import KernelTarget
from harness.ops.align_experts import inputs as align_experts_inputs
from harness.ops.align_experts import reference as align_experts_reference
from harness.ops.align_experts.kernels.dense import align_experts
from harness.ops.align_experts.params import AlignExpertsParams
from harness.ops.align_experts.sizes import aligned_sizes


@pytest.mark.parametrize("seed", range(20))
def test_the_torch_kernel_is_the_reference_up_to_its_count(seed: int) -> None:
    experts, block = 3 + 5 * seed, (4, 16, 64)[seed % 3]
    given = align_experts_inputs.draw(
        AlignExpertsParams(
            num_tokens=1 + 7 * seed, num_experts=experts, num_used=3, num_experts_per_tok=2
        ),
        seed,
    )
    ids, owners, count = align_experts(given.topk_ids, num_experts=experts, block_size=block)
    want = align_experts_reference.expected(given.topk_ids, num_experts=experts, block_size=block)
    assert (len(ids), len(owners)) == aligned_sizes(given.topk_ids.numel(), experts, block)
    assert ids[: int(count)].tolist() == want.sorted_ids.tolist()
    assert owners[: int(count) // block].tolist() == want.expert_ids.tolist()


def test_the_reference_has_each_choice_once_in_a_run_of_its_expert() -> None:
    ids = torch.tensor([[2, 0], [2, 5]], dtype=torch.int32)
    want = align_experts_reference.expected(ids, num_experts=6, block_size=4)
    assert want.sorted_ids.tolist() == [1, 4, 4, 4, 0, 2, 4, 4, 3, 4, 4, 4]
    assert want.expert_ids.tolist() == [0, 2, 5]


def unfilled(topk_ids: Any, *, num_experts: int, block_size: int) -> Any:
    """A kernel that leaves the entries of a run past its choices as memory was."""
    ids, owners, count = align_experts(topk_ids, num_experts=num_experts, block_size=block_size)
    return torch.where(ids == topk_ids.numel(), torch.empty_like(ids), ids), owners, count


def wrong_expert(topk_ids: Any, *, num_experts: int, block_size: int) -> Any:
    """A kernel that names the next expert for each block."""
    ids, owners, count = align_experts(topk_ids, num_experts=num_experts, block_size=block_size)
    return ids, (owners + 1) % num_experts, count


@pytest.mark.parametrize(
    ("kernel", "fires"),
    [
        (None, set()),
        (unfilled, {"sentinel", "reference", "non_interference"}),
        (wrong_expert, {"reference"}),
    ],
)
def test_a_kernel_that_leaves_a_run_unfilled_or_names_another_expert_is_found(
    kernel: Any, fires: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = KERNELS.get("align_experts/torch")
    if kernel is not None:
        spec = replace(spec, impl=f"{__name__}:{kernel.__name__}")
        monkeypatch.setattr("harness.judge.targets.kernel.find_kernel", lambda *_: spec)
    case = Case(
        id="x", scenario="x", system="kernel", op="align_experts", params=AlignExpertsParams()
    )
    target, sites = KernelTarget(case), frozenset(SITES.names())
    evidence = Evidence(case, [target.run(Poison(pattern, sites)) for pattern in ("nan", "zeros")])
    names = ("sentinel", "reference", "non_interference")
    assert {name for name in names if ORACLES.get(name).judge(evidence).findings} == fires
