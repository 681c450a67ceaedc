"""The contract of `align_experts`."""

from __future__ import annotations

from harness.core.contract import Arg, Keyword, Op, Out


class AlignExperts(Op):
    """The T * k choices sorted by expert, and the expert of each block.

    Each expert's run is filled up to a multiple of `block_size` with T * k. `num_padded` entries
    are live, in a run any order is right, and nothing behind them is read. Q is the smaller of T *
    k * block_size and T * k + num_experts * (block_size - 1).
    """

    name = "align_experts"

    topk_ids = Arg("T k", "int32")

    num_experts = Keyword("int")
    block_size = Keyword("int")

    sorted_ids = Out("Q", "int32", site="router.ids")
    expert_ids = Out("A", "int32", site="router.ids", note="A is Q / block_size, rounded up")
    num_padded = Out("1", "int32", site="output")


CONTRACT = AlignExperts()
