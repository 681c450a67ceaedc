"""The Triton decode compiled for a GPU on a machine without one, at the sizes that it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.catalog import KERNELS
from harness.memory.triton_interpreter import interpreter_is_on

triton = pytest.importorskip("triton")
if interpreter_is_on():
    pytest.skip("interpreted functions are not compiled", allow_module_level=True)

import torch  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from harness.ops.mla_decode.kernels import triton as launches  # noqa: E402
from harness.ops.mla_decode.kernels.triton_code import decode_split  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
SHAPES = KERNELS.get("mla_decode/triton").shapes
assert SHAPES is not None
POINTERS = {
    torch.float32: ("*fp32", "*fp32"),
    torch.bfloat16: ("*bf16", "*bf16"),
    torch.float16: ("*bf16", "*i16"),
}
"""Query and cache by the type of the products; a cache of float8 is read as pairs of bytes."""


@pytest.mark.first(2)
@pytest.mark.parametrize("compute", POINTERS)
@pytest.mark.parametrize(
    ("rank", "rope_dim"), [(min(SHAPES.kv_lora_rank), 8), (max(SHAPES.kv_lora_rank), 64)]
)
def test_the_decode_compiles_for_hopper(
    rank: int,
    rope_dim: int,
    compute: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Nothing comes out of a cache that an earlier test filled.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tiling = launches.tiling_of(16, compute)
    narrow_cache = compute == torch.float16
    constants = launches.constants_of(rank, rope_dim, compute, tiling, narrow_cache=narrow_cache)
    constants["kv_scale"] = None
    query, cache = POINTERS[compute]
    types = {"q": query, "kv_cache": cache, "score_scale": "fp32", "value_scale": "fp32"}
    types |= dict.fromkeys(("block_table", "seq_lens", "work"), "*i32")
    types |= dict.fromkeys(("partial_out", "partial_lse"), "*fp32")
    names = decode_split.arg_names
    source = ASTSource(
        fn=decode_split,
        signature={n: "constexpr" if n in constants else types.get(n, "i32") for n in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
    )
    compiled = triton.compile(source, target=HOPPER, options={"num_warps": tiling.warps})
    assert compiled.asm["cubin"]
