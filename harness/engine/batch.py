"""From scheduled sequences to tensors: slots, lengths, block tables, and the padding of all of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.engine.schedule.config import NULL_BLOCK, PAGE_SIZE
from harness.engine.schedule.scheduler import ScheduledSequence
from harness.memory.poison.patterns import Poison


@dataclass(frozen=True, slots=True)
class Padding:
    """What an engine makes of requests and tokens that belong to nobody.

    `trash_block` is a block of their own to store them in; None skips the store. `num_keys` is how many keys each of
    their query tokens is told to have: 0, or 1, which then is the first slot of the null block.
    """

    trash_block: int | None = None
    num_keys: int = 0

    @property
    def slot(self) -> int:
        """The slot of a token that must not be stored among others: -1, or the first of the trash block."""
        return -1 if self.trash_block is None else self.trash_block * PAGE_SIZE


NO_KEYS = Padding()


@dataclass(slots=True)
class DecodeMetadata:
    """The split-KV plan of a decode batch; None until the first layer of a forward plans."""

    plan: Any = None


@dataclass(slots=True)
class DecodeInputs:
    """B requests with S = `query_len` new tokens each, the first tokens of a batch; M table columns.

    block_table [B, M] int32; seq_lens [B] int32, the new tokens included, 0 for padding; state_blocks [B] int32, the
    null block for padding; num_live [1] int32, how many of the B * S rows belong to requests. `output` is the
    persistent decode output [B, S, H, R] where the engine keeps one, else None; `window_table` [B, M] int32 the block
    table of window layers, where there are any, with the null block for pages that no query sees any more.
    """

    block_table: Tensor
    seq_lens: Tensor
    state_blocks: Tensor
    num_live: Tensor
    output: Tensor | None
    metadata: DecodeMetadata
    window_table: Tensor | None = None
    query_len: int = 1

    def head(self, size: int) -> DecodeInputs:
        """The first `size` rows, as views: a graph of that size reads these addresses."""
        output = None if self.output is None else self.output[:size]
        window_table = None if self.window_table is None else self.window_table[:size]
        return replace(
            self,
            block_table=self.block_table[:size],
            seq_lens=self.seq_lens[:size],
            state_blocks=self.state_blocks[:size],
            output=output,
            window_table=window_table,
        )


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """One request's new tokens in a batch: rows `start` to `end`, on top of `context_len` cached tokens."""

    start: int
    end: int
    context_len: int
    blocks: tuple[int, ...]
    state_block: int
    window_blocks: tuple[int, ...] = ()


@dataclass(slots=True)
class Batch:
    """The inputs of one forward over T tokens: those of decoding requests, then prompts by falling context length.

    hidden [T, hidden] embeddings; positions [T] int64; slot_mapping [T] int64, -1 for tokens that are not stored;
    window_slots [T] int64 the same for window layers, where there are any. `table_pad` are the entries of a block table
    [M] past all pages of a request. `backend_slots` [T] int64 is the copy of slot_mapping that an attention backend
    makes of a graph's inputs when their metadata is built; None: it reads slot_mapping itself.
    """

    hidden: Tensor
    positions: Tensor
    slot_mapping: Tensor
    decode: DecodeInputs | None
    prefill: tuple[PrefillRequest, ...] = ()
    window_slots: Tensor | None = None
    table_pad: tuple[int, ...] = ()
    backend_slots: Tensor | None = None

    @property
    def stored_slots(self) -> Tensor:
        """Where full layers store each token [T]: what their backend reads."""
        return self.slot_mapping if self.backend_slots is None else self.backend_slots

    @property
    def num_decodes(self) -> int:
        """Decoding requests, padding included."""
        return 0 if self.decode is None else self.decode.seq_lens.shape[0]

    @property
    def num_decode_tokens(self) -> int:
        """Rows of decoding requests, padding included."""
        return 0 if self.decode is None else self.num_decodes * self.decode.query_len

    def head(self, size: int) -> Batch:
        """The rows of the first `size` requests of a decode batch, as views."""
        assert self.decode is not None
        rows = size * self.decode.query_len
        window_slots = None if self.window_slots is None else self.window_slots[:rows]
        return Batch(
            self.hidden[:rows], self.positions[:rows], self.slot_mapping[:rows], self.decode.head(size), self.prefill,
            window_slots, backend_slots=None if self.backend_slots is None else self.backend_slots[:rows],
        )  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        """The input tensors of a decode batch by name."""
        assert self.decode is not None
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        own |= {field.name: getattr(self.decode, field.name) for field in fields(self.decode)}
        return {name: value for name, value in own.items() if isinstance(value, Tensor)}

    def snapshot(self) -> Batch:
        """A copy of a decode batch with memory of its own, not planned yet."""
        assert self.decode is not None
        copies = {name: tensor.clone() for name, tensor in self.tensors().items()}
        decode = DecodeInputs(
            block_table=copies["block_table"],
            seq_lens=copies["seq_lens"],
            state_blocks=copies["state_blocks"],
            num_live=copies["num_live"],
            output=copies.get("output"),
            metadata=DecodeMetadata(),
            window_table=copies.get("window_table"),
            query_len=self.decode.query_len,
        )
        return Batch(
            copies["hidden"], copies["positions"], copies["slot_mapping"], decode,
            window_slots=copies.get("window_slots"), backend_slots=copies.get("backend_slots"),
        )  # fmt: skip


def order(scheduled: tuple[ScheduledSequence, ...]) -> list[ScheduledSequence]:
    """Decoding requests first, then prompts with the longest context first: those without any come last."""
    decodes: list[ScheduledSequence] = []
    prompts: list[ScheduledSequence] = []
    for item in scheduled:
        (decodes if item.is_decode else prompts).append(item)
    return decodes + prompts_in_order(prompts)


@seam("batch.prefills-by-tokens")
def prompts_in_order(prompts: list[ScheduledSequence]) -> list[ScheduledSequence]:
    """Prompts with the longest context first, so that those with any stand before all that have none.

    The attention counts on it: of N prompts with context it takes the first N for them. In an order by new tokens alone
    a short prompt without context comes before a longer chunk that has some (PR 47381).
    """
    return sorted(prompts, key=lambda item: -item.sequence.num_computed_tokens)


def build(ordered: list[ScheduledSequence], embedding: torch.nn.Embedding, num_columns: int, poison: Poison) -> Batch:
    """The batch of these requests without padded rows; `num_columns` is the width of block tables."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    window_slots: list[int] = []
    prefill = []
    for item in ordered:
        sequence, start = item.sequence, item.sequence.num_computed_tokens
        span = range(start, start + item.num_new_tokens)
        if not item.is_decode:
            end, state_block = len(tokens) + len(span), sequence.state_block or NULL_BLOCK
            blocks, window_blocks = tuple(sequence.blocks), tuple(sequence.window_blocks)
            prefill.append(PrefillRequest(len(tokens), end, start, blocks, state_block, window_blocks))
        known = sequence.tokens + sequence.drafts if sequence.drafts else sequence.tokens
        tokens += known[span.start : span.stop]
        positions += span
        slots += slots_of(sequence.blocks, span)
        window_slots += slots_of(sequence.window_blocks, span)
    decodes = [item for item in ordered if item.is_decode]
    device = embedding.weight.device
    return Batch(
        hidden=embedding(torch.tensor(tokens, device=device)),
        positions=torch.tensor(positions, device=device),
        slot_mapping=torch.tensor(slots, device=device),
        decode=_decode_inputs(decodes, num_columns, poison, device) if decodes else None,
        prefill=tuple(prefill),
        window_slots=torch.tensor(window_slots, device=device) if window_slots else None,
        table_pad=(table_filler(poison),) * num_columns,
    )


def slots_of(blocks: list[int], span: range) -> list[int]:
    """The slot of each position of `span` in a request's pages; none where it has no such pages."""
    return [blocks[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in span] if blocks else []


def _decode_inputs(
    decodes: list[ScheduledSequence], num_columns: int, poison: Poison, device: torch.device
) -> DecodeInputs:
    filler, query_len = table_filler(poison), decodes[0].sequence.query_len

    def int32(values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    def table(rows: list[list[int]]) -> Tensor:
        # Most columns are filler, and lists are slow to become tensors.
        used = max(len(blocks) for blocks in rows)
        made = torch.full((len(rows), num_columns), filler, dtype=torch.int32, device=device)
        made[:, :used] = int32([blocks + [filler] * (used - len(blocks)) for blocks in rows])
        return made

    has_window = bool(decodes[0].sequence.window_blocks)
    return DecodeInputs(
        block_table=table([item.sequence.blocks for item in decodes]),
        seq_lens=int32([item.sequence.num_computed_tokens + query_len for item in decodes]),
        state_blocks=int32([item.sequence.state_block or NULL_BLOCK for item in decodes]),
        num_live=int32([len(decodes) * query_len]),
        output=None,
        metadata=DecodeMetadata(),
        window_table=table([item.sequence.window_blocks for item in decodes]) if has_window else None,
        query_len=query_len,
    )


def table_filler(poison: Poison) -> int:
    """What block-table entries past the last page hold: the null block, or the poison's trap."""
    if not poison.covers("block_table.pad"):
        return NULL_BLOCK
    return int(poison.empty(1, dtype=torch.int32, site="block_table.pad").item())


@seam("write_kv.slot-zero-for-padding")
def padding_slot(padding: Padding) -> int:
    """The slot that the engine gives to tokens of padding and of dummy batches.

    A dummy's hidden state is garbage, and 0 would be a real address: the null block, which every padded table entry
    points to (PR 39444).
    """
    return padding.slot


@seam("pad.slots-of-last-replay")
def reset_padded_slots(static: Batch, num_live: int, slot: int) -> None:
    """Give the rows from `num_live` on the slot of padding, for every group of layers that has slots.

    A captured batch keeps what the step before left there: slots of requests that still run
    (sgl-project/sglang#24743).
    """
    static.slot_mapping[num_live:] = slot
    if static.window_slots is not None:
        static.window_slots[num_live:] = slot


@seam("plan.padded-row-block-minus-one", "pad.length-one-reads-null-block")
def pad_requests(decode: DecodeInputs, num_live: int, filler: int, num_keys: int = 0) -> None:
    """Make the rows from `num_live` on those of padding, and their table's first entry the null block.

    They have no keys, or as many as the engine is told to give to each query token; a key is one of the null block,
    which then has to stay finite (PR 38436, sgl-project/sglang#1779). A kernel may look up the last page
    of an empty request too. -1 marks a slot to skip, never a block: kernels use block ids as offsets
    (PR 35431).
    """
    for table in (decode.block_table, decode.window_table):
        if table is not None:
            table[num_live:] = filler
            table[num_live:, 0] = NULL_BLOCK
    decode.seq_lens[num_live:] = num_keys * decode.query_len
    decode.state_blocks[num_live:] = NULL_BLOCK


def fill_static(static: Batch, live: Batch, poison: Poison, padding: Padding = NO_KEYS) -> None:
    """Put a live decode batch into the static inputs of a graph, in place, every row and every column of them."""
    assert static.decode is not None and live.decode is not None
    num_live, rows = live.num_decodes, live.num_decode_tokens
    static.hidden[:rows] = live.hidden
    static.positions[:rows] = live.positions
    static.slot_mapping[:rows] = live.slot_mapping
    put_table(static.decode, live.decode)
    static.decode.seq_lens[:num_live] = live.decode.seq_lens
    static.decode.state_blocks[:num_live] = live.decode.state_blocks
    static.decode.num_live.copy_(live.decode.num_live)
    if static.window_slots is not None and static.decode.window_table is not None:
        assert live.window_slots is not None and live.decode.window_table is not None
        static.window_slots[:rows] = live.window_slots
        static.decode.window_table[:num_live] = live.decode.window_table
    reset_padded_slots(static, rows, padding_slot(padding))
    pad_requests(static.decode, num_live, table_filler(poison), padding.num_keys)
    for padded in (static.hidden[rows:], static.positions[rows:]):
        if padded.numel():
            poison.fill_(padded, "graph.pad_rows")
    build_backend(static)


@seam("pad.private-slot-copy")
def fill_dummy(static: Batch, dummy: Batch, poison: Poison, padding: Padding = NO_KEYS) -> None:
    """Put a batch that belongs to nobody into the static inputs: first its slots, then what backends copy of them.

     Built in the other order, a backend's copy still names slots of the step before, and the graph stores through them
    .
    """
    fill_static(static, dummy, poison, padding)


@seam("graph.rebuilt-metadata")
def put_table(static: DecodeInputs, live: DecodeInputs) -> None:
    """Copy the block table into the one that the graph captured; a new tensor would be seen by nobody
    (sgl-project/sglang#26019)."""
    static.block_table[: live.block_table.shape[0]] = live.block_table


def build_backend(static: Batch) -> None:
    """Let the attention backend take its copy of what it needs, as it does when a step's metadata is built."""
    if static.backend_slots is not None:
        static.backend_slots.copy_(static.slot_mapping)


@seam("null.warmup-writes-slot-zero")
def dummy_slots(num_tokens: int, slot: int, device: torch.device) -> Tensor:
    """Slots [T] int64 of a batch of nobody's, warm-ups included: those of padding, never 0, which is a real address
    (PR 38719)."""
    return torch.full((num_tokens,), slot, dtype=torch.int64, device=device)


def dummy_batch(
    size: int,
    embedding: torch.nn.Embedding,
    num_columns: int,
    query_len: int = 1,
    has_window: bool = False,
    padding: Padding = NO_KEYS,
) -> Batch:
    """A decode batch of token 0 that stores nothing: what an idle data-parallel rank runs, and what a capture sees."""
    device, rows = embedding.weight.device, size * query_len

    def filled(shape: tuple[int, ...], value: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=device)

    slots = dummy_slots(rows, padding_slot(padding), device)
    return Batch(
        hidden=embedding(filled((rows,), 0, torch.int64)),
        positions=filled((rows,), 0, torch.int64),
        slot_mapping=slots,
        decode=DecodeInputs(
            block_table=filled((size, num_columns), NULL_BLOCK),
            seq_lens=filled((size,), query_len),
            state_blocks=filled((size,), NULL_BLOCK),
            num_live=filled((1,), rows),
            output=None,
            metadata=DecodeMetadata(),
            window_table=filled((size, num_columns), NULL_BLOCK) if has_window else None,
            query_len=query_len,
        ),
        window_slots=slots.clone() if has_window else None,
        backend_slots=slots.clone(),
    )
