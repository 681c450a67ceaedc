"""The contract of `mla_decode`."""

from __future__ import annotations

from harness.core.contract import ACTIVATION, KV, Arg, Keyword, Op, Out, WatchedRows


class MlaDecode(Op):
    """Absorbed MLA decode over a paged latent cache; causal over the last S positions.

    Slots past `seq_lens[b]`, unused pages and padded table entries influence no live row. R is the
    largest power of two below D, also given as `kv_lora_rank`. With `window`, a query sees the last
    keys only. Source: DeepSeek-V2, arXiv 2405.04434.
    """

    name = "mla_decode"
    sizes = (
        "kv_lora_rank",
        "qk_rope_head_dim",
        "num_heads",
        "query_len",
        "page_size",
        "layout",
        "dtype",
    )
    tokens = "decode"
    # The slots that a query sees are scanned one by one, as pages have slots of no one.
    watched_rows = WatchedRows(
        "watched:cache_rows",
        {"kv_cache in use": "input", "kv_cache past the lengths": "beside"},
    )

    q = Arg("B S H D", ACTIVATION, must_be_finite=True)
    kv_cache = Arg(
        "N P D",
        KV,
        unowned={
            "kv.tail": "slots of a request's last page at or past its length",
            "kv.free": "pages that belong to no request",
            "kv.null": "page 0, which unused table entries name",
        },
    )
    block_table = Arg(
        "B M",
        "int32",
        unowned={"block_table.pad": "entries past the last page that a request needs"},
    )
    seq_lens = Arg("B", "int32", "0 for a padded request")

    scale = Keyword("float", "the softmax scale")
    kv_scale = Keyword("float | None", "the scale of an fp8_e4m3 cache; it scales no other")
    metadata = Keyword(
        "object | None",
        "the plan of the kernel's own `mla_decode_plan`, as that returned it",
        planned_by="mla_decode_plan",
    )
    window = Keyword("int | None", "keys that a query sees at most", is_optional=True)
    workspace = Keyword(
        "int32 tensor [n]", "words that are zero on entry and on return", is_optional=True
    )
    kv_lora_rank = Keyword("int", "R", is_optional=True)

    out = Out("B S H R", ACTIVATION, site="output")
    lse = Out("B H S", "float32", site="lse", note="natural logarithm")


CONTRACT = MlaDecode()
