"""What the recorder needs to know of an op stands in the op's contract."""

from __future__ import annotations

import torch

from harness.core.contract import Arg, Keyword, Op, Out
from harness.core.ops import OPS, part_of
from harness.judge.probes.recorder import size_of, with_token_axis


class Route(Op):
    name = "route"
    x = Arg("B S D", "float32")
    logits = Arg("T X", "float32", is_unwatched=True)
    plan = Keyword("object", planned_by="make_plan")
    ids = Out("T k", "int32", site="output", ids_of="X")


def test_requests_and_their_query_tokens_make_one_axis_of_tokens() -> None:
    q = torch.arange(24).view(2, 3, 4)
    letters, rows = with_token_axis("B S D", q)
    assert letters == ["T", "D"] and torch.equal(rows, q.view(6, 4))
    letters, rows = with_token_axis("B H S", q)
    assert letters == ["T", "H"] and rows.tolist() == [
        [q[b, h, s] for h in range(3)] for b in range(2) for s in range(4)
    ]
    letters, rows = with_token_axis("H T", q[0])
    assert letters == ["H", "T"] and rows is not None and torch.equal(rows, q[0])


def test_ids_are_below_the_size_that_an_argument_has() -> None:
    args = (torch.zeros(2, 3, 4), torch.zeros(6, 8))
    assert size_of("X", Route(), args) == 8


def test_a_contract_says_what_is_not_watched_and_what_is_a_plan() -> None:
    assert Route().unwatched == ("logits",)
    assert Route().planned_keyword == ("plan", "make_plan")
    assert OPS.get("write_kv").unwatched == () and OPS.get("write_kv").planned_keyword is None


def test_every_part_that_a_contract_names_is_there() -> None:
    for op in OPS:
        rows = [op.watched_rows.code] if op.watched_rows is not None else []
        for part in filter(None, [op.written_tokens, *rows]):
            assert callable(part_of(op.name, part)), (op.name, part)
        for output in op.outputs:
            shapes = [argument.shape.split() for argument in op.arguments.values()]
            assert not output.ids_of or any(output.ids_of in shape for shape in shapes), op.name
        assert op.planned_keyword is None or op.planned_keyword[1] in OPS, op.name
