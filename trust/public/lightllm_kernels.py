"""`lightllm/models/deepseek2/triton_kernel/destindex_copy_kv.py` of ModelTC/lightllm at fc72ffa."""

import sources

from harness import kernel

copy = sources.load("lightllm.models.deepseek2.triton_kernel.destindex_copy_kv", "lightllm")


@kernel(
    op="write_kv",
    name="lightllm",
    kv=("fp32", "bf16"),
    shapes={"like": "deepseek", "layout": "contiguous"},
)
def write(kv_c, k_pe, kv_cache, slot_mapping, *, kv_scale=None):
    # Its engine gives padded tokens a slot of their own, so no slot is negative there.
    is_live = slot_mapping >= 0
    slots = kv_cache.view(-1, 1, kv_cache.shape[-1])
    rank = kv_c.shape[1]
    copy.destindex_copy_kv(
        kv_c[is_live][:, None],
        k_pe[is_live][:, None],
        slot_mapping[is_live],
        slots[..., :rank],
        slots[..., rank:],
    )
