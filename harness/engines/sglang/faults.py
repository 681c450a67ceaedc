"""The patches that inject known bugs into SGLang, by fault."""

from __future__ import annotations

from harness.engines.patches import Edit, Patch, patch_for
from harness.engines.sglang.tables import ENGINE

_TRITON = "sglang.srt.layers.attention.triton_backend:TritonAttnBackend."
_FLASHMLA = "sglang.srt.layers.attention.flashmla_backend:FlashMLABackend."
_RADIX = "sglang.srt.mem_cache.radix_cache:RadixCache."
_PLAN_COPIES = (
    "self.cuda_graph_mla_metadata[:actual_num_sm_parts].copy_(mla_metadata)\n"
    "self.cuda_graph_num_splits[: bs + 1].copy_(num_splits)"
)

_SLOTS = (
    "1, self.size + 1, dtype=torch.int64, device=self.device",
    "0, self.size, dtype=torch.int64, device=self.device",
)


def _patch(fault: str, first: str, last: str, *edits: Edit) -> Patch:
    return Patch(ENGINE, fault, first, last, edits)


# Each range ends after the newest release with code that was read. Later releases are refused.
_PATCHES = (
    _patch("sglang.stale-pad-slots", "0.5.12", "0.5.13", Edit(
        "sglang.srt.model_executor.cuda_graph_runner:DecodeInputBuffers.populate_from_forward_batch",
        "self.seq_lens.fill_(seq_len_fill_value)\nself.out_cache_loc.zero_()",
        "self.seq_lens.fill_(seq_len_fill_value)",
    )),
    _patch("sglang.stale-pad-slots", "0.5.14", "0.5.15", Edit(
        "sglang.srt.model_executor.cuda_graph_buffer_registry:build_decode_registry",
        '"out_cache_loc",\n_tokens,\ncache_loc_dtype,\naxis="tokens",\npadding_policy=PaddingPolicy.ZERO,',
        '"out_cache_loc",\n_tokens,\ncache_loc_dtype,\naxis="tokens",\npadding_policy=PaddingPolicy.KEEP_PAD,',
    )),
    _patch("sglang.rebuilt-page-table", "0.5.12", "0.5.13", Edit(
        _TRITON + "init_forward_metadata_replay_cuda_graph",
        "kv_indices = self.cuda_graph_kv_indices\nnum_kv_splits = self.cuda_graph_num_kv_splits\n"
        "if spec_info is None:",
        "kv_indices = self.cuda_graph_kv_indices.clone()\nnum_kv_splits = self.cuda_graph_num_kv_splits\n"
        "if spec_info is None:",
    )),
    _patch("sglang.rebuilt-page-table", "0.5.14", "0.5.15", Edit(
        _TRITON + "init_forward_metadata_out_graph",
        "else:\n    self._apply_cuda_graph_metadata(",
        "else:\n"
        "    bound, self.cuda_graph_kv_indices = self.cuda_graph_kv_indices, self.cuda_graph_kv_indices.clone()\n"
        "    self._apply_cuda_graph_metadata(",
    ), Edit(
        _TRITON + "init_forward_metadata_out_graph",
        "# Metadata view is reused from capture; just refill the buffer.",
        "self.cuda_graph_kv_indices = bound",
    )),
    _patch("sglang.plan-of-capture", "0.5.12", "0.5.13", Edit(
        _FLASHMLA + "init_forward_metadata_replay_cuda_graph",
        "seq_lens.to(torch.int32),\nnum_q_heads,\n1,",
        "torch.ones_like(seq_lens, dtype=torch.int32),  # the lengths of the capture\nnum_q_heads,\n1,",
    )),
    _patch("sglang.plan-of-capture", "0.5.14", "0.5.15", Edit(
        _FLASHMLA + "_apply_decode_target_verify_metadata",
        _PLAN_COPIES,
        "if seq_max == 1:  # a capture; replays keep its plan\n"
        "    self.cuda_graph_mla_metadata[:actual_num_sm_parts].copy_(mla_metadata)\n"
        "    self.cuda_graph_num_splits[: bs + 1].copy_(num_splits)",
    )),
    _patch("sglang.padding-slot-given", "0.5.12", "0.5.13", Edit(
        "sglang.srt.mem_cache.allocator:TokenToKVPoolAllocator.clear", *_SLOTS,
    )),
    _patch("sglang.padding-slot-given", "0.5.14", "0.5.15", Edit(
        "sglang.srt.mem_cache.allocator.token:TokenToKVPoolAllocator.clear", *_SLOTS,
    )),
    _patch("sglang.freed-duplicates", "0.5.12", "0.5.15", Edit(
        _RADIX + "cache_unfinished_req",
        "self.req_to_token_pool.write(\n"
        "    (req.req_pool_idx, slice(req.cache_protected_len, len(new_indices))),\n"
        "    new_indices[req.cache_protected_len :],\n"
        ")",
        "new_indices = torch.cat([new_indices[: req.cache_protected_len],\n"
        "    kv_indices[req.cache_protected_len : len(new_indices)].to(new_indices.dtype)])",
    )),
    _patch("sglang.double-freed-pages", "0.5.12", "0.5.13", Edit(
        "sglang.srt.mem_cache.allocator:PagedTokenToKVPoolAllocator.free",
        "free_page_indices = torch.unique(free_index // self.page_size)",
        "free_page_indices = free_index // self.page_size",
    )),
    _patch("sglang.double-freed-pages", "0.5.14", "0.5.15", Edit(
        "sglang.srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator.free",
        "free_page_indices = torch.unique(free_index // self.page_size)",
        "free_page_indices = free_index // self.page_size",
    )),
)  # fmt: skip

PATCHES = {patch.fault: tuple(same for same in _PATCHES if same.fault == patch.fault) for patch in _PATCHES}
"""The patches of each fault, in the order of releases."""


def inject(fault: str, version: str) -> None:
    """Inject a fault into this process. Raises InputError for an unknown one, PatchRefused if it does not fit."""
    patch_for(PATCHES, fault, version).apply(version)


def why_not(fault: str, version: str) -> str | None:
    """Why a fault cannot be injected into a release, by its number alone; None if it can be tried."""
    return patch_for(PATCHES, fault, version).why_not(version)
