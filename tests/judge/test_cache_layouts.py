"""Memory beside the pages of a cache is poisoned and guarded, and a write into it names the
page.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_poison.patterns import Poison
from torch_poison.scan import scan

from harness.core.cases import Case
from harness.core.catalog import KERNELS, ORACLES, SITES
from harness.core.findings import Finding
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import part_of
from harness.evidence.records import Evidence
from harness.judge.targets.kernel import KernelTarget
from harness.kernels.plugins import find_kernel
from harness.ops.mla_decode import inputs as mla_decode_inputs
from harness.ops.parts.cache_layouts import neighbors
from harness.ops.parts.call import Setting, placed, prepared
from harness.ops.write_kv import inputs as write_kv_inputs
from tests.transcripts import Approved

PAGE = 64 * 24
KERNEL = {"mla_decode": "tiled", "mla_decode_sparse": "gather", "write_kv": "torch"}
READERS, ALL = ["mla_decode", "mla_decode_sparse"], list(KERNEL)
EVERY_SITE = frozenset(SITES.names())


def case_of(op: str, **params: Any) -> Case:
    heads = {} if op == "write_kv" else {"num_heads": 2}
    given = {"kernel": KERNEL[op], "kv_lora_rank": 16, "qk_rope_head_dim": 8, **heads, **params}
    values = KERNEL_PARAMS[op].model_validate(given).model_dump(mode="json")
    return Case(id="case", scenario="s", system="kernel", op=op, params=values, seed=7)


def judged(case: Case, *patterns: str) -> list[Finding]:
    target = KernelTarget(case)
    evidence = Evidence(case, [target.run(Poison(pattern, EVERY_SITE)) for pattern in patterns])
    oracles = ("crash", "finite", "sentinel", "reference", "non_interference")
    return [finding for name in oracles for finding in ORACLES.get(name).judge(evidence).findings]


def writing_at(op: str, offset: int) -> str:
    """The name of a kernel of `op` that is right, and also changes the element at `offset` of the
    allocation.
    """
    right = KERNELS.get(f"{op}/{KERNEL[op]}")
    position = 2 if op == "write_kv" else 1

    def stray(*args: Tensor, **keywords: Any) -> Any:
        result = right.load()(*args, **keywords)
        args[position].view(torch.int32).as_strided((1,), (1,), offset).add_(1)
        return result

    KERNELS.add(KernelSpec(op, "stray", "", stray))
    return "stray"


@pytest.mark.parametrize("op", ALL)
@pytest.mark.parametrize("layout", ["block_major", "padded_pages", "large"])
@pytest.mark.parametrize("kv", ["fp32", "bf16", "fp8_e4m3"])
def test_each_kernel_is_right_in_each_layout(op: str, layout: str, kv: str) -> None:
    assert judged(case_of(op, layout=layout, kv=kv), "nan", "zeros", "random") == []


DECODES = [
    spec.short_name
    for spec in KERNELS
    if spec.op == "mla_decode" and spec.origin == "built in" and "tiled" in spec.name
]


@pytest.mark.parametrize("kernel", DECODES)
def test_each_decode_kernel_is_right_with_blocks_of_a_manager(kernel: str) -> None:
    case = case_of(
        "mla_decode", kernel=kernel, layout="manager_blocks", seq_lens=[0, 1, 64, 130, 300]
    )
    assert judged(case, "nan", "zeros", "max") == []


@pytest.mark.parametrize("op", ALL)
@pytest.mark.parametrize(
    ("layout", "offset", "place"),
    [
        ("block_major", 5, "page 0 of layer 0"),
        ("block_major", (1 * 3 + 2) * PAGE + 3, "page 1 of layer 2"),
        ("padded_pages", 2 * (PAGE + 256) + PAGE + 1, "padding after page 2"),
        ("padded_pages", 1 * (PAGE + 256) - 1, "padding after page 0"),
    ],
)
def test_one_element_written_beside_the_pages_is_found_and_its_neighbour_named(
    op: str, layout: str, offset: int, place: str
) -> None:
    (finding,) = judged(
        case_of(op, kernel=writing_at(op, offset), layout=layout, kv="fp32"), "nan", "zeros"
    )[:1]
    assert finding.oracle == "sentinel" and finding.site == "kv.neighbor"
    assert finding.message.startswith("memory beside kv_cache")
    assert f": {place}: 1 of" in finding.message


def test_one_element_written_into_the_last_page_of_the_last_layer_is_found() -> None:
    # The end of the allocation lies behind the last page of the kernel's layer.
    pages = len(mla_decode_inputs.draw(case_of("mla_decode").params, 7).kv_cache)  # type: ignore[arg-type]
    kernel = writing_at("mla_decode", pages * 3 * PAGE - 1)
    (finding,) = judged(
        case_of("mla_decode", kernel=kernel, layout="block_major", kv="fp32"), "nan"
    )
    assert f"page {pages - 1} of layer 2" in finding.message


def test_one_element_written_into_the_slot_of_another_request_names_slot_and_page(
    approved: Approved,
) -> None:
    case = case_of("write_kv", layout="block_major", kv="fp32", num_tokens=1, num_padded=0)
    own = int(write_kv_inputs.draw(case.params, 7).slot_mapping[0])  # type: ignore[arg-type]
    other = 12 if own != 64 + 12 else 13
    offset = (1 * 3 + 1) * PAGE + other * 24 + 2
    kernel = writing_at("write_kv", offset)
    changed = case.model_copy(update={"params": case.params.model_copy(update={"kernel": kernel})})
    (finding,) = judged(changed, "nan")
    assert finding.site == "kv.free"
    approved(finding.message)


@pytest.mark.parametrize("op", READERS)
@pytest.mark.parametrize("layout", ["block_major", "padded_pages"])
def test_the_copy_on_the_device_has_the_poison_beside_its_pages(op: str, layout: str) -> None:
    case = case_of(op, layout=layout)
    raw = part_of(op, "inputs:draw")(case.params, 7)
    spec = find_kernel(op, KERNEL[op])
    # "cpu:0" is moved as another device is.
    given, kept = prepared(raw, Setting(spec, Poison("nan", EVERY_SITE), 7, "cpu:0"))
    assert given.kv_cache.data_ptr() != raw.kv_cache.data_ptr()
    assert given.kv_cache.stride() == raw.kv_cache.stride()
    assert kept.kv_cache.is_contiguous()
    found = neighbors(given.kv_cache, layout)  # type: ignore[arg-type]
    assert found
    for memory in found.values():
        rows = torch.ones(memory.shape, dtype=torch.bool)
        assert scan(memory, rows).sentinels["kv.neighbor"].count == memory.numel()


@pytest.mark.parametrize("op", ALL)
def test_memory_beside_the_pages_is_friendly_where_its_site_is_not_poisoned(op: str) -> None:
    raw = part_of(op, "inputs:draw")(case_of(op, layout="block_major").params, 7)
    spec = replace(find_kernel(op, KERNEL[op]))
    given, _ = prepared(raw, Setting(spec, Poison("nan", EVERY_SITE - {"kv.neighbor"}), 7, "cpu"))
    assert not any(
        bool(memory.any()) for memory in neighbors(given.kv_cache, "block_major").values()
    )


def test_a_large_pool_is_placed_without_its_gaps_and_copied_dense() -> None:
    raw = mla_decode_inputs.draw(case_of("mla_decode", layout="large", kv="fp8_e4m3").params, 7)  # type: ignore[arg-type]
    given, kept = prepared(
        raw, Setting(find_kernel("mla_decode", "tiled"), Poison("nan", EVERY_SITE), 7, "cpu")
    )
    assert given.kv_cache.untyped_storage().nbytes() > 2**31
    assert kept.kv_cache.untyped_storage().nbytes() == raw.kv_cache.numel()
    assert placed(given.kv_cache, "cpu") is given.kv_cache
