"""Errors that the engine's stages get under conditions: what real engines do wrong with some
requests of a step.

A step runs as it is. If it has requests of the classes, it runs twice more on copies of the memory:
unchanged, and with the error in the rows of these requests. What differs, logits and bytes of the
pool, takes the place of the right ones. So a replay can be wrong too, and its twin cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from harness.core.conditions.engine import LAYERS, SPACE, STATE, ObservedStep
from harness.core.conditions.model import Combination
from harness.engine.attention import PagedMLA
from harness.engine.batch import Batch, logit_rows
from harness.engine.engine import ReferenceEngine
from harness.engine.experts import RoutedExperts
from harness.engine.linear_attention import PagedKDA
from harness.engine.memory import PagedMemory
from harness.engine.runner import ModelRunner
from harness.engine.schedule.config import PAGE_SIZE
from harness.engine.schedule.sequence import ScheduledSequence, Sequence
from harness.engine.sparse_attention import PagedSparseMLA
from harness.engine.speculation import confirmed

PAGES, STATES = frozenset({"full", "window", "sparse"}), frozenset({STATE})
KINDS: dict[str, frozenset[str]] = {
    "a stale row": PAGES | STATES,
    "the neighbour's row": PAGES | STATES,
    "a skipped write": PAGES | STATES,
    "another's block": PAGES | STATES,
    "a position off by one": PAGES,
    "the neighbour's logits": PAGES | STATES,
    "another's experts": PAGES | STATES,
    "a wrong draft taken": PAGES,
}
"""Kind -> the layers that it can be in."""


def kinds_for(combination: Combination) -> list[str]:
    """The kinds of errors that can change something under these classes."""
    wanted = dict(combination)
    left = {kind for kind, layers in KINDS.items() if wanted.get("layer", "full") in layers}
    if wanted.get("experts", "none") == "none":
        left.discard("another's experts")
    if "accepted" not in wanted or wanted["accepted"] == "all":
        left.discard("a wrong draft taken")
    return sorted(left)


@dataclass(slots=True)
class Unit:
    """A request of the step that gets the error: its place, its rows, and the layers that are
    wrong.

    Its rows from `first` to `last` give tokens, and `unused` rows behind them none.
    """

    place: int
    first: int
    last: int
    unused: int
    sequence: Sequence
    layers: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Wrong:
    """The error of a process, and the units of the step that runs.

    `is_on` during the wrong one of its forwards.
    """

    combination: Combination
    kind: str
    units: list[Unit] = field(default_factory=list)
    num_requests: int = 0
    is_on: bool = False
    kept: dict[int, Tensor] = field(default_factory=dict)
    """Layer -> its rows in the last step that had such requests, and in this one."""
    fresh: dict[int, Tensor] = field(default_factory=dict)
    is_repeated: bool = False
    drafting: set[int] = field(default_factory=set)

    def of_layer(self, layer: str) -> list[Unit]:
        """The units that are wrong in this kind of layer."""
        return [unit for unit in self.units if layer in unit.layers]


def inject(combination: Combination, kind: str) -> None:
    """Make the engine wrong under these classes, for the rest of this process."""
    wrong = Wrong(combination, kind)
    for layer in (PagedMLA, PagedSparseMLA, PagedKDA, RoutedExperts):
        layer.__call__ = _layer(wrong, layer.__call__)  # type: ignore[attr-defined]
    eagerly, replays = ModelRunner._run_eagerly, ModelRunner._replay

    def run_eagerly(self: ModelRunner, batch: Batch, ordered: list[ScheduledSequence]) -> Tensor:
        return _step(wrong, self, batch, lambda: eagerly(self, batch, ordered))

    def replay(self: ModelRunner, batch: Batch, size: int) -> Tensor:
        return _step(wrong, self, batch, lambda: replays(self, batch, size))

    ModelRunner._run_eagerly, ModelRunner._replay = run_eagerly, replay  # type: ignore[method-assign]
    if kind == "a wrong draft taken":
        ReferenceEngine._advance = _advance(wrong, ReferenceEngine._advance)  # type: ignore[method-assign]


def _step(wrong: Wrong, runner: ModelRunner, batch: Batch, run: Callable[[], Tensor]) -> Tensor:
    """The logits [n, vocab] of a step, with the error if it has requests of the classes."""
    memory, conditions = runner.memory, runner._probe.conditions  # type: ignore[attr-defined]
    before = memory.data.clone()
    logits = run()
    step, sequences = conditions._step, list(conditions._requests)
    wrong.units = list(units_of(wrong.combination, step, sequences, logits))
    wrong.num_requests = len(sequences)
    wrong.drafting = {id(unit.sequence) for unit in wrong.units}
    if not wrong.units or wrong.kind == "a wrong draft taken":
        return logits
    if wrong.kind == "the neighbour's logits":
        ends = _ends(step)
        rows = torch.tensor([ends[unit.place] - 1 - unit.unused for unit in wrong.units])
        other = (
            rows
            if len(ends) == 1
            else torch.tensor([ends[unit.place - 1] - 1 for unit in wrong.units])
        )
        return logits.index_copy(0, rows, logits[other])
    outcomes = []
    for is_on in (False, True):
        copied, wrong.is_on, wrong.is_repeated = (
            PagedMemory(memory.layout, before.clone()),
            is_on,
            not is_on,
        )
        try:
            forwarded = runner.paged_model.forward(batch, copied)
        finally:
            wrong.is_on = wrong.is_repeated = False
        outcomes.append((forwarded.logits[logit_rows(_items(step, sequences))], copied.data))
    wrong.kept = dict(wrong.fresh)
    (right, of_right), (bad, of_bad) = outcomes
    memory.data.copy_(torch.where(of_bad != of_right, of_bad, memory.data))
    differs = (bad != right).any(dim=-1, keepdim=True) | (bad.isnan() != right.isnan()).any(
        dim=-1, keepdim=True
    )
    return torch.where(differs, bad, logits)


def units_of(
    combination: Combination, step: ObservedStep, sequences: list[Sequence], logits: Tensor
) -> Iterator[Unit]:
    """The requests of the step that have the classes, once its logits [n, vocab] say what becomes
    of their drafts.
    """
    tokens, ends = logits.argmax(dim=-1).tolist(), _ends(step)
    starts, first = [0, *ends], 0
    for place, (request, sequence) in enumerate(zip(step.requests, sequences, strict=True)):
        rows = tokens[starts[place] : ends[place]]
        is_last = request.computed + request.new >= request.known
        given = (
            confirmed(sequence.drafts, rows) if sequence.drafts else rows[-1:] if is_last else []
        )
        left = sequence.max_tokens - sequence.num_generated_tokens
        request.confirmed = len(given) - 1 if sequence.drafts else 0
        request.given, request.ends = min(len(given), left), len(given) >= left
    points, layers = SPACE.read(step), list(step.layers)
    wanted = set(combination)
    for place, (request, sequence) in enumerate(zip(step.requests, sequences, strict=True)):
        own = points[place * len(layers) : (place + 1) * len(layers)]
        found = {
            layer for layer, point in zip(layers, own, strict=True) if wanted <= set(point.items())
        }
        if found:
            # Rows behind the last token that is given have no effect.
            used = request.given if sequence.drafts else request.new
            yield Unit(place, first, first + used - 1, request.new - used, sequence, found)
        first += request.new


def _ends(step: ObservedStep) -> list[int]:
    """Where the rows of logits of each request end."""
    ends = [0]
    for request in step.requests:
        ends.append(ends[-1] + (request.new if request.is_decode else 1))
    return ends[1:]


def _items(step: ObservedStep, sequences: list[Sequence]) -> list[ScheduledSequence]:
    return [
        ScheduledSequence(one, request.new)
        for one, request in zip(sequences, step.requests, strict=True)
    ]


def _layer(wrong: Wrong, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a layer [T, hidden] with the error in the rows of the units."""

    def wrapped(self: Any, x: Tensor, batch: Batch, other: Any) -> Any:
        if not wrong.is_on:
            result = call(self, x, batch, other)
            if wrong.is_repeated:
                wrong.fresh[id(self)] = _rows(result).clone()
            return result
        is_moe = isinstance(self, RoutedExperts)
        units = wrong.units if is_moe else wrong.of_layer(_kind_of(self))
        if is_moe is not (wrong.kind == "another's experts"):
            return call(self, x, batch, other)
        changed = batch if is_moe else _inputs(wrong, units, batch, isinstance(self, PagedKDA))
        states = (
            [other.data[:, unit.sequence.state_block].clone() for unit in units]
            if isinstance(self, PagedKDA)
            else []
        )
        kept = wrong.kept.get(id(self))
        result = call(self, x, changed, other)
        rows = _rows(result)
        before = rows.clone()
        for number, unit in enumerate(units):
            if wrong.kind == "a stale row":
                has_row = kept is not None and unit.last < len(kept)
                rows[unit.last] = kept[unit.last] if has_row and kept is not None else 0.0
            elif wrong.kind in ("the neighbour's row", "another's experts"):
                rows[unit.last] = before[unit.last - 1]
            elif wrong.kind == "a skipped write" and states:
                other.data[:, unit.sequence.state_block] = states[number]
        return result

    return wrapped


def _kind_of(layer: Any) -> str:
    if isinstance(layer, PagedKDA):
        return STATE
    if isinstance(layer, PagedSparseMLA):
        return "sparse"
    return LAYERS["mla"] if layer.attention.sliding_window is None else "window"


def _rows(result: Any) -> Tensor:
    """The output [T, hidden] of a layer, without its choices."""
    rows: Tensor = result[0] if isinstance(result, tuple) else result
    return rows


def _inputs(wrong: Wrong, units: list[Unit], batch: Batch, is_state: bool) -> Batch:
    """The batch with the error in its positions, slots, tables or states."""
    last = torch.tensor([unit.last for unit in units], dtype=torch.int64)
    if wrong.kind == "a position off by one":
        return replace(batch, positions=batch.positions.index_add(0, last, torch.ones_like(last)))
    if wrong.kind == "a skipped write" and not is_state:
        return _with_slots(batch, last, lambda slots: torch.full_like(last, -1))
    if wrong.kind != "another's block":
        return batch
    prompts = last[last >= batch.num_decode_tokens]
    if not is_state and len(prompts):
        # The last token goes to the slot of the row before.
        batch = _with_slots(batch, prompts, lambda slots: slots[prompts - 1])
    decode, prefill = batch.decode, list(batch.prefill)
    num_decodes = batch.num_decodes
    for unit in units:
        if unit.place >= num_decodes:
            request = prefill[unit.place - num_decodes]
            prefill[unit.place - num_decodes] = _of_another(
                request, prefill[unit.place - num_decodes - 1]
            )
        elif decode is not None:
            decode = _decode_of_another(decode, unit)
    return replace(batch, decode=decode, prefill=tuple(prefill))


def _of_another(request: Any, other: Any) -> Any:
    """A prompt with the state of another, and with its own last page of context twice."""
    blocks = request.blocks
    pages = request.context_len // PAGE_SIZE
    if pages:
        blocks = (*blocks[: pages - 1], other.blocks[0], *blocks[pages:])
    return replace(request, blocks=blocks, state_block=other.state_block)


def _decode_of_another(decode: Any, unit: Unit) -> Any:
    """Decodes in which a request has the first block of the request before as its last, and its
    state.
    """
    changes: dict[str, Tensor] = {}
    page = (int(decode.seq_lens[unit.place]) - 1) // PAGE_SIZE
    for name in ("block_table", "window_table"):
        table = getattr(decode, name)
        if table is not None:
            table = changes[name] = table.clone()
            table[unit.place, page] = table[unit.place - 1, 0]
    states = changes["state_blocks"] = decode.state_blocks.clone()
    states[unit.place] = decode.state_blocks[unit.place - 1]
    return replace(decode, **changes)


def _with_slots(batch: Batch, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with other slots of some rows, in every group of layers.

    `change` gets the slots [T].
    """
    found: dict[str, Any] = {}
    for name in ("slot_mapping", "window_slots"):
        if (slots := getattr(batch, name)) is not None:
            found[name] = slots.index_copy(0, rows, change(slots))
    return replace(batch, **found)


def _advance(wrong: Wrong, advance: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """One draft more is taken than was right."""

    def wrapped(self: ReferenceEngine, item: ScheduledSequence, tokens: list[int]) -> list[int]:
        drafts = item.sequence.drafts
        if id(item.sequence) in wrong.drafting and drafts:
            right = len(confirmed(drafts, tokens)) - 1
            if right < len(drafts):
                tokens = [*tokens[:right], drafts[right], *tokens[right + 1 :]]
        return advance(self, item, tokens)

    return wrapped
