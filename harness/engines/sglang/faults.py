"""The patches that inject known bugs into SGLang, by fault."""

from __future__ import annotations

import textwrap

from harness.engines.patches import Edit, Patch, patch_for
from harness.engines.sglang.tables import ENGINE

_TRITON = "sglang.srt.layers.attention.triton_backend:TritonAttnBackend."
_FLASHMLA = "sglang.srt.layers.attention.flashmla_backend:FlashMLABackend."
_RADIX = "sglang.srt.mem_cache.radix_cache:RadixCache."
_PAGED = "sglang.srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator."
_EACH_PAGE_ONCE = (
    "free_page_indices = torch.unique(free_index // self.page_size)",
    "free_page_indices = free_index // self.page_size",
)
_PLAN_COPIES = (
    "self.cuda_graph_mla_metadata[:actual_num_sm_parts].copy_(mla_metadata)\n"
    "self.cuda_graph_num_splits[: bs + 1].copy_(num_splits)"
)

_SLOTS = (
    "1, self.size + 1, dtype=torch.int64, device=self.device",
    "0, self.size, dtype=torch.int64, device=self.device",
)

_EACH_ID_ONCE = (
    "self._release_page_ids(torch.unique(free_index // self.page_size))",
    "self._release_page_ids(free_index // self.page_size)",
)
_REFILL = "# Metadata view is reused from capture; just refill the buffer"
_REFILL_WINDOW = (
    "# Metadata view is reused from capture; the write loc is the\n"
    "# runner's slot, so only the swa twin needs refilling."
)


def _patch(fault: str, first: str, last: str, *edits: Edit) -> Patch:
    return Patch(ENGINE, fault, first, last, edits)


def _rebuilt(first: str, last: str, function: str, after: str) -> Patch:
    """A replay whose table is a new tensor, until the line `after`."""
    return _patch(
        "sglang.rebuilt-page-table",
        first,
        last,
        Edit(
            _TRITON + function,
            "else:\n    self._apply_cuda_graph_metadata(",
            "else:\n"
            "    bound, self.cuda_graph_kv_indices = self.cuda_graph_kv_indices, self.cuda_graph_kv_indices.clone()\n"
            "    self._apply_cuda_graph_metadata(",
        ),
        Edit(_TRITON + function, after, "self.cuda_graph_kv_indices = bound"),
    )


def _of_capture(is_capture: str) -> str:
    """The copies of a plan, made by a capture only."""
    return f"if {is_capture}:  # replays keep the plan of their capture\n{textwrap.indent(_PLAN_COPIES, '    ')}"


def _duplicates(first: str, last: str, function: str, kept: str, *more: Edit) -> Patch:
    """A request that keeps the slots that were freed, as they were in the cache already."""
    length = f"{kept}cache_protected_len"
    return _patch(
        "sglang.freed-duplicates",
        first,
        last,
        Edit(
            _RADIX + function,
            "self.req_to_token_pool.write(\n"
            f"    ({kept}req_pool_idx, slice({length}, len(new_indices))),\n"
            f"    new_indices[{length} :],\n"
            ")",
            f"new_indices = torch.cat([new_indices[: {length}],\n"
            f"    kv_indices[{length} : len(new_indices)].to(new_indices.dtype)])",
        ),
        *more,
    )


# Each range ends after the newest release with code that was read. Later releases are refused.
_PATCHES = (
    _patch("sglang.stale-pad-slots", "0.5.12", "0.5.13", Edit(
        "sglang.srt.model_executor.cuda_graph_runner:DecodeInputBuffers.populate_from_forward_batch",
        "self.seq_lens.fill_(seq_len_fill_value)\nself.out_cache_loc.zero_()",
        "self.seq_lens.fill_(seq_len_fill_value)",
    )),
    _patch("sglang.stale-pad-slots", "0.5.14", "0.5.24", Edit(
        "sglang.srt.model_executor.cuda_graph_buffer_registry:GraphSlot.reset_padding",
        "elif self.padding_policy == PaddingPolicy.ZERO:",
        'elif self.padding_policy == PaddingPolicy.ZERO and self.name != "out_cache_loc":',
    )),
    _patch("sglang.rebuilt-page-table", "0.5.12", "0.5.13", Edit(
        _TRITON + "init_forward_metadata_replay_cuda_graph",
        "kv_indices = self.cuda_graph_kv_indices\nnum_kv_splits = self.cuda_graph_num_kv_splits\n"
        "if spec_info is None:",
        "kv_indices = self.cuda_graph_kv_indices.clone()\nnum_kv_splits = self.cuda_graph_num_kv_splits\n"
        "if spec_info is None:",
    )),
    _rebuilt("0.5.14", "0.5.16", "init_forward_metadata_out_graph", f"{_REFILL}."),
    _rebuilt("0.5.16", "0.5.23", "init_forward_metadata_out_graph", f"{_REFILL}s."),
    _rebuilt("0.5.23", "0.5.24", "_init_forward_metadata_out_graph", _REFILL_WINDOW),
    _patch("sglang.plan-of-capture", "0.5.12", "0.5.13", Edit(
        _FLASHMLA + "init_forward_metadata_replay_cuda_graph",
        "seq_lens.to(torch.int32),\nnum_q_heads,\n1,",
        "torch.ones_like(seq_lens, dtype=torch.int32),  # the lengths of the capture\nnum_q_heads,\n1,",
    )),
    _patch("sglang.plan-of-capture", "0.5.14", "0.5.16", Edit(
        _FLASHMLA + "_apply_decode_target_verify_metadata", _PLAN_COPIES, _of_capture("seq_max == 1"),
    )),
    _patch("sglang.plan-of-capture", "0.5.16", "0.5.24", Edit(
        _FLASHMLA + "_apply_decode_target_verify_metadata", _PLAN_COPIES,
        _of_capture("seq_lens_cpu is not None and seq_lens_cpu.max().item() == 1"),
    )),
    _patch("sglang.padding-slot-given", "0.5.12", "0.5.13", Edit(
        "sglang.srt.mem_cache.allocator:TokenToKVPoolAllocator.clear", *_SLOTS,
    )),
    _patch("sglang.padding-slot-given", "0.5.14", "0.5.24", Edit(
        "sglang.srt.mem_cache.allocator.token:TokenToKVPoolAllocator.clear", *_SLOTS,
    )),
    _duplicates("0.5.12", "0.5.19", "cache_unfinished_req", "req."),
    _duplicates("0.5.19", "0.5.23", "cache_unfinished_req", "req.kv."),
    _duplicates("0.5.23", "0.5.24", "checkpoint", "req.kv.", Edit(
        _RADIX + "checkpoint",
        "radix_key, _, _ = self._insert_cache(",
        "radix_key, kv_indices, _ = self._insert_cache(",
    )),
    _patch("sglang.double-freed-pages", "0.5.12", "0.5.13", Edit(
        "sglang.srt.mem_cache.allocator:PagedTokenToKVPoolAllocator.free", *_EACH_PAGE_ONCE,
    )),
    _patch("sglang.double-freed-pages", "0.5.14", "0.5.17", Edit(
        _PAGED + "free", *_EACH_PAGE_ONCE,
    )),
    # Two ways to free: any slots, and the slots of a request from a page's beginning on.
    _patch("sglang.double-freed-pages", "0.5.17", "0.5.20", Edit(_PAGED + "free", *_EACH_ID_ONCE),
           Edit(_PAGED + "free_segment", "pieces = (free_index[::ps],)", "pieces = (free_index,)")),
    _patch("sglang.double-freed-pages", "0.5.20", "0.5.24", Edit(_PAGED + "free", *_EACH_ID_ONCE),
           Edit(_PAGED + "free_segment", "reps = free_index[::ps]", "reps = free_index")),
    _patch("sglang.freed-view-of-row", "0.5.18", "0.5.24", Edit(
        "sglang.srt.mem_cache.allocator.base:BaseTokenToKVPoolAllocator._copy_for_free_group",
        "return free_index.clone()",
        "return free_index  # a view of the row, which the radix cache writes before the group ends",
    )),
)  # fmt: skip

PATCHES = {patch.fault: tuple(same for same in _PATCHES if same.fault == patch.fault) for patch in _PATCHES}
"""The patches of each fault, in the order of releases."""


def inject(fault: str, version: str) -> None:
    """Inject a fault into this process. Raises InputError for an unknown one, PatchRefused if it does not fit."""
    patch_for(PATCHES, fault, version).apply(version)


def why_not(fault: str, version: str) -> str:
    """Why a fault cannot be injected into a release, by its number alone; empty if it can be tried."""
    return patch_for(PATCHES, fault, version).why_not(version)
