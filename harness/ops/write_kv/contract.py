"""The contract of `write_kv`."""

from __future__ import annotations

from harness.core.contract import ACTIVATION, KV, Arg, Keyword, Op


class WriteKv(Op):
    """Stores new latents in the paged cache; negative slots are skipped."""

    name = "write_kv"
    sizes = ("kv_lora_rank", "qk_rope_head_dim", "page_size", "layout", "dtype")
    scratch = ()

    kv_c = Arg(
        "T R",
        ACTIVATION,
        unowned={"graph.pad_rows": "rows with a negative slot"},
        must_be_finite=True,
    )
    k_pe = Arg(
        "T E",
        ACTIVATION,
        unowned={"graph.pad_rows": "rows with a negative slot"},
        must_be_finite=True,
    )
    kv_cache = Arg(
        "N P D",
        KV,
        unowned={
            "kv.free": "pages that belong to no request",
            "kv.null": "page 0, which belongs to no request",
        },
        is_written=True,
    )
    slot_mapping = Arg("T", "int64", "page * P + place")

    kv_scale = Keyword("float | None", "the scale of an fp8_e4m3 cache; it scales no other")


CONTRACT = WriteKv()
