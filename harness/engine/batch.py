"""The tensors of a batch: slots, lengths, block tables, and their padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.seams import seam
from harness.engine.poisoned import table_filler
from harness.engine.schedule.config import NULL_BLOCK, PAGE_SIZE
from harness.engine.schedule.sequence import ScheduledSequence, Sequence


@dataclass(frozen=True, slots=True)
class Padding:
    """How an engine treats padded requests and tokens.

    Their latents are stored in `trash_block`, or nowhere if it is None. Each padded query token has
    `num_keys` keys: 0, or 1, which is the first slot of the null block.
    """

    trash_block: int | None = None
    num_keys: int = 0

    @property
    def slot(self) -> int:
        """The slot of a padded token: -1, or the first of the trash block."""
        return -1 if self.trash_block is None else self.trash_block * PAGE_SIZE


NO_KEYS = Padding()


@dataclass(slots=True)
class DecodeMetadata:
    """The split-KV plan of a decode batch. It is None until the first layer of a forward plans."""

    plan: Any = None


RecordT = TypeVar("RecordT", "DecodeInputs", "Batch")


def map_tensors(record: RecordT, change: Callable[[Tensor], Tensor], **more: Any) -> RecordT:
    """A copy of `record` with each tensor changed, and the fields `more` set."""
    tensors = {name: change(tensor) for name, tensor in tensors_by_name(record).items()}
    return replace(record, **tensors | more)


def tensors_by_name(inputs: DecodeInputs | Batch) -> dict[str, Tensor]:
    values = ((field.name, getattr(inputs, field.name)) for field in fields(inputs))
    return {name: value for name, value in values if isinstance(value, Tensor)}


@dataclass(slots=True)
class DecodeInputs:
    """B requests with S = `query_len` new tokens each, the first tokens of a batch; M table
    columns.

    block_table [B, M] int32; seq_lens [B] int32, new tokens included, 0 for padding; state_blocks
    [B] int32, the null block for padding; num_live [1] int32, the number of live rows among B * S.
    `output` [B, S, H, R] is the persistent decode output of an engine that keeps one.
    `window_table` [B, M] int32 is the block table of window layers, with the null block for evicted
    pages.
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
        # `num_live` is one number, and has no rows to cut.
        return map_tensors(self, lambda tensor: tensor[:size], num_live=self.num_live)


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """One request's new tokens in a batch: rows `start` to `end`, after `context_len` cached
    tokens.
    """

    start: int
    end: int
    context_len: int
    blocks: tuple[int, ...]
    state_block: int
    window_blocks: tuple[int, ...] = ()
    adapter: int = 0


@dataclass(slots=True)
class Batch:
    """The inputs of one forward over T tokens: decodes first, then prompts, the longest context
    first.

    hidden [T, hidden] embeddings; positions [T] int64; slot_mapping [T] int64, -1 for tokens that
    are not stored; window_slots [T] int64, the same for window layers. `table_pad` [M] fills the
    block table of a prompt past its pages. `backend_slots` [T] int64 is the attention backend's
    copy of a graph's slot_mapping, made when metadata is built. Without it the backend reads
    slot_mapping. `adapters` [T] int64 is the slot of each token's adapter. `next_tokens` [T] int64
    is the known token behind each one, -1 where the target has to choose it, for a drafter.
    """

    hidden: Tensor
    positions: Tensor
    slot_mapping: Tensor
    decode: DecodeInputs | None
    prefill: tuple[PrefillRequest, ...] = ()
    window_slots: Tensor | None = None
    table_pad: tuple[int, ...] = ()
    backend_slots: Tensor | None = None
    adapters: Tensor | None = None
    next_tokens: Tensor | None = None

    @property
    def stored_slots(self) -> Tensor:
        """The slots [T] that the backend of full layers reads."""
        return self.slot_mapping if self.backend_slots is None else self.backend_slots

    @property
    def num_decodes(self) -> int:
        """The number of decoding requests, padding included."""
        return 0 if self.decode is None else self.decode.seq_lens.shape[0]

    @property
    def num_decode_tokens(self) -> int:
        """The number of rows of decoding requests, padding included."""
        return 0 if self.decode is None else self.num_decodes * self.decode.query_len

    def head(self, size: int) -> Batch:
        assert self.decode is not None
        rows = size * self.decode.query_len
        return map_tensors(self, lambda tensor: tensor[:rows], decode=self.decode.head(size))


@seam("verify.rows-behind-chunk")
def order(scheduled: tuple[ScheduledSequence, ...]) -> list[ScheduledSequence]:
    """Decoding requests first, then prompts, the longest context first.

    A decode with drafts has several tokens. It stands before each chunk of a prompt as well
    (vllm-project/vllm#55894).
    """
    decodes = [item for item in scheduled if item.is_decode]
    return decodes + prompts_in_order([item for item in scheduled if not item.is_decode])


@seam("batch.prefills-by-tokens")
def prompts_in_order(prompts: list[ScheduledSequence]) -> list[ScheduledSequence]:
    """Prompts, the longest context first.

    The attention takes the first N prompts for the N prompts with context. Sorted by new tokens, a
    short prompt without context would come before a longer chunk with context
    (vllm-project/vllm#47381).
    """
    # Stable, so that prompts with as much context keep their order of arrival.
    return sorted(prompts, key=lambda item: -item.sequence.num_computed_tokens)


def build(
    ordered: list[ScheduledSequence],
    embedding: torch.nn.Embedding,
    num_columns: int,
    poison: Poison,
    has_adapters: bool = False,
) -> Batch:
    """The batch of these requests, without padded rows. Block tables have `num_columns` columns."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    window_slots: list[int] = []
    prefill = []
    for item in ordered:
        sequence = item.sequence
        start = item.sequence.num_computed_tokens
        span = range(start, start + item.num_new_tokens)
        if not item.is_decode:
            end = len(tokens) + len(span)
            # A model without states has none; the null block stands for it.
            state_block = sequence.state_block or NULL_BLOCK
            blocks = tuple(sequence.blocks)
            window_blocks = tuple(sequence.window_blocks)
            adapter = sequence.slot
            prefill.append(
                PrefillRequest(len(tokens), end, start, blocks, state_block, window_blocks, adapter)
            )
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
        next_tokens=torch.tensor(
            [token for item in ordered for token in known_next_tokens(item)], device=device
        ),
        adapters=torch.tensor(
            [item.sequence.slot for item in ordered for _ in range(item.num_new_tokens)]
        ).to(device)
        if has_adapters
        else None,
    )


@seam("drafter.unverified-token-in-pages")
def known_next_tokens(item: ScheduledSequence) -> list[int]:
    """The token behind each token of a request in this step, -1 where the target has to choose it.

    Behind a chunk of a prompt it is the next token of the prompt, not what the target would choose
    (vllm-project/vllm#55055).
    """
    sequence = item.sequence
    start = item.sequence.num_computed_tokens
    known = sequence.tokens[start + 1 : start + 1 + item.num_new_tokens]
    return known + [-1] * (item.num_new_tokens - len(known))


def logit_rows(ordered: list[ScheduledSequence]) -> Tensor:
    """The rows [n] int64 of a batch of these requests that get logits."""
    rows: list[int] = []
    end = 0
    for item in ordered:
        end += item.num_new_tokens
        rows += range(end - item.num_rows, end)
    return torch.tensor(rows)


def slots_of(blocks: list[int], span: range) -> list[int]:
    """The slot of each position of `span` in a request's pages; empty without pages."""
    return [blocks[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in span] if blocks else []


@seam("verify.optimistic-lengths")
def length_of(sequence: Sequence, query_len: int) -> int:
    """The tokens that a decode sees: the computed ones, without refused drafts, and its own
    `query_len` (vllm-project/vllm-ascend#10032).
    """
    return sequence.num_computed_tokens + query_len


def _decode_inputs(
    decodes: list[ScheduledSequence], num_columns: int, poison: Poison, device: torch.device
) -> DecodeInputs:
    filler = table_filler(poison)
    # The same for all: the kernel takes q [B, S, H, D], so a batch verifies as many drafts for
    # each.
    query_len = decodes[0].sequence.query_len

    def int32(values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    def table(rows: list[list[int]]) -> Tensor:
        # Most columns are filler, and tensors are slow to make from lists.
        used = max(len(blocks) for blocks in rows)
        made = torch.full((len(rows), num_columns), filler, dtype=torch.int32, device=device)
        made[:, :used] = int32([blocks + [filler] * (used - len(blocks)) for blocks in rows])
        return made

    has_window = bool(decodes[0].sequence.window_blocks)
    return DecodeInputs(
        block_table=table([item.sequence.blocks for item in decodes]),
        seq_lens=int32([length_of(item.sequence, query_len) for item in decodes]),
        state_blocks=int32([item.sequence.state_block or NULL_BLOCK for item in decodes]),
        num_live=int32([len(decodes) * query_len]),
        output=None,
        metadata=DecodeMetadata(),
        window_table=table([item.sequence.window_blocks for item in decodes])
        if has_window
        else None,
        query_len=query_len,
    )


@seam("write_kv.slot-zero-for-padding")
def padding_slot(padding: Padding) -> int:
    """The slot of padded tokens and of dummy batches.

    A dummy's hidden state is garbage, and slot 0 is real memory: the null block, which padded table
    entries name (vllm-project/vllm#39444).
    """
    return padding.slot


@seam("pad.slots-of-last-replay")
def reset_padded_slots(static: Batch, num_live: int, slot: int) -> None:
    """Set the rows from `num_live` on to the padding `slot`, for every group of layers that has
    slots.

    The static inputs still hold the slots of the step before, and its requests may still run
    (sgl-project/sglang#24743).
    """
    static.slot_mapping[num_live:] = slot
    if static.window_slots is not None:
        static.window_slots[num_live:] = slot


@seam("plan.padded-row-block-minus-one", "pad.length-one-reads-null-block")
def pad_requests(decode: DecodeInputs, num_live: int, filler: int, num_keys: int = 0) -> None:
    """Make padding of the requests from `num_live` on.

    Each of their query tokens has `num_keys` keys.

    A key of padding lies in the null block, which has to stay finite (vllm-project/vllm#38436,
    sgl-project/sglang#1779). The first table entry is the null block, because a kernel may look up
    the last page of an empty request. -1 is never a block: kernels use block ids as offsets
    (vllm-project/vllm#35431).
    """
    for table in (decode.block_table, decode.window_table):
        if table is not None:
            table[num_live:] = filler
            table[num_live:, 0] = NULL_BLOCK
    decode.seq_lens[num_live:] = num_keys * decode.query_len
    decode.state_blocks[num_live:] = NULL_BLOCK


def fill_static(static: Batch, live: Batch, poison: Poison, padding: Padding = NO_KEYS) -> None:
    """Copy a live decode batch into the static inputs of a graph, and reset all padded rows and
    columns.
    """
    assert static.decode is not None and live.decode is not None
    num_live = live.num_decodes
    rows = live.num_decode_tokens
    static.hidden[:rows] = live.hidden
    static.positions[:rows] = live.positions
    static.slot_mapping[:rows] = live.slot_mapping
    put_table(static.decode, live.decode)
    static.decode.seq_lens[:num_live] = live.decode.seq_lens
    static.decode.state_blocks[:num_live] = live.decode.state_blocks
    # In place: kernels of the graph read the number on the device.
    static.decode.num_live.copy_(live.decode.num_live)
    if static.window_slots is not None and static.decode.window_table is not None:
        assert live.window_slots is not None and live.decode.window_table is not None
        static.window_slots[:rows] = live.window_slots
        static.decode.window_table[:num_live] = live.decode.window_table
    for held, given in ((static.adapters, live.adapters), (static.next_tokens, live.next_tokens)):
        if held is not None and given is not None:
            held[:rows] = given
            # Slot 0 is no adapter and token 0 a token: padding may be looked up.
            held[rows:] = 0
    # After the copies, whose rows end at the live ones: behind them the step before is still there.
    reset_padded_slots(static, rows, padding_slot(padding))
    pad_requests(static.decode, num_live, table_filler(poison), padding.num_keys)
    for padded in (static.hidden[rows:], static.positions[rows:]):
        if padded.numel():
            # Hidden states of padding have no meaning, so nothing of them may reach a live row.
            poison.fill_(padded, "graph.pad_rows")
    # Last: the backend copies the slots, padding included.
    build_backend(static)


@seam("pad.private-slot-copy", "dummy.state-of-last-step")
def fill_dummy(static: Batch, dummy: Batch, poison: Poison, padding: Padding = NO_KEYS) -> None:
    """Copy a dummy batch into the static inputs: its slots first, then the backend's copy of the
    slots.

    In the other order the backend's copy has the slots of the step before, and the graph stores to
    them. The rows of states are reset with them (vllm-project/vllm#49757).
    """
    fill_static(static, dummy, poison, padding)


@seam("graph.rebuilt-metadata")
def put_table(static: DecodeInputs, live: DecodeInputs) -> None:
    """Copy the block table into the captured tensor.

    The graph would not see a new one (sgl-project/sglang#26019).
    """
    static.block_table[: live.block_table.shape[0]] = live.block_table


def build_backend(static: Batch) -> None:
    """Refresh the attention backend's copy of the slots, as when a step's metadata is built."""
    if static.backend_slots is not None:
        static.backend_slots.copy_(static.slot_mapping)


@seam("null.warmup-writes-slot-zero")
def dummy_slots(num_tokens: int, slot: int, device: torch.device) -> Tensor:
    """Slots [T] int64 of a dummy batch or a warm-up: padding, never 0, which is real memory
    (vllm-project/vllm#38719).
    """
    return torch.full((num_tokens,), slot, dtype=torch.int64, device=device)


def dummy_batch(
    size: int,
    embedding: torch.nn.Embedding,
    num_columns: int,
    query_len: int = 1,
    has_window: bool = False,
    padding: Padding = NO_KEYS,
    has_adapters: bool = False,
) -> Batch:
    """A decode batch of token 0 that stores nothing, for idle data-parallel ranks and for
    captures.
    """
    device = embedding.weight.device
    rows = size * query_len

    def filled(shape: tuple[int, ...], value: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=device)

    slots = dummy_slots(rows, padding_slot(padding), device)
    return Batch(
        hidden=embedding(filled((rows,), 0, torch.int64)),
        positions=filled((rows,), 0, torch.int64),
        slot_mapping=slots,
        decode=DecodeInputs(
            block_table=filled((size, num_columns), NULL_BLOCK),
            # A dummy sees its own tokens, so the capture runs all code that a live step does.
            seq_lens=filled((size,), query_len),
            state_blocks=filled((size,), NULL_BLOCK),
            num_live=filled((1,), rows),
            output=None,
            metadata=DecodeMetadata(),
            window_table=filled((size, num_columns), NULL_BLOCK) if has_window else None,
            query_len=query_len,
        ),
        window_slots=slots.clone() if has_window else None,
        # Memory of its own, so that a copy that was not refreshed is seen
        # (vllm-project/vllm-ascend#15417).
        backend_slots=slots.clone(),
        adapters=torch.zeros_like(slots) if has_adapters else None,
        next_tokens=torch.zeros_like(slots),
    )
