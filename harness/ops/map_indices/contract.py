"""The contract of `map_indices`."""

from __future__ import annotations

from harness.core.contract import Arg, Keyword, Op, Out


class MapIndices(Op):
    """The slot of the pool of each position of a token's request, as `mla_decode_sparse` reads
    them.

    -1 stays -1, wherever it stands. No other row than the T of `positions` is written. `out` are
    the first rows of a longer buffer.
    """

    name = "map_indices"
    sizes = ("topk",)
    scratch = ()

    positions = Arg("T K", "int32")
    block_table = Arg(
        "B M",
        "int32",
        unowned={"block_table.pad": "entries past the last page that a request needs"},
    )
    requests = Arg("T", "int32", "or more: the row of the table for each token of the batch")

    page_size = Keyword("int", "P")
    out = Keyword("int32 tensor [T, K]", "where to write", is_optional=True)

    slots = Out("T K", "int32", site="sparse.topk", note="page * P + place")


CONTRACT = MapIndices()
