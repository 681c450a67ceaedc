"""Sizes of models that a CPU runs in a blink, and lengths of their prompts."""

from __future__ import annotations

SMALL = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "head_dim": 16,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 96,
    "q_lora_rank": 32,
    "moe_intermediate_size": 32,
    "intermediate_size": 64,
}
LENGTHS = (150, 96, 96, 90, 80)
