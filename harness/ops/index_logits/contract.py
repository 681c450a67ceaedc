"""The contract of `index_logits`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from harness.core.contract import ACTIVATION, KV, Arg, Op, Out


class IndexLogits(Op):
    """Scores of an indexer over paged keys: the sum over its X heads of weight * relu(query . key).

    The S query tokens of a request are its last ones, and see the keys up to themselves. What a row
    holds past its last key is undefined. Source: DeepSeek-V3.2.
    """

    name = "index_logits"
    sizes = ("num_heads", "query_len", "page_size", "layout")
    reads_latents = False  # The indexer has a cache of keys of its own.
    letters: ClassVar[Mapping[str, str]] = {"X": "heads of the indexer"}

    q = Arg(
        "B S X I",
        ACTIVATION,
        "the type of the cache; float8_e4m3fn beside records",
        must_be_finite=True,
    )
    weights = Arg("B S X", "float32", "all scales but the keys' folded in", must_be_finite=True)
    kv_cache = Arg(
        "N P I",
        KV,
        "float32 or bfloat16, or uint8 records `indexer_planar`",
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
    seq_lens = Arg("B", "int32")

    logits = Out(
        "T L", "float32", site="sparse.logits", note="row b * S + s", is_partly_undefined=True
    )


CONTRACT = IndexLogits()
