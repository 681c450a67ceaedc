"""The contract of `mla_decode_sparse`."""

from __future__ import annotations

from harness.core.contract import ACTIVATION, KV, Arg, Keyword, Op, Out


class MlaDecodeSparse(Op):
    """Absorbed MLA of each query token over the slots that `indices` names in a paged latent cache.

    A negative index names no slot and influences no row. Source: DeepSeek-V3.2.
    """

    name = "mla_decode_sparse"
    sizes = ("kv_lora_rank", "qk_rope_head_dim", "num_heads", "page_size", "layout", "dtype")
    tokens = "decode"

    q = Arg("T H D", ACTIVATION, must_be_finite=True)
    kv_cache = Arg(
        "N P D",
        KV,
        unowned={
            "kv.free": "slots that no token chose",
            "kv.null": "page 0, which belongs to no request",
        },
        is_unwatched=True,
    )
    indices = Arg("T K", "int32", "a slot is page * P + place; negative: none")

    scale = Keyword("float", "the softmax scale")
    kv_scale = Keyword("float | None", "the scale of an fp8_e4m3 cache; it scales no other")
    kv_lora_rank = Keyword("int", "R", is_optional=True)

    out = Out("T H R", ACTIVATION, site="output")
    lse = Out("T H", "float32", site="lse", note="natural logarithm")


CONTRACT = MlaDecodeSparse()
