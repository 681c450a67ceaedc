"""The contract of `merge_attn_states`."""

from __future__ import annotations

from harness.core.contract import ACTIVATION, Arg, Keyword, Op, Out


class MergeAttnStates(Op):
    """Merges two partial attentions by their log-sum-exp.

    Tokens at or past `num_tokens_with_context` are copied from the suffix. An lse of -inf or +inf
    marks an empty side, whose output is not read.
    """

    name = "merge_attn_states"
    sizes = ("num_heads", "v_head_dim", "dtype")
    scratch = ()
    tokens = "prefill"

    prefix_out = Arg(
        "T H V",
        ACTIVATION,
        unowned={"context.output": "rows of tokens that have no context"},
        is_unwatched=True,
    )
    prefix_lse = Arg(
        "H T",
        "float32",
        "natural logarithm",
        unowned={"context.lse": "entries of the same tokens"},
        is_unwatched=True,
    )
    suffix_out = Arg("T H V", ACTIVATION, must_be_finite=True)
    suffix_lse = Arg("H T", "float32", "natural logarithm", must_be_finite=True)

    num_tokens_with_context = Keyword("int | None", "None: all tokens")

    out = Out("T H V", ACTIVATION, site="output")
    lse = Out("H T", "float32", site="lse", note="natural logarithm")


CONTRACT = MergeAttnStates()
