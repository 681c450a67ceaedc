"""The contract of `route_experts`."""

from __future__ import annotations

from harness.core.contract import Arg, Keyword, Op, Out


class RouteExperts(Op):
    """Softmax top-k routing; the ids of a token are distinct.

    With `num_live`, only the first so many tokens are written.
    """

    name = "route_experts"

    logits = Arg("T X", "float32", must_be_finite=True)

    num_experts_per_tok = Keyword("int", "k")
    num_live = Keyword("int", "live tokens", is_optional=True)

    ids = Out("T k", "int32", site="router.ids", ids_of="X")
    weights = Out("T k", "float32", site="router.weights")


CONTRACT = RouteExperts()
