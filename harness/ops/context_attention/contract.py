"""The contract of `context_attention`."""

from __future__ import annotations

from harness.core.contract import ACTIVATION, Arg, Keyword, Op, Out


class ContextAttention(Op):
    """Attention of new tokens over one chunk of cached context; writes only tokens that have
    context in it.
    """

    name = "context_attention"
    sizes = ("num_heads", "qk_head_dim", "v_head_dim", "dtype")
    tokens = "prefill"
    written_tokens = "live:tokens_with_context"

    q = Arg("T H E'", ACTIVATION, must_be_finite=True)
    k = Arg("C H E'", ACTIVATION, must_be_finite=True)
    v = Arg("C H V", ACTIVATION, must_be_finite=True)
    query_start_loc = Arg("B+1", "int32")
    chunk_start_loc = Arg("B+1", "int32")

    scale = Keyword("float", "the softmax scale")

    out = Out("T H V", ACTIVATION, site="context.output")
    lse = Out("H T", "float32", site="context.lse", note="natural logarithm")


CONTRACT = ContextAttention()
