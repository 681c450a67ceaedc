"""What a run of the engine notes for judges: logits, replays, choices, stray writes, and steps with other padding."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from harness.engine.batch import Batch, DecodeMetadata, Padding, fill_static, tensors_by_name
from harness.engine.kernels import GUARD, Workspace
from harness.engine.memory import PagedMemory
from harness.engine.paged_model import Forwarded, PagedModel
from harness.engine.schedule.config import NULL_BLOCK
from harness.engine.schedule.scheduler import ScheduledSequence, Sequence
from harness.memory.poison.patterns import Poison


@dataclass(frozen=True, slots=True)
class ReplayNote:
    """Logits [B, vocab] of one replay of a graph of B rows, and of the same step run eagerly on a copy of memory.

    `eager_again` is a second eager run on a GPU, made if the first differs from the replay. `alike` [B] bool are the
    rows with equal decisions in the replay and the eager run. `inputs` has a number for each live row: rows of requests
    with equal tokens have equal numbers.
    """

    step: int
    num_live: int
    replayed: Tensor
    eager: Tensor
    stale_plan: bool
    eager_again: Tensor | None = None
    alike: Tensor | None = None
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Binding:
    """The address where a captured graph reads an input, and the address that the engine updated before a replay."""

    step: int
    name: str
    site: str
    captured_address: int
    current_address: int


@dataclass(frozen=True, slots=True)
class NewestLogits:
    """The logits [n, vocab] of the last step's tokens, row i of request `requests[i]`.

    A request that computed only a part of its prompt got no token and has no row.
    """

    requests: tuple[int, ...]
    logits: Tensor


@dataclass(frozen=True, slots=True)
class ZeroedBlock:
    """A block that the scheduler listed for zeroing, and how many of its bytes were not zero when the step ran."""

    step: int
    block: int
    num_bytes: int
    num_dirty: int


@dataclass(frozen=True, slots=True)
class PaddingNote:
    """Logits [n, vocab] of the live rows of a step, without padded requests and with `num_padded`.

    `alike` [n] bool are the rows with equal decisions.
    """

    step: int
    num_padded: int
    unpadded: Tensor
    padded: Tensor
    alike: Tensor


@dataclass(frozen=True, slots=True)
class WriteNote:
    """A stray write in step `step`: the memory, its site, its bytes before and after.

    `site` is None for memory that a request owns.
    """

    step: int
    name: str
    site: str | None
    before: Tensor
    after: Tensor


@dataclass(slots=True)
class Observations:
    """Notes by request number, filled by the runner. All but `newest` stay empty in an engine that does not observe.

    `logits[r]` has one row [vocab] for each generated token, `rejected[r]` one for each rejected draft.
    `expert_ids[r][p]` are the experts [L, k] of position p, `selected[r][p]` the positions [L, K] that it attended to
    in sparse layers. `routed` has the expert ids [T, k] of all rows of each forward, padded rows included.
    """

    logits: dict[int, list[Tensor]] = field(default_factory=dict)
    newest: NewestLogits | None = None
    expert_ids: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    selected: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    rejected: dict[int, list[Tensor]] = field(default_factory=dict)
    routed: list[Tensor] = field(default_factory=list)
    zeroed: list[ZeroedBlock] = field(default_factory=list)
    written: list[WriteNote] = field(default_factory=list)
    replays: list[ReplayNote] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    models: dict[int, list[tuple[int, tuple[int, int]]]] = field(default_factory=dict)
    """The models of each request: the first token that each generates, its reload, and its adapter."""
    num_mixed_steps: int = 0
    """The number of batches with decodes and prompts."""


Choices = tuple[Tensor | None, Tensor | None]
"""The experts [L, k] of a token, and the positions [L, K] that it attended to in sparse layers."""


class ChoiceNotes:
    """Fills `expert_ids` and `selected` of the observations, position by position.

    A request that shares a prefix gets the choices of the request that computed it.
    """

    def __init__(self, observations: Observations, prefix_caching: bool) -> None:
        self._observations = observations
        self._prefix_caching = prefix_caching
        self._of_prefix: dict[int, Choices] = {}

    def note(self, forwarded: Forwarded, ordered: list[ScheduledSequence]) -> None:
        """Note the choices of one forward. Its rows are the tokens of `ordered`, then padding."""
        if not forwarded.expert_ids and not forwarded.selected:
            return
        experts = torch.stack(forwarded.expert_ids, dim=1).cpu() if forwarded.expert_ids else None
        selected = torch.stack(forwarded.selected, dim=1).cpu() if forwarded.selected else None
        if experts is not None:
            self._observations.routed.append(experts.flatten(0, 1))
        row = 0
        for item in ordered:
            sequence, start = item.sequence, item.sequence.num_computed_tokens
            if start == sequence.num_shared_tokens:
                self._note_shared(sequence)
            tokens = sequence.tokens + sequence.drafts
            for position in range(start, start + item.num_new_tokens):
                chosen = (None if experts is None else experts[row], None if selected is None else selected[row])
                self._keep(sequence, position, chosen)
                if self._prefix_caching:
                    self._of_prefix[_prefix_hash(tokens, position)] = chosen
                row += 1

    def _note_shared(self, sequence: Sequence) -> None:
        for position in range(sequence.num_shared_tokens):
            chosen = self._of_prefix.get(_prefix_hash(sequence.tokens, position))
            if chosen is not None:
                self._keep(sequence, position, chosen)

    def _keep(self, sequence: Sequence, position: int, chosen: Choices) -> None:
        notes_of_kind = (self._observations.expert_ids, self._observations.selected)
        for notes, value in zip(notes_of_kind, chosen, strict=True):
            if value is not None:
                notes.setdefault(sequence.request, {})[position] = value


def decided_alike(first: Forwarded, second: Forwarded) -> Tensor:
    """The rows [T] bool with the same experts and the same selected tokens in two forwards of one batch."""
    alike = torch.ones(len(first.logits), dtype=torch.bool)
    for one, other in zip(first.expert_ids + first.selected, second.expert_ids + second.selected, strict=True):
        alike &= (one.sort(dim=-1).values == other.sort(dim=-1).values).all(dim=-1).cpu()
    return alike


def _prefix_hash(tokens: list[int], position: int) -> int:
    return hash(tuple(tokens[: position + 1]))


def written_blocks(before: PagedMemory, after: PagedMemory, free: Collection[int], step: int) -> list[WriteNote]:
    """The blocks that a dummy batch changed. `free` are the blocks without an owner."""
    changed = (before.data != after.data).any(dim=-1).any(dim=0).nonzero().flatten().tolist()
    notes = []
    for block in changed:
        site = "kv.null" if block == NULL_BLOCK else "kv.free" if block in free else None
        notes.append(WriteNote(step, f"block {block}", site, before.block(block), after.block(block)))
    return notes


def dirty_workspace(workspace: Workspace | None, num_requests: int, step: int) -> list[WriteNote]:
    """Counters that a step with `num_requests` decodes left dirty, and guard words that it overwrote."""
    if workspace is None or not num_requests:
        return []
    counters, guard = workspace.counters(num_requests), workspace.guard
    parts = (("the counters of decode", counters, 0), ("the words behind the counters of decode", guard, GUARD))
    return [
        WriteNote(step, name, "workspace", torch.full_like(words, value)[:, None], words.clone()[:, None])
        for name, words, value in parts
        if bool((words != value).any())
    ]


MAX_NOTES = 3
"""How many steps of an engine are repeated. Later steps show nothing new."""
MORE_ROWS = 3
"""The least room for padding in a batch, so that several lengths of padding can be tried."""


@dataclass(slots=True)
class PaddedTwins:
    """Repeats replayed steps of one engine eagerly, each with a new number of padded requests.

    `dummy` makes a dummy batch of a size. `max_requests` is the limit of a batch where kernels count in a workspace.
    """

    dummy: Callable[[int], Batch]
    poison: Poison
    padding: Padding
    max_requests: int | None
    notes: list[PaddingNote] = field(default_factory=list)
    _tried: dict[int, int] = field(default_factory=dict)

    def note(self, model: PagedModel, inputs: Batch, memory: PagedMemory, num_live: int, step: int) -> None:
        """Run the step of `num_live` requests in `inputs` on copies of `memory`, unpadded and padded."""
        size = max(inputs.num_decodes, num_live + MORE_ROWS)
        size = size if self.max_requests is None else min(size, self.max_requests)
        if len(self.notes) >= MAX_NOTES or size == num_live:
            return
        num_padded = self._tried[num_live] = self._tried.get(num_live, 0) % (size - num_live) + 1
        first, second = (self._forward(model, inputs, memory, num_live, size, count) for count in (0, num_padded))
        assert inputs.decode is not None
        rows = num_live * inputs.decode.query_len
        alike = decided_alike(first, second)[:rows]
        self.notes.append(PaddingNote(step, num_padded, first.logits[:rows], second.logits[:rows], alike))

    def _forward(
        self, model: PagedModel, inputs: Batch, memory: PagedMemory, num_live: int, size: int, num_padded: int
    ) -> Forwarded:
        twin = self.dummy(size)
        assert inputs.decode is not None and twin.decode is not None
        # The static inputs of a graph hold the pages of earlier steps. These are in no pool, so a read of one shows.
        for table in (twin.decode.block_table, twin.decode.window_table):
            if table is not None:
                table.fill_(memory.layout.num_blocks)
        if inputs.decode.output is not None:
            twin.decode.output = inputs.decode.output.new_zeros(size, *inputs.decode.output.shape[1:])
        rest = repeated(inputs, num_live, size - num_padded, self.padding.slot)
        fill_static(twin, rest, self.poison, self.padding)
        return model.forward(twin, memory.snapshot())


def repeated(inputs: Batch, num_live: int, count: int, slot: int) -> Batch:
    """The first `num_live` requests of a decode batch, repeated to `count` requests.

    Repetitions are stored at `slot` and do not count as live.
    """
    assert inputs.decode is not None
    decode, query_len = inputs.decode, inputs.decode.query_len
    device = inputs.hidden.device
    order = torch.arange(count, device=device) % num_live
    rows = (order[:, None] * query_len + torch.arange(query_len, device=device)).flatten()
    is_first = torch.arange(len(rows), device=device) < num_live * query_len
    tensors = tensors_by_name(replace(decode, output=None))
    of_requests: dict[str, Any] = {name: tensor[order] for name, tensor in tensors.items() if name != "num_live"}
    return Batch(
        hidden=inputs.hidden[rows],
        positions=inputs.positions[rows],
        slot_mapping=torch.where(is_first, inputs.slot_mapping[rows], slot),
        decode=replace(decode, **of_requests, output=None, metadata=DecodeMetadata()),
        window_slots=None if inputs.window_slots is None else torch.where(is_first, inputs.window_slots[rows], slot),
        adapters=None if inputs.adapters is None else inputs.adapters[rows],
    )
