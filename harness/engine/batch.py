"""From scheduled sequences to tensors: slots, lengths, block tables, and the padding of all of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from harness.engine.config import NULL_BLOCK, PAGE_SIZE
from harness.engine.scheduler import ScheduledSequence
from harness.poison.patterns import Poison


@dataclass(slots=True)
class DecodeMetadata:
    """The split-KV plan of a decode batch; None until the first layer of a forward plans."""

    plan: Any = None


@dataclass(slots=True)
class DecodeInputs:
    """B requests with one new token each, the first tokens of a batch; M table columns.

    block_table [B, M] int32; seq_lens [B] int32, the new token included, 0 for padding; state_blocks [B] int32, the
    null block for padding; num_live [1] int32, how many rows are requests. `output` is the persistent decode output
    [B, 1, H, R] where the engine keeps one, else None.
    """

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    state_blocks: torch.Tensor
    num_live: torch.Tensor
    output: torch.Tensor | None
    metadata: DecodeMetadata

    def head(self, size: int) -> DecodeInputs:
        """The first `size` rows, as views: a graph of that size reads these addresses."""
        output = None if self.output is None else self.output[:size]
        return replace(
            self,
            block_table=self.block_table[:size],
            seq_lens=self.seq_lens[:size],
            state_blocks=self.state_blocks[:size],
            output=output,
        )


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """One request's new tokens in a batch: rows `start` to `end`, on top of `context_len` cached tokens."""

    start: int
    end: int
    context_len: int
    blocks: tuple[int, ...]
    state_block: int


@dataclass(slots=True)
class Batch:
    """The inputs of one forward over T tokens: those of decoding requests, then prompts by falling context length.

    hidden [T, hidden] embeddings; positions [T] int64; slot_mapping [T] int64, -1 for tokens that are not stored.
    """

    hidden: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    decode: DecodeInputs | None
    prefill: tuple[PrefillRequest, ...] = ()

    @property
    def num_decodes(self) -> int:
        """Rows of decoding requests, padding included."""
        return 0 if self.decode is None else self.decode.seq_lens.shape[0]

    def head(self, size: int) -> Batch:
        """The first `size` rows of a decode batch, as views."""
        assert self.decode is not None
        return Batch(
            self.hidden[:size], self.positions[:size], self.slot_mapping[:size], self.decode.head(size), self.prefill
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """The input tensors of a decode batch by name."""
        assert self.decode is not None
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        own |= {field.name: getattr(self.decode, field.name) for field in fields(self.decode)}
        return {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}

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
        )
        return Batch(copies["hidden"], copies["positions"], copies["slot_mapping"], decode)


def order(scheduled: tuple[ScheduledSequence, ...]) -> list[ScheduledSequence]:
    """Decoding requests first, then prompts with the longest context first: those without any come last."""
    return sorted(scheduled, key=lambda item: (not item.is_decode, -item.sequence.num_computed_tokens))


def build(ordered: list[ScheduledSequence], embedding: torch.nn.Embedding, num_columns: int, poison: Poison) -> Batch:
    """The batch of these requests without padded rows; `num_columns` is the width of block tables."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    prefill = []
    for item in ordered:
        sequence, start = item.sequence, item.sequence.num_computed_tokens
        span = range(start, start + item.num_new_tokens)
        if not item.is_decode:
            end, state_block = len(tokens) + len(span), sequence.state_block or NULL_BLOCK
            prefill.append(PrefillRequest(len(tokens), end, start, tuple(sequence.blocks), state_block))
        tokens += [sequence.tokens[position] for position in span]
        positions += span
        slots += [sequence.blocks[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in span]
    decodes = [item for item in ordered if item.is_decode]
    device = embedding.weight.device
    return Batch(
        hidden=embedding(torch.tensor(tokens, device=device)),
        positions=torch.tensor(positions, device=device),
        slot_mapping=torch.tensor(slots, device=device),
        decode=_decode_inputs(decodes, num_columns, poison, device) if decodes else None,
        prefill=tuple(prefill),
    )


def _decode_inputs(
    decodes: list[ScheduledSequence], num_columns: int, poison: Poison, device: torch.device
) -> DecodeInputs:
    filler = table_filler(poison)
    rows = [item.sequence.blocks + [filler] * (num_columns - len(item.sequence.blocks)) for item in decodes]

    def int32(values: list[Any]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return DecodeInputs(
        block_table=int32(rows),
        seq_lens=int32([item.sequence.num_computed_tokens + 1 for item in decodes]),
        state_blocks=int32([item.sequence.state_block or NULL_BLOCK for item in decodes]),
        num_live=int32([len(decodes)]),
        output=None,
        metadata=DecodeMetadata(),
    )


def table_filler(poison: Poison) -> int:
    """What block-table entries past the last page hold: the null block, or the poison's trap."""
    if not poison.covers("block_table.pad"):
        return NULL_BLOCK
    return int(poison.empty(1, dtype=torch.int32, site="block_table.pad").item())


def padding_slot() -> int:
    """The slot of a token that must not be stored. A dummy's hidden state is garbage, so 0 would be a real address:
    that of the null block, which every padded table entry points to (vllm-project/vllm#39444)."""
    return -1


def pad_requests(decode: DecodeInputs, num_live: int, filler: int) -> None:
    """Make the rows from `num_live` on those of padding: no keys, and a table whose first entry is the null block.

    A kernel may look up the last page of an empty request too. -1 marks a slot to skip, never a block: kernels use
    block ids as offsets (vllm-project/vllm#35431).
    """
    decode.block_table[num_live:] = filler
    decode.block_table[num_live:, 0] = NULL_BLOCK
    decode.seq_lens[num_live:] = 0
    decode.state_blocks[num_live:] = NULL_BLOCK


def fill_static(static: Batch, live: Batch, poison: Poison) -> None:
    """Put a live decode batch into the static inputs of a graph, in place, every row and every column of them."""
    assert static.decode is not None and live.decode is not None
    num_live = live.num_decodes
    static.hidden[:num_live] = live.hidden
    static.positions[:num_live] = live.positions
    static.slot_mapping[:num_live] = live.slot_mapping
    static.decode.block_table[:num_live] = live.decode.block_table
    static.decode.seq_lens[:num_live] = live.decode.seq_lens
    static.decode.state_blocks[:num_live] = live.decode.state_blocks
    static.decode.num_live.copy_(live.decode.num_live)
    static.slot_mapping[num_live:] = padding_slot()
    pad_requests(static.decode, num_live, table_filler(poison))
    for padded in (static.hidden[num_live:], static.positions[num_live:]):
        if padded.numel():
            poison.fill_(padded, "graph.pad_rows")


def dummy_batch(size: int, embedding: torch.nn.Embedding, num_columns: int) -> Batch:
    """A decode batch of token 0 that stores nothing: what an idle data-parallel rank runs, and what a capture sees."""
    device = embedding.weight.device

    def filled(shape: tuple[int, ...], value: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype, device=device)

    return Batch(
        hidden=embedding(filled((size,), 0, torch.int64)),
        positions=filled((size,), 0, torch.int64),
        slot_mapping=filled((size,), padding_slot(), torch.int64),
        decode=DecodeInputs(
            block_table=filled((size, num_columns), NULL_BLOCK),
            seq_lens=filled((size,), 1),
            state_blocks=filled((size,), NULL_BLOCK),
            num_live=filled((1,), size),
            output=None,
            metadata=DecodeMetadata(),
        ),
    )
