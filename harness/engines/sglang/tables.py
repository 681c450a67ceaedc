"""What SGLang adds to the catalog: systems, models, faults, kernels. Imports neither torch nor SGLang."""

from __future__ import annotations

from harness.core.faults import FaultSpec
from harness.core.kernels import KernelSpec
from harness.core.shapes import ANY, DEEPSEEK
from harness.core.systems import EngineSpec, ModelSpec, SystemSpec

ENGINE = EngineSpec(
    "sglang",
    "SGLang",
    distribution="sglang",
    package="sglang",
    variables=("SGLANG_", "SGL_"),
)

SYSTEMS = (
    SystemSpec(
        "sglang",
        "a canary served by SGLang in processes of its own",
        params="harness.engines.sglang.params:SglangParams",
        target="harness.engines.sglang.target:SglangTarget",
        devices=("cpu",),
        serves=True,
        asks_canary=True,
        records_first_nan=True,
        serve_command="harness.engines.sglang.options:serve_command",
        plain_script="harness.engines.sglang.plain_script:script",
    ),
    SystemSpec(
        "sglang-host",
        "a part of SGLang's own Python, run on a CPU",
        params="harness.engines.sglang.params:SglangHostParams",
        target="harness.engines.sglang.host_target:SglangHostTarget",
        devices=("cpu",),
    ),
)

_OPEN = "harness.engines.sglang.backend:open_model"
MODELS = (ModelSpec("sglang", "PATH", "SGLang in processes", open=_OPEN, options=("kv", "graph")),)

FAULTS = (
    FaultSpec("sglang.stale-pad-slots", "sgl-project/sglang#24743",
              "SGLang itself: padded rows of a graph write to slots of the replay before"),
    FaultSpec("sglang.rebuilt-page-table", "sgl-project/sglang#26019",
              "SGLang itself: a replay fills a new page table; the graph reads the one of its capture"),
    FaultSpec("sglang.plan-of-capture", "sgl-project/sglang#26019",
              "SGLang itself: FlashMLA's graph keeps the plan of its capture"),
    FaultSpec("sglang.padding-slot-given", "sgl-project/sglang#24243",
              "SGLang itself: slot 0, which padded rows write, is given to a request"),
    FaultSpec("sglang.freed-duplicates", "sgl-project/mini-sglang#142",
              "SGLang itself: a request reads its copies of cached slots after they were freed"),
    FaultSpec("sglang.double-freed-pages", "sgl-project/sglang#38941",
              "SGLang itself: a page is freed once for each of its slots, and given to several requests"),
    FaultSpec("sglang.freed-view-of-row", "sgl-project/sglang#34067",
              "SGLang itself: a group of frees keeps a view of a row, and frees what the row holds at its end"),
    FaultSpec("sglang.prefix-of-padded-length", "sgl-project/sglang#23415",
              "SGLang itself: padded new tokens are subtracted from an unpadded length, and the cached prefix is lost"),
)  # fmt: skip


SLOTS = DEEPSEEK.model_copy(update={"name": "slots", "layout": ("contiguous",)})
"""SGLang's pool is [slots, 1, 576]: a slot has one stride, so pages have no gaps between them."""
ONE_TOKEN = SLOTS.model_copy(update={"name": "own", "query_len": (1,)})


def _kernel(op: str, name: str, summary: str, impl: str, requires: str = "on_any", **promises: object) -> KernelSpec:
    kernels = "harness.engines.sglang.kernels:"
    fields: dict[str, object] = {"kv": ("bf16",), "shapes": DEEPSEEK, "devices": ("cuda",), **promises}
    return KernelSpec(op, name, summary, kernels + impl, requires=kernels + requires, origin="sglang", **fields)  # type: ignore[arg-type]


KERNELS = (
    _kernel("mla_decode", "sglang-triton",
            "split-KV over ragged slots; masked loads; empty rows are 0/0; an fp8 cache rounds q and p to e4m3",
            "triton_decode", kv=("bf16", "fp8_e4m3"), fp8_products="fp8", empty_rows="nan", shapes=SLOTS),
    _kernel("mla_decode", "sglang-flashmla", "sgl_kernel's FlashMLA dense over bf16 pages", "flashmla_decode",
            "on_hopper", needs_finite_tail=True),
    _kernel("mla_decode", "sglang-cutlass", "sgl_kernel's CUTLASS MLA; returns no lse; leaves empty rows unwritten",
            "cutlass_decode", "on_blackwell", shapes=ONE_TOKEN, gives_lse=False),
    _kernel("merge_attn_states", "sglang-cuda", "sgl_kernel.merge_state_v2", "merge_state", shapes=ANY),
    _kernel("merge_attn_states", "sglang-triton", "SGLang's stand-in for other head sizes", "merge_state_triton",
            shapes=ANY),
    _kernel("align_experts", "sglang", "sgl_kernel.moe_align_block_size; fills all of its buffer with T * k",
            "align_experts", shapes=ANY),
    _kernel("select_topk", "sglang-fast-topk", "sgl_kernel.fast_topk_v2, for 2,048 of a row", "fast_topk", shapes=ANY,
            keeps_ties=False),
    _kernel("write_kv", "sglang-triton", "set_mla_kv_buffer_triton", "write_kv", shapes=SLOTS,
            capturable=False),
    _kernel("quantize_fp8", "sglang", "scaled_fp8_quant with one scale", "quantize_fp8", shapes=ANY,
            capturable=False, compile_seconds=120.0),
    _kernel("quantize_fp8", "sglang-per-token", "sglang_per_token_quant_fp8: a scale of each row", "quantize_rows",
            shapes=ANY),
    _kernel("quantize_fp8", "sglang-per-block", "sglang_per_token_group_quant_fp8: a scale of 128 elements of a row",
            "quantize_row_blocks", shapes=ANY, compile_seconds=120.0),
)  # fmt: skip
