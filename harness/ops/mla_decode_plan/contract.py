"""The contract of `mla_decode_plan`."""

from __future__ import annotations

from harness.core.contract import Arg, Keyword, Op, Out


class MlaDecodePlan(Op):
    """The split-KV schedule of a `mla_decode`; graph-safe only if its address is stable or it is
    captured.

    A plan for other lengths than those of the decode is undefined. It is judged through the decode
    of the same name.
    """

    name = "mla_decode_plan"
    scratch = ()

    seq_lens = Arg("B", "int32")

    num_heads = Keyword("int")
    kv_itemsize = Keyword("int", "bytes of an element of the cache", is_optional=True)

    metadata = Out("", "any object", site="sched_meta", note="reaches `mla_decode` as it is")


CONTRACT = MlaDecodePlan()
