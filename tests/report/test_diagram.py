"""The blame diagram shows the way that was found, inside its box, and invents none."""

from __future__ import annotations

import pytest

from harness.core.cases import Case
from harness.core.records import Blame, Finding
from harness.report.diagram import CHAR, ROW, WIDTH, Diagram, diagram

CASE = Case(
    id="decode[kernel=tiled]", scenario="decode", system="kernel", op="mla_decode", params={"kernel": "tiled"},
    oracles=("finite", "sentinel", "reference"),
)  # fmt: skip
TRIALS = {"nothing": "pass", "kv.tail": "fail", "kv.free": "pass", "lse": "pass", "all but kv.tail": "pass"}
BLAME = Blame(sites=("kv.tail",), how="`finite` fires", trials=TRIALS)
FOUND = (Finding(oracle="finite", tensor="out"), Finding(oracle="reference", tensor="lse"))


def ways(found: Diagram) -> set[tuple[str, str]]:
    """The edges as pairs of texts, read from the places that their ends have."""
    ends = set()
    for edge in found.edges:
        x1, y1 = map(float, edge[1:].split("C")[0].split())
        x2, y2 = map(float, edge.split()[-2:])
        (start,) = [n for n in found.nodes if n.x <= x1 <= n.x + n.width and n.y + ROW == y1]
        (end,) = [n for n in found.nodes if n.x <= x2 <= n.x + n.width and n.y == y2 + 1]
        ends.add((start.text, end.text))
    return ends


def test_the_way_leads_from_the_blamed_site_through_the_kernel_and_tensor_to_each_oracle() -> None:
    found = diagram(BLAME, FOUND, case=CASE, fault="kv.x", judged=("finite", "sentinel", "reference"))
    assert found is not None
    assert ways(found) == {
        ("kv.tail", "mla_decode · kernel tiled"),
        ("with kv.x", "out"), ("with kv.x", "lse"),
        ("out", "finite"), ("lse", "reference"),
    }  # fmt: skip
    calm = {node.text for node in found.nodes if node.css == "calm"}
    assert calm == {"2 sites cleared", "1 silent"}
    assert "kv.tail, read by mla_decode · kernel tiled, with kv.x, seen in out, lse" in found.description


def test_a_failure_that_needs_no_poison_blames_none() -> None:
    found = diagram(Blame(how="fires without poison too"), FOUND, case=CASE, fault=None)
    assert found is not None and "no poison is needed" in {node.text for node in found.nodes}
    assert not any(node.css == "bad" for node in found.nodes if node.y < 40)


def test_a_crash_without_a_tensor_leads_from_the_step_to_its_oracle() -> None:
    found = diagram(BLAME, (Finding(oracle="crash"),), case=CASE, fault=None)
    assert found is not None
    assert ways(found) == {("kv.tail", "mla_decode · kernel tiled"), ("mla_decode · kernel tiled", "crash")}
    assert not any("silent" in node.text for node in found.nodes), "the other oracles had nothing to look at"


def test_nothing_found_is_nothing_drawn() -> None:
    assert diagram(BLAME, (), case=CASE, fault=None) is None


@pytest.mark.parametrize("size", [1, 3, 40])
def test_boxes_do_not_overlap_and_their_text_fits(size: int) -> None:
    sites = tuple(f"site.{n}" for n in range(size))
    findings = [
        Finding(oracle=f"oracle{n}", tensor=f"a tensor with a rather long name, number {n}") for n in range(size)
    ]
    found = diagram(Blame(sites=sites, trials=dict.fromkeys(sites, "fail")), findings, case=CASE, fault="x" * 200)
    assert found is not None
    for node in found.nodes:
        assert node.x >= 0 and node.x + node.width <= WIDTH and node.y >= 0 and node.y + ROW <= found.height
        assert len(node.text) * CHAR <= node.width
        for other in found.nodes:
            apart = (
                node.x + node.width <= other.x or other.x + other.width <= node.x
                or node.y + ROW <= other.y or other.y + ROW <= node.y
            )  # fmt: skip
            assert node is other or apart, (node, other)
