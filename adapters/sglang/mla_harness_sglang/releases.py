"""All differences between the releases of SGLang that are supported, in one place.

A hook or a part asks here for a name or for what a release has, and has no release in its own code.
The texts of injected bugs stand in `patches.yaml`. Arguments that only some releases have are
picked by `accepted` where they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mla_harness_adapters.releases import Has, NotServed, Releases, Renamed

if TYPE_CHECKING:
    from mla_harness_sglang.params import SglangParams

_CACHE = "sglang.srt.mem_cache"

# Cases of a served SGLang.
Options = dict[str, str | bool | int | float | list[int]]
"""Arguments of `sglang.Engine`."""


def _has_kv_canary(params: SglangParams) -> bool:
    return params.kv_canary != "none"


NOT_SERVED = (NotServed(_has_kv_canary, "has no kv_canary", Releases(last="0.5.13")),)
"""Cases that some releases do not serve."""

NEEDS_WIDE_MODULE = {Releases(last="0.5.15"): False, Releases("0.5.15"): True}
"""Whether a kernel joins the embedding and the hidden state of a drafter, which takes more than 256
columns: canary-mtp has no more.
"""


def _one_kind_of_graphs(sizes: Sequence[int] | None) -> Options:
    options: Options = {"disable_piecewise_cuda_graph": True}
    if sizes is None:
        return options | {"disable_cuda_graph": True}
    return options | {"cuda_graph_bs": list(sizes)}


def _graphs_by_phase(sizes: Sequence[int] | None) -> Options:
    options: Options = {"cuda_graph_backend_prefill": "disabled"}
    if sizes is None:
        return options | {"cuda_graph_backend_decode": "disabled"}
    return options | {"cuda_graph_backend_decode": "full", "cuda_graph_bs_decode": list(sizes)}


GRAPH_OPTIONS: dict[Releases, Callable[[Sequence[int] | None], Options]] = {
    Releases(last="0.5.14"): _one_kind_of_graphs,
    Releases("0.5.14"): _graphs_by_phase,
}
"""The options for CUDA graphs of decodes alone, of these batch sizes; None is for no graphs."""

# Hooks in a scheduler.
GRAPH_RUNNER = Renamed(("decode_cuda_graph_runner", "graph_runner"), "since 0.5.13")
"""The runner of decode graphs, of SGLang's `ModelRunner`."""

# Decode graphs.
BUFFER_REGISTRY = Has("sglang.srt.model_executor.cuda_graph_buffer_registry", "since 0.5.14")
"""The module of the input buffers of decode graphs."""
METADATA_OUT_OF_GRAPH = Has("init_forward_metadata_out_graph", "since 0.5.14")
"""One method plans at a capture and at a replay, and takes the batch."""
INDEX_TRANSLATOR = Has(f"{_CACHE}.kv_index_translator", "since 0.5.19")
"""The module of the object that translates slots."""
TRANSLATOR_OF_BACKEND = Has("kv_index_translator", "since 0.5.19")
PLANNED_TRANSLATION = Has("plan", "since 0.5.23")
"""A batch carries what the translator planned for it."""

# The scheduler: how the next tokens of a prompt are chosen, and how its slots are locked and freed.
EXTEND_RANGE = Has("set_extend_range", "since 0.5.16")
EXTEND_END = Has("extend_end", "since 0.5.23")
FILL_LENGTH = Has("fill_len", "since 0.5.14")
"""A length in place of a list of tokens that is cut."""
TREE_LOCK = Has("lock", "since 0.5.23")
LOCK_RECEIPT = Has("lock_receipt", "in 0.5.20")
CHUNK_MARKS = (
    Has("is_chunked", "some releases"),
    Has("inflight_middle_chunks", "the others"),
)
"""The mark of a prompt whose end is not computed yet."""
OUTPUT_OF_BATCH = Has("output_ids", "in 0.5.12")
"""The sampled tokens are a field of the batch."""
GROUPED_PREFILLS = Has("_copy_for_free_group", "since 0.5.18")
"""What a result of prefills frees is freed in one group too."""
CHECKPOINT = Has("checkpoint_kv_cache", "since 0.5.23")
"""The function that keeps the slots of a chunk."""
KEEPS_TOKENS = Renamed(("checkpoint", "is_insert"), "since 0.5.23")
"""The argument with which a release of slots leaves them in the cache."""
ROW_IN_KV = Has("req_pool_idx", "since 0.5.19")
"""The row of a request is a field of its `kv`."""
PREFIX_LENGTH = Has("prefix_len", "later releases")
"""A number in place of the list of the prefix's slots."""

# HiCache.
HOST_LOAD = Has("needs_host_load_back", "later releases")
"""A request says whether its prefix has to come back from the host."""
HOST_MEMORY = Renamed((f"{_CACHE}.pool_host.common", f"{_CACHE}.memory_pool_host"))
"""The module with the functions that allocate memory of the host."""
SPARSE_POOL = Renamed(("DSATokenToKVPool", "NSATokenToKVPool"), "since 0.5.13")
STATES_WITH_INDEX = Has("use_dsa", "later releases")
"""A model may have recurrent states and index keys."""
ALLOCATOR_OF_WINDOWS = Has(f"{_CACHE}.allocator.swa", "since 0.5.13")
"""The module of the allocator of full slots and of slots of a window."""
STATES_ON_HOST = Has("mamba_host_hit_length", "since 0.5.14")
"""A match counts the states that the host has."""
SLOTS_OF_PATH = Has("path_device_indices", "later releases")
"""The tree is asked for the slots of a match, which do not stand in the match itself."""
PARAMETERS_OF_UNLOCK = Has("to_dec_params", "later releases")
"""A lock gives what its release takes."""
TREES = Renamed((f"{_CACHE}.registry", f"{_CACHE}.hiradix_cache"), "since 0.5.13")
"""The module that makes the radix cache."""
TREE_FACTORY = Has("default_radix_cache_factory", "since 0.5.13")

# Kernels.
_KERNELS = "sglang.kernels.ops"
DECODE_ATTENTION = Renamed(
    (
        f"{_KERNELS}.attention.decode_attention",
        "sglang.srt.layers.attention.triton_ops.decode_attention",
    ),
    "since 0.5.16",
)
MERGE_STATE = Renamed(
    (f"{_KERNELS}.attention.merge_state", "sglang.srt.layers.attention.triton_ops.merge_state"),
    "since 0.5.16",
)
FP8_KERNELS = Renamed(
    (f"{_KERNELS}.quantization.fp8_kernel", "sglang.srt.layers.quantization.fp8_kernel"),
    "since 0.5.16",
)
FLASHMLA = Renamed(
    (f"{_KERNELS}.attention.flash_mla_interface", "sgl_kernel.flash_mla"), "since 0.5.23"
)
"""FlashMLA is a package of its own, and this module calls it."""

# Context parallelism.
DECODE_RANKS = Renamed(
    ("sglang.srt.layers.dcp.layout",),
    lacks="SGLang has no context-parallel decode: search=lengths needs 0.5.16 or later",
)
INTERLEAVE = Has("interleave_size", "since 0.5.22")
"""Several tokens in a row may have the same rank."""
LOCAL_POSITIONS = Has("localize_dcp_indices", "since 0.5.22")
SPLIT_BY_CLASS = Has("sglang.srt.layers.cp.padding", "later releases")
"""Prompts are split over ranks by a strategy, and no more by a function."""
SEVERAL_PROMPTS = Has("extend_seqs_len", "later releases")
"""The function splits several prompts."""
DSA_NAME = Has("sglang.srt.layers.attention.dsa", "later releases")
"""Sparse attention is called dsa. Before, it was nsa."""
