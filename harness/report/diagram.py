"""Geometry of the blame diagram: from memory through kernel or step and tensor down to the oracle.

It is as narrow as a phone, so that its text is readable without zooming.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.core.cases import Case
from harness.core.engine_params import EngineParams
from harness.core.op_params import KernelParams
from harness.core.records import Blame, Finding
from harness.report.wording import num, one_line

WIDTH = 360
GAP = 12
ROW = 34
CAPTION = 22
FLOW = 26
MAX_NODES = 6
CHAR = 7.3
"""Width of one character of the diagram's text."""


@dataclass(frozen=True, slots=True)
class Node:
    """One box. `css`: bad (to blame, or fired), calm (not involved), step."""

    x: float
    y: float
    width: float
    text: str
    whole: str
    """The text before it was cut to the box."""
    css: str


@dataclass(frozen=True, slots=True)
class Diagram:
    """Boxes in layers, and the way of the garbage."""

    nodes: tuple[Node, ...]
    edges: tuple[str, ...]
    """Curves from the bottom of one box to the top of another, as SVG paths."""
    captions: tuple[tuple[float, str], ...]
    """The height and the text of each layer's heading."""
    height: float
    description: str
    width: int = WIDTH
    row: int = ROW


def diagram(
    blame: Blame | None,
    findings: Sequence[Finding],
    *,
    case: Case | None,
    fault: str | None,
    scenario: str = "",
    judged: Iterable[str] = (),
) -> Diagram | None:
    """The way from the blamed memory to the oracles; None without a finding.

    `judged` are the oracles that judged the case. After a crash most of them do not, so they were not silent.
    """
    fired = list(dict.fromkeys(finding.oracle for finding in findings))
    if not fired:
        return None
    sites = _sites(blame, findings)
    tensors = list(dict.fromkeys(finding.tensor for finding in findings if finding.tensor))
    silent = sum(oracle not in fired for oracle in judged)
    layers = [
        ("uninitialised memory", sites),
        ("read by", [(text, "step") for text in step_words(case, fault, scenario)]),
        ("seen in", [(text, "bad") for text in _few(tensors)]),
        ("found by", [(text, "bad") for text in _few(fired)] + ([(f"{silent} silent", "calm")] if silent else [])),
    ]
    blamed = [text for text, css in sites if css == "bad"]
    seen = {(finding.tensor, finding.oracle) for finding in findings}
    description = (
        f"{', '.join(blamed) or 'No poisoned memory'}, read by {', '.join(step_words(case, fault, scenario))}, seen in "
        f"{', '.join(tensors) or 'the worker itself'}, found by {', '.join(fired)}."
    )
    return _lay_out([layer for layer in layers if layer[1]], seen, description)


def step_words(case: Case | None, fault: str | None, scenario: str = "") -> list[str]:
    """The reader of the memory in one or two short texts: the op and its kernel, or the engine's step."""
    if case and isinstance(case.params, KernelParams):
        words = [f"{case.op} · kernel {case.params.kernel}"]
    elif case and isinstance(case.params, EngineParams):
        graph = f"graph {case.params.graph}" if case.params.has_graph else "eager"
        words = [f"engine · {graph} · kernel {case.params.decode_kernel}"]
    else:
        words = [case.system if case else scenario or "the case"]
    return words + ([f"with {fault}"] if fault else [])


def _sites(blame: Blame | None, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    blamed = list(blame.sites) if blame else []
    named = list(dict.fromkeys(f.site for f in findings if f.site and f.site not in blamed))
    # With a blame, other sites that a finding names were cleared by the search.
    sites = [(text, "bad") for text in _few(blamed or named)]
    cleared = [name for name in (blame.trials if blame else {}) if name not in blamed and "," not in name]
    num_cleared = sum(name not in ("", "nothing") and not name.startswith("all but") for name in cleared)
    if sites and num_cleared:
        # Above the others, so that no edge crosses its box.
        sites.insert(0, (num(num_cleared, "site") + " cleared", "calm"))
    return sites or [("no poison is needed", "calm")]


def _few(names: Sequence[str]) -> list[str]:
    if len(names) <= MAX_NODES:
        return list(names)
    return [*names[: MAX_NODES - 1], f"and {len(names) - MAX_NODES + 1} more"]


def _lay_out(
    layers: Sequence[tuple[str, list[tuple[str, str]]]], seen: set[tuple[str, str]], description: str
) -> Diagram:
    captions, rows = [], []
    y = 0.0
    for caption, boxes in layers:
        captions.append((y + 14, caption))
        y += CAPTION
        nodes, y = _place(boxes, y)
        rows.append(nodes)
        y += FLOW
    edges = [
        _edge(start, end)
        for upper, lower in pairwise(rows)
        # The boxes of a step are one thing: edges enter its first box and leave its last.
        for start in (upper[-1:] if upper[0].css == "step" else upper)
        for end in (lower[:1] if lower[0].css == "step" else lower)
        # A calm box has no edges.
        if "calm" not in (start.css, end.css) and ("step" in (start.css, end.css) or (start.whole, end.whole) in seen)
    ]
    return Diagram(
        nodes=tuple(node for nodes in rows for node in nodes),
        edges=tuple(edges),
        captions=tuple(captions),
        height=y - FLOW + 2,
        description=description,
    )


def _place(boxes: list[tuple[str, str]], y: float) -> tuple[list[Node], float]:
    """Boxes from `y` downwards: two of a kind in a row when both are short, a step in rows of its own."""
    nodes: list[Node] = []
    half = (WIDTH - GAP) / 2
    waiting: list[tuple[str, str]] = list(boxes)
    while waiting:
        pair = waiting[:2]
        alike = len(pair) == 2 and pair[0][1] == pair[1][1] != "step"
        fits = alike and all(len(text) * CHAR + 20 <= half for text, _ in pair)
        row, waiting = (pair, waiting[2:]) if fits else (pair[:1], waiting[1:])
        width = half if fits else float(WIDTH)
        for column, (text, css) in enumerate(row):
            cut = one_line(text, int((width - 20) / CHAR))
            nodes.append(Node(column * (half + GAP), y, width, cut, text, css))
        y += ROW if row[0][1] == "step" and waiting else ROW + 8
    return nodes, y - 8


def _edge(start: Node, end: Node) -> str:
    x1, y1, x2, y2 = start.x + start.width / 2, start.y + ROW, end.x + end.width / 2, end.y
    middle = (y1 + y2) / 2
    return f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2 - 1:g}"
