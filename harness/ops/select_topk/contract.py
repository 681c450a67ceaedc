"""The contract of `select_topk`."""

from __future__ import annotations

from harness.core.contract import Arg, Keyword, Op, Out


class SelectTopk(Op):
    """The positions of the K largest logits of each row, -1 where a row is shorter than K.

    In any order, and of equal logits any. Query token s of S sees seq_lens[b] - S + s + 1
    positions; logits at or past these influence nothing. `out` are the first rows of a longer
    buffer.
    """

    name = "select_topk"
    sizes = ("topk",)

    logits = Arg(
        "T L",
        "float32",
        "row b * S + s",
        unowned={"sparse.logits": "scores at or past a row's length"},
    )
    seq_lens = Arg("B", "int32")

    topk = Keyword("int", "K")
    out = Keyword("int32 tensor [T, K]", "where to write", is_optional=True)

    indices = Out("T K", "int32", site="sparse.topk")


CONTRACT = SelectTopk()
