"""What vLLM adds to the catalog: systems, models, faults, kernels. Imports neither torch nor vLLM."""

from __future__ import annotations

from typing import Any

from harness.core.faults import FaultSpec
from harness.core.kernels import KernelSpec
from harness.core.shapes import ANY, DEEPSEEK, Shapes
from harness.core.systems import EngineSpec, ModelSpec, SystemSpec

ENGINE = EngineSpec(
    "vllm",
    "vLLM",
    distribution="vllm",
    package="vllm",
    install="'.[vllm]'",
    variables=("VLLM_",),
    slow_modules=(
        "vllm._custom_ops",
        "vllm.vllm_flash_attn",
        "vllm.v1.attention.ops.flashmla",
        "vllm.v1.attention.ops.triton_decode_attention",
    ),
)

SYSTEMS = (
    SystemSpec(
        "vllm",
        "a canary served by vLLM in a process of its own",
        params="harness.engines.vllm.params:VllmParams",
        target="harness.engines.vllm.target:VllmTarget",
        devices=("cpu",),
        serves=True,
        asks_canary=True,
        records_first_nan=True,
        serve_command="harness.engines.vllm.options:serve_command",
        plain_script="harness.engines.vllm.plain_script:script",
    ),
    SystemSpec(
        "vllm-host",
        "a part of vLLM's own Python, run on a CPU",
        params="harness.engines.vllm.params:VllmHostParams",
        target="harness.engines.vllm.host_target:VllmHostTarget",
        devices=("cpu",),
    ),
)

MODELS = (
    ModelSpec(
        "vllm", "PATH", "vLLM in a process", open="harness.engines.vllm.backend:open_model", options=("kv", "graph")
    ),
)

FAULTS = (
    FaultSpec("vllm.fresh-plan-each-step", "vllm-project/vllm#35175",
              "vLLM itself: FP8 FlashMLA plans at a new address each step; the graph keeps the first"),
    FaultSpec("vllm.plan-in-warmup-only", "vllm-project/vllm#42444",
              "vLLM itself: capture reuses the warm-up's lazy plan, so planning is not in the graph"),
    FaultSpec("vllm.merge-ignore-context-count", "vllm-project/vllm#36540",
              "vLLM itself: the merge reads context rows that no kernel wrote"),
    FaultSpec("vllm.context-for-first-rows", "vllm-project/vllm#50613",
              "vLLM itself: the first prefills of a batch get the context, whichever of them have one"),
    FaultSpec("vllm.router-int64-ids", "vllm-project/vllm#38359",
              "vLLM itself: 64-bit expert ids are read as 32-bit ones by the experts"),
    FaultSpec("vllm.skip-zero-new-blocks", "vllm-project/vllm#43961",
              "vLLM itself: blocks newly given to MLA layers of a hybrid model are not zeroed"),
    FaultSpec("vllm.dummy-rows-of-last-step", "vllm-project/vllm#49757",
              "vLLM itself: a dummy step writes states through the block table of the step before"),
    FaultSpec("vllm.dummy-drafts-by-slot", "vllm-project/vllm#56734",
              "vLLM itself: a dummy step of the drafter stores tokens through block tables of ended requests"),
    FaultSpec("vllm.drafts-of-padded-rows", "vllm-project/vllm-ascend#12840",
              "vLLM itself: padded rows have as many keys as drafts are subtracted from 0: -1, -2"),
    FaultSpec("vllm.drafts-without-own-key", "vllm-project/vllm-ascend#11849",
              "vLLM itself: a verified draft does not see its own key"),
    FaultSpec("vllm.unpadded-blocks", "sgl-project/sglang#23415",
              "vLLM itself: blocks of a prompt come from its unpadded length, and its last tokens belong to no rank"),
    FaultSpec("vllm.store-before-write", "vllm-project/vllm#45704",
              "vLLM itself: SimpleCPUOffloadConnector stores blocks before the model has written them"),
    FaultSpec("vllm.load-over-readers", "vllm-project/vllm#47282",
              "vLLM itself: blocks are freed and loaded into while a step in flight uses them"),
    FaultSpec("vllm.failed-write-as-finished", "vllm-project/vllm#52234",
              "vLLM itself: the Mooncake connector reports a write that failed half-way as finished"),
)  # fmt: skip


INDEXER = Shapes(name="own", num_heads=(32, 64), page_size=(64,))
ONE_TOKEN = DEEPSEEK.model_copy(update={"name": "own", "query_len": (1,)})
SPARSE = DEEPSEEK.model_copy(update={"name": "own", "most_heads": 128})
INDEXER_TOPK = Shapes(name="own", topk=(512, 1024, 2048))
LISTS = Shapes(name="own", topk=(128, 256, 512, 1024, 2048))
CONTIGUOUS = SPARSE.model_copy(update={"layout": ("contiguous",)})


def _vllm(op: str, name: str, summary: str, impl: str, requires: str, **promises: object) -> KernelSpec:
    kernels = "harness.engines.vllm.kernels:"
    fields: dict[str, object] = {"kv": ("bf16",), "shapes": DEEPSEEK, "devices": ("cuda",), **promises}
    return KernelSpec(op, name, summary, kernels + impl, requires=kernels + requires, origin="vllm", **fields)  # type: ignore[arg-type]


def _records(op: str, name: str, summary: str, impl: str, requires: str, *formats: str, **promises: Any) -> KernelSpec:
    """A writer or reader of records, with the formats it knows."""
    impl, requires = f"harness.engines.vllm.record_kernels:{impl}", f"harness.engines.vllm.kernels:{requires}"
    promises = {"devices": ("cuda",), "origin": "vllm", "shapes": DEEPSEEK, **promises}
    return KernelSpec(op, name, summary, impl, requires=requires, kv=formats, **promises)


def _topk(name: str, summary: str, requires: str = "on_any", **promises: Any) -> KernelSpec:
    """A top-k of the indexer. None but torch's promises which of equal scores it takes."""
    impl, requires = f"harness.engines.vllm.index_kernels:{name}_topk", f"harness.engines.vllm.kernels:{requires}"
    fields: dict[str, Any] = {
        "keeps_ties": False,
        "takes": ("out",),
        "devices": ("cuda",),
        "shapes": ANY,
        "origin": "vllm",
        **promises,
    }
    return KernelSpec("select_topk", f"vllm-{name.replace('_', '-')}", summary, impl, requires=requires, **fields)


KERNELS: tuple[KernelSpec, ...] = (
    _vllm("mla_decode", "vllm-flashmla", "FlashMLA dense over bf16 pages", "flashmla_decode", "on_hopper",
          needs_finite_tail=True),
    _vllm("mla_decode_plan", "vllm-flashmla", "lazy: the first decode call plans", "flashmla_plan", "on_hopper"),
    _vllm("mla_decode", "vllm-flashmla-fp8", "FlashMLA dense over e4m3 pages, query quantized too",
          "flashmla_decode_fp8", "on_hopper", kv=("fp8_e4m3",), fp8_products="fp8", needs_finite_tail=True,
          needs_valid_table=True),
    _vllm("mla_decode_plan", "vllm-flashmla-fp8", "planned on the device in each step", "flashmla_plan_fp8",
          "on_hopper"),
    _vllm("mla_decode", "vllm-flashmla-sparse", "FlashMLA sparse over bf16 pages, asked for every token",
          "flashmla_decode_sparse", "on_hopper_or_blackwell", shapes=CONTIGUOUS),
    _vllm("mla_decode", "vllm-fa3", "FlashAttention-3 with the latent as value (q_v)", "fa3_decode", "on_hopper",
          needs_finite_tail=True),
    _vllm("context_attention", "vllm-fa3", "FlashAttention-3 varlen, as chunked prefill calls it",
          "fa3_context_attention", "on_hopper"),
    _vllm("mla_decode", "vllm-triton", "split-KV; masked loads; empty rows are 0/0", "triton_decode", "on_any",
          kv=("bf16", "fp8_e4m3"), fp8_products="bf16", empty_rows="nan"),
    _vllm("merge_attn_states", "vllm-cuda", "vllm._custom_ops.merge_attn_states", "merge_attn_states", "on_any",
          shapes=ANY),
    _vllm("merge_attn_states", "vllm-triton", "the stand-in for head sizes and types that the CUDA kernel lacks",
          "merge_attn_states_triton", "on_any", shapes=ANY),
    _vllm("write_kv", "vllm-cuda", "concat_and_cache_mla", "write_kv", "on_any", kv=("bf16", "fp8_e4m3")),
    _vllm("mla_decode", "vllm-cutlass", "CUTLASS MLA; leaves empty rows unwritten", "cutlass_mla_decode",
          "on_blackwell", shapes=ONE_TOKEN, kv=("bf16", "fp8_e4m3")),
    _vllm("mla_decode", "vllm-flashinfer", "FlashInfer's TRT-LLM-gen MLA decode", "flashinfer_mla_decode",
          "on_blackwell", kv=("bf16", "fp8_e4m3"), gives_lse=False),
    _vllm("context_attention", "vllm-trtllm-ragged", "TRT-LLM ragged prefill; writes only tokens with context",
          "trtllm_ragged_context_attention", "on_blackwell"),
    _records("write_records", "vllm-mla", "concat_and_cache_mla", "write_mla", "on_any", "bf16", "fp8_e4m3",
             "fp8_ds_mla"),
    _records("write_records", "vllm-indexer", "indexer_k_quant_and_cache", "write_indexer", "on_any",
             "indexer_planar"),
    _records("write_records", "vllm-indexer-shuffled", "ROCm's writer of the indexer's cache, in Triton",
             "write_indexer_shuffled", "on_any", "indexer_shuffled"),
    _records("write_records", "vllm-nvfp4", "reshape_and_cache_flash: keys linear, values swizzled", "write_nvfp4",
             "on_blackwell", "nvfp4_linear", "nvfp4_swizzled"),
    _records("read_records", "vllm-mla", "gather_and_maybe_dequant_cache", "read_mla", "on_any", "bf16",
             "fp8_e4m3", fp8_products="bf16"),
    _records("read_records", "vllm-ds-mla", "cp_gather_and_upconvert_fp8_kv_cache", "read_ds_mla",
             "on_any", "fp8_ds_mla", fp8_products="bf16"),
    _records("read_records", "vllm-indexer", "cp_gather_indexer_k_quant_cache", "read_indexer", "on_any",
             "indexer_planar"),
    _records("read_records", "vllm-indexer-shuffled", "ROCm's reader of the indexer's cache, in Triton",
             "read_indexer_shuffled", "on_any", "indexer_shuffled"),
    KernelSpec("index_logits", "vllm-deepgemm", "DeepGEMM's paged logits of e4m3 queries, with a plan of their own",
               "harness.engines.vllm.index_kernels:deepgemm_logits", devices=("cuda",), kv=("indexer_planar",),
               shapes=INDEXER, fp8_products="fp8", requires="harness.engines.vllm.kernels:on_hopper_or_blackwell",
               origin="vllm", compile_seconds=120.0),
    _topk("cooperative", "a cluster of blocks a row, for up to 64 rows; vLLM's choice there", "on_hopper",
          shapes=INDEXER_TOPK),
    _topk("persistent", "radix select; vLLM's choice for more rows", shapes=INDEXER_TOPK),
    _topk("per_row", "a block a row; vLLM's choice for other K"),
    _topk("flashinfer", "FlashInfer's top_k_ragged_transform", compile_seconds=300.0),
    _topk("torch", "vLLM's own reference", keeps_ties=True),
    KernelSpec("map_indices", "vllm-triton", "triton_convert_req_index_to_global_index",
               "harness.engines.vllm.index_kernels:map_indices", devices=("cuda",), shapes=LISTS, takes=("out",),
               requires="harness.engines.vllm.kernels:on_any", origin="vllm"),
    _records("mla_decode_sparse", "vllm-flashmla-sparse", "FlashMLA sparse decode over fp8_ds_mla records",
             "flashmla_sparse", "on_hopper_or_blackwell", "fp8_ds_mla", fp8_products="bf16", shapes=SPARSE),
)  # fmt: skip
