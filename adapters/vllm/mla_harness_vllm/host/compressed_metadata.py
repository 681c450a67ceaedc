"""vLLM's metadata of DeepSeek V4: which slots each token reads and writes, against the plain
definition.

A layer reads a window of the last tokens, and states that each hold `ratio` tokens. The builders
are vLLM's, their Triton kernels run under the interpreter. A captured graph goes on reading the
views of the step that it was captured in, so each step is read through those as well
(vllm-project/vllm#51318).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch_poison.patterns import Poison
from vllm.v1.attention.backends.mla import sparse_swa
from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec

from harness.api import Refused, Run
from mla_harness_adapters.host_parts import Found, Without, searched
from mla_harness_adapters.releases import accepted
from mla_harness_vllm.host.prefill_step import step_metadata
from mla_harness_vllm.params import VllmHostParams
from mla_harness_vllm.releases import (
    COMPRESSOR,
    DRAFT_BLOCKS,
    SKIPPED_STATES,
    SPARSE_BUILDER,
    SPARSE_MLA,
    WINDOW_OF_PROMPTS,
)

WINDOW = 128
DRAFTS = 2
LONGEST = 40_000
MOST_REQUESTS = 16
CONFIG = mock.Mock(
    **{
        "model_config.max_model_len": LONGEST,
        "model_config.hf_config": SimpleNamespace(
            sliding_window=WINDOW, compress_ratios=[1, 4, 128], index_topk=512
        ),
        "model_config.get_num_attention_heads.return_value": 64,
        "scheduler_config.max_num_batched_tokens": 512,
        "scheduler_config.max_num_seqs": MOST_REQUESTS,
        "scheduler_config.async_scheduling": True,
        "speculative_config.num_speculative_tokens": DRAFTS,
        "speculative_config.parallel_drafting": False,
        "parallel_config.decode_context_parallel_size": 1,
    }
)


@dataclass(frozen=True)
class MetadataStep:
    """One step: of each request the tokens before it and the new ones, decodes first; `padded` rows
    of one token.
    """

    requests: tuple[tuple[int, int], ...]
    padded: int = 0

    def tokens(self) -> tuple[Tensor, Tensor]:
        """The request and the position of each new token, both int64 [T]."""
        rows = torch.arange(len(self.requests)).repeat_interleave(
            torch.tensor([new for _, new in self.requests])
        )
        return rows, torch.cat(
            [torch.arange(before, before + new) for before, new in self.requests]
        )

    def common(self, block_size: int, **other: Any) -> Any:
        rows, positions = self.tokens()
        # A padded row has no tokens before it and none that are new, and stores at slot -1.
        counts = (*self.requests, *[(0, 0)] * self.padded)
        given = {
            "slot_mapping": pad(slots(rows, positions, block_size), (0, self.padded), value=-1),
            "positions": pad(positions, (0, self.padded)),
            "num_actual_tokens": len(rows) + self.padded,
        }
        table = block_table(block_size)[: len(counts)].int()
        return step_metadata(
            [new for _, new in counts], [sum(count) for count in counts], table, **given | other
        )


MIXED = MetadataStep(((300, 3), (0, 1), (126, 2), (16_500, 1), (200, 130), (0, 70), (255, 129)))
DECODES = MetadataStep(((300, 1), (127, 1), (16_500, 1), (0, 1), (3, 1)), padded=3)
CAPTURED = MetadataStep(((LONGEST - 1, 1),) * (len(DECODES.requests) + DECODES.padded))
"""The dummy step in which the graph of `DECODES` is captured."""
BLOCK = MetadataStep(((300, 3), (0, 3), (127, 2), (16_500, 3)))


def block_table(block_size: int) -> Tensor:
    """Blocks int64 [requests, M], each of one request, in no order."""
    # In no order, so that a block number taken for its place in the table is a wrong slot.
    blocks = torch.randperm(
        MOST_REQUESTS * (LONGEST // block_size + 1), generator=torch.Generator().manual_seed(0)
    )
    # Block 0 is vLLM's null block. No request has it.
    return 1 + blocks.view(MOST_REQUESTS, -1)


def slots(rows: Tensor, places: Tensor, block_size: int, ratio: int = 1) -> Tensor:
    """Where states `places` [T, ...] of requests `rows` [T, ...] lie, `ratio` tokens each, in
    blocks of tokens.
    """
    size = block_size // ratio
    return block_table(block_size)[rows, places // size] * size + places % size


def listed(rows: Tensor, first: Tensor, end: Tensor, block_size: int, ratio: int = 1) -> Tensor:
    """The slots [T, N] of the states from `first` [T] to before `end` [T] of requests `rows` [T],
    then -1.
    """
    places = first[:, None] + torch.arange(int((end - first).max()))
    inside = places < end[:, None]
    return torch.where(inside, slots(rows[:, None], places.where(inside, 0), block_size, ratio), -1)


def read(found: Tensor, lengths: Tensor, want: Tensor) -> tuple[Tensor, Tensor]:
    """The slots [T, W] of `found` [T, ..., N] that `lengths` [T] let a kernel read, and those of
    `want` [R, M].
    """
    # A kernel reads as many entries as the length says. What lies behind may be stale, and is no
    # part of the comparison.
    width = max(want.shape[1], int(lengths.max()))
    rows = found.flatten(1)[:, :width].long()
    visible = torch.where(torch.arange(rows.shape[1]) < lengths[:, None], rows, -1)
    want = pad(want, (0, width - want.shape[1], 0, len(rows) - len(want)), value=-1)
    return pad(visible, (0, width - rows.shape[1]), value=-1), want


def run(poison: Poison, params: VllmHostParams) -> Run:
    with (
        Without("pin_memory"),
        # The plan of FlashMLA's kernel, which needs a GPU. No check of this module reads it.
        mock.patch.object(sparse_swa, "get_mla_metadata", lambda *_: (None, None)),
    ):
        return searched(poison.pattern, METADATA[params.metadata]())


def _builder(made: Any, cache: Any, block_size: int, ratio: int = 1) -> Any:
    """vLLM's builder for layers with blocks of so many tokens, in states of `ratio`."""
    named = {"compress_ratio": ratio, "tokens_per_state": ratio}
    named |= {"sliding_window": WINDOW} if cache is SlidingWindowMLASpec else {}
    spec = cache(
        block_size=block_size,
        num_kv_heads=1,
        head_size=512,
        dtype=torch.uint8,
        **accepted(named, cache),
    )
    return made(spec, [], CONFIG, torch.device("cpu"))


def _built(builder: Any, block_size: int) -> Iterator[tuple[str, MetadataStep, Any]]:
    """The metadata of a mixed step, and of padded decodes as a graph reads it that was captured in
    a longer step.
    """
    yield "", MIXED, builder.build(0, MIXED.common(block_size))
    # The graph keeps the views of this step. The builder must write the next step into the same
    # memory, which is why the first step's object is yielded.
    captured = builder.build(0, CAPTURED.common(block_size))
    builder.build(0, DECODES.common(block_size))
    yield " in a captured graph", DECODES, captured


def _window() -> Found:
    """The last tokens of each token, of decodes and of prompts."""
    for how, step, found in _built(
        _builder(sparse_swa.DeepseekSparseSWAMetadataBuilder, SlidingWindowMLASpec, 64), 64
    ):
        rows, positions = step.tokens()
        # The window counts the token itself.
        want = listed(rows, (positions - WINDOW + 1).clamp(min=0), positions + 1, 64)
        first = found.num_decode_tokens
        yield (
            f"window of decodes{how}",
            *read(found.decode_swa_indices, found.decode_swa_lens, want[:first]),
        )
        if found.num_prefills:
            before, new = torch.tensor(step.requests[found.num_decodes :]).T
            yield (
                f"tokens to gather for prompts{how}",
                found.prefill_gather_lens,
                # The first new token sees WINDOW - 1 tokens before it, and those must be gathered
                # too.
                new + before.clamp(max=WINDOW - 1),
            )
            if WINDOW_OF_PROMPTS.value(found) is not None:
                yield (
                    f"window of prompts{how}",
                    *read(found.prefill_swa_indices, found.prefill_swa_lens, want[first:]),
                )


def _drafts() -> Found:
    """The window before a block of drafts, and the whole block, of each token in it."""
    builder = _builder(sparse_swa.DeepseekSparseSWAMetadataBuilder, SlidingWindowMLASpec, 64)
    if not DRAFT_BLOCKS.of(builder):
        raise Refused(
            "this vLLM has no blocks of drafts for DeepSeek V4: metadata=drafts needs 0.26"
        )
    found = builder.build(0, BLOCK.common(64, causal=False))
    rows, _ = BLOCK.tokens()
    before, new = torch.tensor(BLOCK.requests)[rows].T
    # A drafter that predicts a block attends to the block in both directions.
    want = listed(rows, (before - WINDOW).clamp(min=0), before + new, 64)
    yield "window of drafts", *read(found.decode_swa_indices, found.decode_swa_lens, want)


def _compressed() -> Found:
    """Where the state of each `ratio` tokens is stored, by the last of them, and the states that a
    token reads.
    """
    module = SPARSE_MLA.module()
    made = SPARSE_BUILDER.of(module)
    for ratio in (4, 128):
        with mock.patch.multiple(
            module, create=True, num_compute_units=lambda *_: 1, get_mla_dims=mock.Mock()
        ):
            builder = _builder(made, MLAAttentionSpec, 256, ratio)
        for how, step, found in _built(builder, 256):
            rows, positions = step.tokens()
            count = (positions + 1) // ratio
            stored = torch.where(
                # Only the last token of each `ratio` stores a state. The others store at slot -1.
                (positions + 1) % ratio == 0,
                slots(rows, positions // ratio, 256, ratio),
                -1,
            )
            yield (
                f"slots of states of {ratio}{how}",
                found.slot_mapping,
                pad(stored, (0, step.padded), value=-1),
            )
            # States of 4 are chosen by the indexer at run time. The metadata lists those of 128
            # alone.
            if ratio == 4:
                continue
            indices = found.c128a_global_decode_topk_indices
            want = listed(rows, torch.zeros_like(count), count, 256, ratio)[: len(indices)]
            yield (
                f"states that decodes read{how}",
                *read(indices, found.c128a_decode_topk_lens, want),
            )
            if (local := found.c128a_prefill_topk_indices) is not None:
                numbers = torch.arange(local.shape[1]).expand(len(local), -1)
                want = torch.where(numbers < count[len(indices) :, None], numbers, -1)
                yield f"states that prompts read{how}", local, want


def _states() -> Found:
    """The request of each token that goes into a state, and whether a step is skipped in which a
    state ends.
    """
    module = COMPRESSOR.module()
    for block_size in (4, 8):
        builder = _builder(module.CompressorMetadataBuilder, SlidingWindowMLASpec, block_size)
        for how, step, found in _built(builder, block_size):
            rows, _ = step.tokens()
            yield (
                f"requests in blocks of {block_size}{how}",
                found.token_to_req_indices[: len(rows)],
                rows,
            )
    for before in range(120, 132):
        step = MetadataStep(((before, 1 + DRAFTS), (3, 1)))
        # The host has counted two drafts more, which were rejected.
        lengths = torch.tensor([before + 1 + 2 * DRAFTS, 4], dtype=torch.int32)
        found = builder.build(0, step.common(8, seq_lens_cpu_upper_bound=lengths))
        # A step may leave out the compressor only if no state ends in it, or that state is lost.
        ends = bool(((step.tokens()[1] + 1) % 128 == 0).any())
        is_skipped = SKIPPED_STATES.value(found) is False
        yield (
            f"states left out behind {before} tokens",
            torch.tensor([is_skipped and ends]),
            torch.zeros(1),
        )


METADATA = {"window": _window, "drafts": _drafts, "compressed": _compressed, "states": _states}
