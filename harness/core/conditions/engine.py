"""The conditions of a step of the reference engine. The unit is a request in a step, as one kind of layer sees it.

A probe fills `Step` with what the engine did, and `read` says which classes that is. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.core.conditions.model import Dimension, Never, Point, Space
from harness.core.conditions.parts import numbers_of, place_of
from harness.core.ops import PAGE_SIZE

LAYERS = {"mla": "full", "window": "window", "sparse": "sparse", "kda": "state"}
"""Kind of layer -> its class."""
STATE = "state"
RANGES = {
    "batch": numbers_of("1 2 5 9"),
    "pages": numbers_of("1 2 3 5"),
    "growth": numbers_of("0 1 2"),
    "hit": numbers_of("0 1 2"),
    "drafts": numbers_of("0 1 2 4"),
    "experts": {"none": range(1), "one rank": range(1, 2), "more ranks": range(2, 100)},
    "ranks": numbers_of("1 2"),
}
"""Dimension -> class -> the numbers that it holds."""


def class_of(dimension: str, number: int) -> str:
    """The class of a number in one of RANGES."""
    return next(label for label, numbers in RANGES[dimension].items() if number in numbers)


@dataclass(slots=True)
class Request:
    """A request in a step: `computed` cached tokens, of them `hit` of another request, and `new` query tokens.

    It has `known` tokens without `drafts`, and `generated` some of them. `grown` are its new pages. `row` is its row in
    the step before. The step confirms some drafts and gives tokens.
    """

    computed: int
    new: int
    known: int
    generated: int
    hit: int = 0
    drafts: int = 0
    grown: int = 0
    evicted: int = 0
    preempted_at: int = 0
    is_decode: bool = False
    row: int | None = None
    recycled: Mapping[str, bool] = field(default_factory=dict)
    """Layer -> whether the block of its last token had another owner before."""
    confirmed: int = 0
    given: int = 0
    ends: bool = False

    @property
    def phase(self) -> str:
        """What it does. A `tail` is the last token of a prompt, run as a decode."""
        if self.is_decode:
            return "tail" if not self.generated or self.preempted_at == self.known else "decode"
        is_last = self.computed + self.new == self.known
        if self.computed == self.hit:
            return "whole" if is_last else "first"
        return "last" if is_last else "inner"

    @property
    def accepted(self) -> str | None:
        """How many of its drafts were right."""
        if not self.drafts or not self.is_decode:
            return None
        named = {self.drafts - 1: "all but one", 0: "none", self.drafts: "all"}
        return named.get(self.confirmed, "some")

    @property
    def after(self) -> str:
        """Whether it goes on after the step. `cut`: confirmed drafts are more than it may give."""
        return "goes on" if not self.ends else "cut" if self.confirmed >= self.given else "ends"


@dataclass(slots=True)
class Step:
    """A step as it ran: its requests in the order of the batch, the engine that runs it, and what came before it."""

    requests: Sequence[Request]
    layers: Mapping[str, str | None]
    """Layer -> the type of its cache; None for a state."""
    change: str = "none"
    num_drafts: int = 0
    experts: int = 0
    activations: str = "none"
    ranks: int = 1
    context_chunk: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    """Layer -> the tokens that a query sees at most."""
    after_dummy: bool = False
    sizes: Sequence[int] = ()
    """The sizes of the graphs; none without graphs."""
    replayed: int | None = None
    plan: str = "persistent"
    padding: str = "skip"
    persistent_output: bool = False

    @property
    def graph(self) -> str:
        if self.replayed is None:
            return "eager" if self.sizes else "none"
        more = self.replayed - len(self.requests)
        return "exact" if not more else "padded 1" if more == 1 else "padded more"

    def rounds(self) -> Iterator[str | None]:
        """For each prompt, how its context is read; None for a decode."""
        contexts = [0 if request.is_decode else request.computed for request in self.requests]
        share = max(self.context_chunk // max(sum(n > 0 for n in contexts), 1), 1)
        most = -(-max(contexts) // share)
        for request, length in zip(self.requests, contexts, strict=True):
            own = -(-length // share)
            with_context = "fewer rounds" if own < most else "one round" if own == 1 else "rounds"
            without = None if request.is_decode else "beside" if most else "none"
            yield with_context if own else without


def read(step: Step) -> list[Point]:
    """A point for each request and each kind of layer."""
    count, requests = len(step.requests), step.requests
    num_decodes = sum(request.is_decode for request in requests)
    call: dict[str, str | None] = {
        "mix": "decodes" if num_decodes == count else "both" if num_decodes else "prompts",
        "batch": class_of("batch", count),
        "change": step.change,
        "graph": step.graph,
        "experts": class_of("experts", step.experts),
        "activations": step.activations,
        "dummy": "before" if step.after_dummy else "none",
        "drafts": class_of("drafts", step.num_drafts),
    }
    if step.replayed is not None:
        call["size"] = "smallest" if step.replayed == min(step.sizes) else "larger"
        call["plan"] = step.plan
        call["padding"] = step.padding if step.replayed > count else None
    points: list[Point] = []
    for number, (request, rounds) in enumerate(zip(requests, step.rounds(), strict=True)):
        point = call | _of_request(request)
        point["place"] = place_of(number, count)
        point["moved"] = "new" if request.row is None else "kept" if request.row == number else "moved"
        following = requests[number + 1] if number + 1 < count else None
        behind = "padding" if call["graph"] in _PADDED else "none"
        point["behind"] = behind if following is None else "decode" if following.is_decode else "prompt"
        for layer, kv in step.layers.items():
            own = {"layer": layer, "kv": kv, "block": "recycled" if request.recycled.get(layer) else "first owner"}
            if layer in step.limits:
                own["seen"] = _seen(request, layer, step.limits[layer])
            if layer == "full":
                own["context"] = rounds
                own["ranks"] = None if rounds in (None, "none") else class_of("ranks", step.ranks)
            if request.is_decode and layer in ("full", "window"):
                own["output"] = "persistent" if step.persistent_output else "new"
            points.append(point | own)
    return points


def _of_request(request: Request) -> dict[str, str | None]:
    length = request.computed + request.new
    slots = {0: "whole", 1: "first", PAGE_SIZE - 1: "last"}
    starts = {0: "page", PAGE_SIZE - 1: "last"}
    again = "again" if request.preempted_at == request.known else "resumed"
    return {
        "phase": request.phase,
        "start": starts.get(request.computed % PAGE_SIZE, "inner"),
        "end": slots.get(length % PAGE_SIZE, "inner"),
        "pages": class_of("pages", -(-length // PAGE_SIZE)),
        "growth": class_of("growth", request.grown),
        "hit": class_of("hit", request.hit // PAGE_SIZE),
        "life": again if request.preempted_at else "first",
        "accepted": request.accepted,
        "after": request.after,
    }


def _seen(request: Request, layer: str, limit: int) -> str:
    """The request's tokens, compared with the number that a query sees."""
    if request.evicted and layer == "window":
        return "evicted"
    length = request.computed + request.new
    return "below" if length < limit else "at" if length == limit else "past"


_CLASSES: dict[str, tuple[tuple[str, ...], str]] = {
    "layer": (tuple(LAYERS.values()), "kind of the attention layer"),
    "kv": (("fp32", "bf16", "fp8_e4m3"), "type of its cache"),
    "mix": (("decodes", "prompts", "both"), "phases in the batch"),
    "batch": (tuple(RANGES["batch"]), "requests of the batch"),
    "place": (("only", "first", "middle", "last"), "place of the request in the batch"),
    "behind": (("none", "decode", "prompt", "padding"), "the row behind it"),
    "moved": (("new", "kept", "moved"), "its row, compared with the step before"),
    "change": (("none", "joined", "left", "preempted", "aborted", "cancelled"), "requests since the step before"),
    "phase": (("whole", "first", "inner", "last", "tail", "decode"), "a prompt, a chunk of it, or a decode"),
    "start": (("page", "last", "inner"), "slot of its first new token"),
    "end": (("whole", "first", "last", "inner"), "where its tokens end in their last page"),
    "pages": (tuple(RANGES["pages"]), "its pages"),
    "growth": (tuple(RANGES["growth"]), "its new pages in this step"),
    "hit": (tuple(RANGES["hit"]), "its pages from the prefix cache"),
    "context": (("none", "beside", "one round", "rounds", "fewer rounds"), "how the context of a prompt is read"),
    "life": (("first", "again", "resumed"), "computes again after preemption, or has given a token since"),
    "after": (("goes on", "ends", "cut"), "what follows; cut: it has more confirmed drafts than it may give"),
    "drafts": (tuple(RANGES["drafts"]), "drafts of a decode"),
    "accepted": (("none", "some", "all but one", "all"), "drafts that were right"),
    "seen": (("below", "at", "past", "evicted"), "its tokens, compared with the window or the top-k"),
    "block": (("first owner", "recycled"), "the block of its last token"),
    "graph": (("none", "eager", "exact", "padded 1", "padded more"), "whether the step is a replay, and its padding"),
    "size": (("smallest", "larger"), "size of the graph"),
    "plan": (("persistent", "lazy"), "where a replay has its plan from"),
    "padding": (("skip", "trash", "key"), "padded rows store nothing, store in a block of their own, or have a key"),
    "experts": (tuple(RANGES["experts"]), "routed experts"),
    "activations": (("none", "one scale", "scale of rows"), "rounding of activations"),
    "ranks": (tuple(RANGES["ranks"]), "context-parallel ranks"),
    "output": (("new", "persistent"), "output of a decode"),
    "dummy": (("none", "before"), "a dummy step before this step"),
}
_PROMPTS, _DECODES, _REPLAYS = (
    ("whole", "first", "inner", "last"),
    ("tail", "decode"),
    ("exact", "padded 1", "padded more"),
)
_PADDED, _WITH_CONTEXT = ("padded 1", "padded more"), ("one round", "rounds", "fewer rounds")


def _all(name: str, *without: str) -> tuple[str, ...]:
    return tuple(label for label in _CLASSES[name][0] if label not in without)


def _only(name: str, labels: str | tuple[str, ...], other: str, allowed: tuple[str, ...], why: str) -> Never:
    """Classes of a dimension that go with no others of another dimension than the allowed ones."""
    return Never({name: (labels,) if isinstance(labels, str) else labels, other: _all(other, *allowed)}, why)


_OF_DECODES = {
    "phase": _DECODES, "mix": ("decodes",), "graph": _REPLAYS, "size": _all("size"), "plan": _all("plan"),
    "padding": _all("padding"), "output": _all("output"), "accepted": _all("accepted"), "after": ("cut",),
}  # fmt: skip
"""Dimension -> classes that only decodes have."""
_LATER = {name: classes for name, classes in _OF_DECODES.items() if name != "phase"} | {
    "phase": _all("phase", "whole", "first"), "moved": ("kept", "moved"), "change": ("none", "left", "preempted"),
    "context": _WITH_CONTEXT, "life": ("resumed",), "seen": ("evicted",),
}  # fmt: skip
"""Dimension -> classes that no request has in its first step, unless it has a page of another one."""
_FEW = "a decode has one token and few drafts"
_FIRST_PAGE = "the first page of a request is new in its first step"
_STORED = "prompts and single tokens find no page that earlier drafts took"

SPACE = Space(
    op="engine",
    read=read,
    optional=frozenset({"kv", "context", "accepted", "seen", "size", "plan", "padding", "ranks", "output"}),
    dimensions=tuple(Dimension(name, classes, summary) for name, (classes, summary) in _CLASSES.items()),
    rules=(
        # Layers.
        *(_only("layer", STATE, name, (), "a layer with a state has no pages") for name in ("kv", "seen", "output")),
        *(_only("layer", _all("layer", "full"), name, (), "only full layers read context in rounds")
          for name in ("context", "ranks")),
        _only("layer", "sparse", "output", (), "the decode of sparse layers keeps no output"),
        _only("layer", "full", "seen", (), "a query of a full layer sees all tokens"),
        _only("layer", "sparse", "seen", ("below", "at", "past"), "only windows give pages back"),
        _only("layer", "window", "hit", ("none",), "a window of another request cannot be shared"),
        _only("seen", "evicted", "hit", ("none",), "a window of another request cannot be shared"),
        _only("layer", STATE, "drafts", ("none",), "a state cannot be taken back when a draft is wrong"),
        # The batch.
        _only("mix", "decodes", "phase", _DECODES, "no prompt is in the batch"),
        _only("mix", "prompts", "phase", _PROMPTS, "no decode is in the batch"),
        _only("mix", "both", "place", _all("place", "only"), "two phases are two requests"),
        _only("graph", _REPLAYS, "mix", ("decodes",), "a batch with a prompt is not replayed"),
        _only("batch", "1", "place", ("only",), "a batch of one has one place"),
        _only("place", "only", "batch", ("1",), "a batch of one has one place"),
        _only("behind", ("decode", "prompt"), "place", ("first", "middle"), "no request is behind it"),
        _only("behind", ("none", "padding"), "place", ("only", "last"), "a request is behind it"),
        _only("behind", "prompt", "mix", ("prompts", "both"), "no prompt is in the batch"),
        _only("behind", "decode", "phase", _DECODES, "decodes come first"),
        _only("behind", "padding", "graph", _PADDED, "only replays have padding"),
        _only("graph", _PADDED, "behind", _all("behind", "none"), "padding is behind the last request"),
        *(Never({"mix": ("both",), **decode, **end}, "prompts come last")
          for decode in ({"phase": _DECODES}, {"output": _all("output")})
          for end in ({"place": ("last",)}, {"behind": ("none",)})),
        Never({"mix": ("both",), "phase": _PROMPTS, "place": ("first",)}, "decodes come first"),
        Never({"mix": ("both",), "context": _all("context"), "place": ("first",)}, "decodes come first"),
        # Replays.
        *(_only(name, _all(name), "graph", _REPLAYS, "only a replay has it") for name in ("size", "plan")),
        _only("padding", _all("padding"), "graph", _PADDED, "only replays have padding"),
        *(_only(name, _all(name), "mix", ("decodes",), "a batch with a prompt is not replayed")
          for name in ("size", "plan", "padding")),
        *(_only("behind", "padding", name, kept, "a batch with a prompt is not replayed")
          for name, kept in (("mix", ("decodes",)), ("phase", _DECODES))),
        _only("size", "larger", "batch", _all("batch", "1"), "every graph holds one request"),
        *(Never({"graph": ("eager",), **alone, name: classes}, "every graph holds one request")
          for alone in ({"batch": ("1",)}, {"place": ("only",)})
          for name, classes in (("mix", ("decodes",)), ("phase", _DECODES), ("output", _all("output")))),
        # Phases.
        _only("phase", ("whole", "first"), "start", ("page",), "a request starts at a page"),
        _only("phase", ("whole", "first"), "growth", ("1", "2+"), _FIRST_PAGE),
        _only("phase", ("whole", "first"), "moved", ("new",), "it was in no step"),
        _only("phase", ("whole", "first"), "change", ("joined", "aborted", "cancelled"), "it joined the batch"),
        *(_only("change", "preempted", name, kept, "the latest request loses its blocks, and a prompt is the latest")
          for name, kept in (("mix", ("decodes",)), ("phase", ("decode",)), ("context", ()), ("ranks", ()))),
        _only("context", "fewer rounds", "change", ("joined", "aborted", "cancelled"), "one prompt is in progress"),
        _only("phase", "inner", "change", _all("change", "preempted", "cancelled"), "it takes the rest of the step"),
        *(Never({"moved": ("new",), **phase, **single}, "the budget has a place for single tokens")
          for phase in ({"phase": ("inner", "last", "decode")}, {"life": ("resumed",)})
          for single in ({"drafts": ("none",)}, {"layer": (STATE,)})),
        _only("change", ("none", "left"), "moved", ("kept", "moved"), "a new row is a request that joined"),
        _only("phase", ("first", "inner"), "after", ("goes on",), "a part of a prompt gives no token"),
        _only("phase", "inner", "place", ("only", "last"), "it takes the rest of the step"),
        _only("phase", "decode", "life", ("first", "resumed"), "it has all its tokens again"),
        _only("life", "resumed", "phase", ("decode",), "it has all its tokens again"),
        Never({"phase": ("first",), "place": ("first", "middle"), "hit": ("none",)}, "it takes the rest of the step"),
        Never({"phase": ("first",), "behind": ("prompt",), "hit": ("none",)}, "it takes the rest of the step"),
        *(Never({"phase": ("inner",), "mix": ("prompts",), name: classes}, "it takes the rest of the step")
          for name, classes in (("batch", _all("batch", "1")), ("place", ("last",)))),
        *(Never({"change": ("joined",), **alone, "moved": ("kept", "moved")}, "it joined the batch itself")
          for alone in ({"batch": ("1",)}, {"place": ("only",)})),
        # Context.
        _only("context", _all("context"), "phase", _PROMPTS, "only prompts read context"),
        _only("context", ("none", "beside"), "phase", ("whole", "first"), "a later chunk has context"),
        _only("context", ("none", "beside"), "hit", ("none",), "a hit is context"),
        _only("context", ("beside", "fewer rounds"), "place", ("middle", "last"), "the longest context comes first"),
        _only("phase", "inner", "context", ("one round", "rounds"), "it takes the rest of the step"),
        Never({"context": _WITH_CONTEXT, "phase": ("whole", "first"), "hit": ("none",)}, "no context yet"),
        _only("ranks", _all("ranks"), "context", _all("context", "none"), "nothing is read"),
        _only("ranks", _all("ranks"), "phase", _PROMPTS, "only prompts read context"),
        # Drafts.
        _only("accepted", _all("accepted"), "drafts", _all("drafts", "none"), "there are no drafts"),
        _only("accepted", _all("accepted"), "layer", _all("layer", STATE), "there are no drafts"),
        _only("accepted", ("some", "all but one"), "drafts", ("2-3", "4+"), "one draft is right or wrong"),
        _only("after", "cut", "drafts", _all("drafts", "none"), "only confirmed drafts are cut"),
        _only("after", "cut", "accepted", _all("accepted", "none"), "only confirmed drafts are cut"),
        # Pages.
        _only("pages", "1", "hit", ("none",), "a hit leaves one token at least"),
        _only("pages", "2", "hit", ("none", "1"), "a hit leaves one token at least"),
        _only("pages", "1", "growth", ("none", "1"), "it has one page"),
        _only("growth", "none", "end", _all("end", "first"), "the first slot of a page needs a new page"),
        _only("seen", "evicted", "pages", _all("pages", "1"), "a page behind the window is given back"),
        _only("seen", "evicted", "phase", _all("phase", "whole", "first"), "nothing is behind the window yet"),
        Never({"pages": ("2",), "hit": ("1",), "growth": ("2+",)}, "one page is shared"),
        Never({"pages": ("1",), "start": ("last",), "end": _all("end", "whole")}, "it has one page"),
        Never({"pages": ("1",), "start": ("page",), "growth": ("none",)}, _FIRST_PAGE),
        Never({"pages": ("1",), "start": ("inner", "last"), "growth": ("1",)}, _FIRST_PAGE),
        *(Never({"pages": ("1",), **rest, name: classes}, _FIRST_PAGE) for name, classes in _LATER.items()
          for rest in ({"start": ("page",)}, {"growth": ("1",)})),
        *(_only(name, classes, "phase", _DECODES, "only decodes have it") for name, classes in _OF_DECODES.items()
          if name != "phase"),
        *(_only(name, classes, "growth", ("none", "1"), _FEW) for name, classes in _OF_DECODES.items()),
        *(Never({name: classes, **rest}, _FEW) for name, classes in _OF_DECODES.items() for rest in (
            {"start": ("page",), "end": ("whole", "last")}, {"start": ("last",), "end": ("last",)},
            {"growth": ("1",), "end": ("whole", "last")})),
        Never({"accepted": _all("accepted"), "start": ("page",), "end": ("first",)}, "it has two tokens at least"),
        Never({"accepted": _all("accepted"), "start": ("last",), "end": ("whole",)}, "it has two tokens at least"),
        *(Never({"growth": ("none",), "start": ("page",), name: classes}, _STORED) for name, classes in (
            ("drafts", ("none",)), ("phase", _PROMPTS), ("mix", ("prompts",)), ("layer", (STATE,)),
            ("context", _all("context")), ("end", ("whole", "last")))),
        Never({"growth": ("none",), "start": ("last",), "end": ("last",)}, "it crosses a page"),
    ),
)  # fmt: skip
