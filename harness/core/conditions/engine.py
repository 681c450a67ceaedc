"""The conditions of a step of the reference engine.

The unit is a request in a step, as one kind of layer sees it.

A probe fills `Step` with what the engine did, and `read` says which classes that is. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.core.conditions.model import Point
from harness.core.conditions.parts import place_of
from harness.core.conditions.rows import space_of
from harness.core.files import rows_beside
from harness.core.ops import PAGE_SIZE

LAYERS = {"mla": "full", "window": "window", "sparse": "sparse", "kda": "state"}
"""Kind of layer -> its class."""
STATE = "state"


@dataclass(slots=True)
class Request:
    """A request in a step.

    `computed` of its tokens are cached, `hit` of these by another request, and `new` are the query
    tokens. It has `known` tokens without `drafts`; `generated` of them are not of the prompt.
    `grown` are its new pages, `evicted` those that it gave back behind a window. `preempted_at` is
    the number of known tokens when it last lost its blocks, or 0. `row` is its row in the step
    before. The step confirms `confirmed` of the drafts and gives `given` tokens.
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
    """A step as it ran: its requests in the order of the batch, the engine that runs it, and what
    came before it.
    """

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
        # As `harness.engine.attention.context_chunks` divides a chunk.
        share = max(self.context_chunk // max(sum(n > 0 for n in contexts), 1), 1)
        most = -(-max(contexts) // share)
        for request, length in zip(self.requests, contexts, strict=True):
            own = -(-length // share)
            with_context = "fewer rounds" if own < most else "one round" if own == 1 else "rounds"
            without = None if request.is_decode else "beside" if most else "none"
            yield with_context if own else without


def read(step: Step) -> Iterator[Point]:
    """A point for each request and each kind of layer."""
    count = len(step.requests)
    requests = step.requests
    num_decodes = sum(request.is_decode for request in requests)
    call: Point = {
        "mix": "decodes" if num_decodes == count else "both" if num_decodes else "prompts",
        "batch": count,
        "change": step.change,
        "graph": step.graph,
        "experts": step.experts,
        "activations": step.activations,
        "dummy": "before" if step.after_dummy else "none",
        "drafts": step.num_drafts,
    }
    if step.replayed is not None:
        call["size"] = "smallest" if step.replayed == min(step.sizes) else "larger"
        call["plan"] = step.plan
        call["padding"] = step.padding if step.replayed > count else None
    for number, (request, rounds) in enumerate(zip(requests, step.rounds(), strict=True)):
        point = call | _of_request(request)
        point["place"] = place_of(number, count)
        point["moved"] = (
            "new" if request.row is None else "kept" if request.row == number else "moved"
        )
        following = requests[number + 1] if number + 1 < count else None
        behind = "padding" if step.graph.startswith("padded") else "none"
        point["behind"] = (
            behind if following is None else "decode" if following.is_decode else "prompt"
        )
        # A point for each kind of layer, as layers of one kind see a request alike.
        for layer, kv in step.layers.items():
            own: Point = {
                "layer": layer,
                "kv": kv,
                "block": "recycled" if request.recycled.get(layer) else "first owner",
            }
            if layer in step.limits:
                own["seen"] = _seen(request, layer, step.limits[layer])
            if layer == "full":
                own["context"] = rounds
                own["ranks"] = None if rounds in (None, "none") else step.ranks
            if request.is_decode and layer in ("full", "window"):
                own["output"] = "persistent" if step.persistent_output else "new"
            yield point | own


def _of_request(request: Request) -> Point:
    length = request.computed + request.new
    slots = {0: "whole", 1: "first", PAGE_SIZE - 1: "last"}
    starts = {0: "page", PAGE_SIZE - 1: "last"}
    again = "again" if request.preempted_at == request.known else "resumed"
    return {
        "phase": request.phase,
        "start": starts.get(request.computed % PAGE_SIZE, "inner"),
        "end": slots.get(length % PAGE_SIZE, "inner"),
        "pages": -(-length // PAGE_SIZE),
        "growth": request.grown,
        "hit": request.hit // PAGE_SIZE,
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


SPACE = space_of("engine", rows_beside(__file__)["engine"], read)
"""The entry of `engine.yaml`."""
