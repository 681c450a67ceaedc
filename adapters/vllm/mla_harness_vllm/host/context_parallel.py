"""vLLM's arithmetic of context parallelism: every small case of it against the definition.

Token p of a request lies on rank `p // interleave % ranks`, as number `p // (interleave * ranks) *
interleave + p % interleave` there. The functions are vLLM's, its Triton kernels run under the
interpreter. `search` says which: tokens by rank (lengths), keys of each verified draft for the
sparse indexer (drafts), where each token is stored (slots), a context that is gathered from all
ranks in chunks (chunks), and which rank computes and stores a token of a prompt (partition).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch_poison.patterns import Poison
from vllm.model_executor.layers.attention import mla_attention
from vllm.v1.attention.backends.mla import flashmla, indexer
from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens
from vllm.v1.worker.gpu import buffer_utils, cp_utils
from vllm.v1.worker.gpu.block_table import BlockTables

from harness.api import Run
from mla_harness_adapters.host_parts import (
    Found,
    Without,
    lazy_plans,
    made_without_init,
    searched,
)
from mla_harness_adapters.releases import accepted
from mla_harness_vllm.host.idle_rows import uva_buffer
from mla_harness_vllm.host.prefill_step import attention, builder, step_metadata
from mla_harness_vllm.params import VllmHostParams
from mla_harness_vllm.releases import (
    LOCAL_LENGTHS,
    LOCALIZED_DECODES,
    PREFILL_RANKS,
    ROWS_OF_LENGTHS,
)

PAGE_SIZE = 16
CPU = torch.device("cpu")
PADDED = 2
"""Rows of a captured graph behind the requests."""
CONTEXTS = (0, 1, 33, 64, 130)
WORKSPACE_TOKENS = 96
"""Six pages, so two requests have three each: an odd number."""


@dataclass(frozen=True)
class Split:
    """Tokens dealt to ranks, `interleave` in a row."""

    ranks: int
    interleave: int

    def __str__(self) -> str:
        return f"{self.ranks} ranks, interleave {self.interleave}"

    def rank_and_place(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The rank of each of tokens [...], and its number there. All are int64 of one shape."""
        turn = tokens // self.interleave
        rest = tokens % self.interleave
        return turn % self.ranks, turn // self.ranks * self.interleave + rest

    def held(self, lengths: Tensor) -> Tensor:
        """How many of the first `lengths` [...] tokens each rank holds: int64 [..., ranks], by
        counting them.
        """
        ranks, _ = self.rank_and_place(torch.arange(int(lengths.max()) + 1))
        # Counted token by token, so that the definition shares no arithmetic with what is judged.
        before = torch.nn.functional.one_hot(ranks, self.ranks).cumsum(0).roll(1, 0)
        before[0] = 0
        return before[lengths.long()]


SPLITS = tuple(
    Split(ranks, interleave) for ranks in (2, 3, 4, 8) for interleave in (1, 2, 4, PAGE_SIZE)
)


def run(poison: Poison, params: VllmHostParams) -> Run:
    with Without("pin_memory"), mock.patch.object(buffer_utils.UvaBuffer, "__init__", uva_buffer):
        return searched(poison.pattern, SEARCHES[params.search]())


def _lengths() -> Found:
    """Tokens by rank: of the host's function, and of the runner's kernel, where padded rows have
    none.
    """
    on_device = LOCAL_LENGTHS.of(cp_utils)
    for split in SPLITS:
        # Three whole turns of all ranks and two tokens more: every remainder is there.
        lengths = torch.arange(3 * split.ranks * split.interleave + 2, dtype=torch.int32)
        held = split.held(lengths)
        yield (
            f"{split}: lengths",
            get_dcp_local_seq_lens(lengths, split.ranks, None, split.interleave),
            held,
        )
        # Behind the requests lie lengths of an earlier, larger batch.
        stale = torch.cat((lengths, torch.full((PADDED,), 77, dtype=torch.int32)))
        for rank in range(split.ranks):
            own = get_dcp_local_seq_lens(lengths, split.ranks, rank, split.interleave)
            yield f"{split}: lengths of rank {rank}", own, held[:, rank]
            out = torch.full_like(stale, 77)
            on_device(out, stale, len(lengths), split.ranks, rank, split.interleave)
            yield (
                f"{split}: lengths on rank {rank}",
                out,
                torch.cat((held[:, rank], torch.zeros(PADDED))),
            )


def _slots() -> Found:
    """The slot of each token on its rank, and -1 elsewhere: a prompt, tokens after a context, and
    padding.
    """
    blocks = torch.tensor([5, 2, 7, 1])
    for split in SPLITS:
        virtual = PAGE_SIZE * split.ranks
        num_tokens = len(blocks) * virtual
        for rank, start in itertools.product(range(split.ranks), (0, virtual - 3)):
            # From the first token, and from three tokens before the end of the first turn of pages.
            positions = torch.arange(start, num_tokens)
            owner, place = split.rank_and_place(positions)
            own = blocks[place // PAGE_SIZE] * PAGE_SIZE + place % PAGE_SIZE
            want = torch.cat((torch.where(owner == rank, own, -1), torch.full((PADDED,), -1)))
            tables = _tables(split, rank, num_tokens + PADDED)
            tables.append_block_ids(1, (blocks.tolist(),), overwrite=True)
            tables.apply_staged_writes()
            ends = torch.tensor([0, len(positions)], dtype=torch.int32)
            rows = torch.tensor([1], dtype=torch.int32)
            slots = tables.compute_slot_mappings(rows, ends, positions, len(want))
            yield f"{split}: slots of rank {rank} from token {start}", slots[0], want


def _tables(split: Split, rank: int, num_tokens: int) -> Any:
    later = accepted({"kernel_block_sizes": [PAGE_SIZE]}, BlockTables.__init__)
    given = {"cp_size": split.ranks, "cp_rank": rank, "cp_interleave": split.interleave, **later}
    return BlockTables([PAGE_SIZE], 2, num_tokens, [8], CPU, **given)


def _drafts() -> Found:
    """Keys of each new token on each rank: of kernels that take several new tokens, and one token a
    row.
    """
    for split in (Split(1, 1), *SPLITS):
        for new, native in ((1, True), (2, True), (3, True), (2, False), (3, False)):
            lengths = torch.arange(new, 2 * split.ranks * split.interleave + 5, dtype=torch.int32)
            counts = torch.full_like(lengths, new)
            if new == 3 and not native:
                counts = 1 + lengths % 3
            lengths, counts = (
                torch.cat((each, torch.zeros(PADDED, dtype=torch.int32)))
                for each in (lengths, counts)
            )
            # New token t sees all tokens before the new ones, and the new ones up to itself.
            keys = (lengths[:, None] - counts[:, None] + 1 + torch.arange(new)).clamp(min=0)
            keys[-PADDED:] = 0
            # Kernels of one token a row get the rows of the tokens that exist, one behind the
            # other.
            if not native:
                keys = keys[torch.arange(new) < counts[:, None]]
            held = split.held(keys)
            for rank in range(split.ranks):
                got = _decode_lengths(split, rank, lengths, counts, native)
                if got is None:
                    continue
                how = "at once" if native else "one a row"
                yield (
                    f"{split}: keys of {new} new tokens {how} on rank {rank}",
                    got.view(keys.shape),
                    held[..., rank],
                )


def _decode_lengths(
    split: Split, rank: int, lengths: Tensor, counts: Tensor, native: bool
) -> Tensor | None:
    """vLLM's lengths [R, new] or [T] of the sparse indexer's decode.

    None if this release has one rank only.
    """
    new = int(counts.max())
    room = 4 * len(lengths)
    made = made_without_init(
        indexer.DeepseekV32IndexerMetadataBuilder,
        vllm_config=mock.Mock(speculative_config=None),
        supports_varlen=False,
        arange_buffer=torch.arange(room, dtype=torch.int32),
        offsets_buffer=torch.arange(new, dtype=torch.int32),
        decode_lens_buffer=torch.zeros(room, dtype=torch.int32),
        decode_seq_lens_buffer=torch.zeros(room, dtype=torch.int32),
        expanded_block_table_buffer=torch.zeros(room, 1, dtype=torch.int32),
        dcp_world_size=split.ranks,
        dcp_rank=rank,
        dcp_rank_tensor=torch.tensor(rank, dtype=torch.int32),
        cp_kv_cache_interleave_size=split.interleave,
    )
    localize = LOCALIZED_DECODES.value(made)
    if localize is None and split.ranks > 1:
        return None
    if native and ROWS_OF_LENGTHS.of(indexer):
        made.decode_seq_lens_buffer = torch.zeros(room, new, dtype=torch.int32)
    num_tokens = int(counts.sum())
    found, *_ = made._prepare_decode_tensors(
        seq_lens=lengths,
        block_table=torch.zeros(len(lengths), 1, dtype=torch.int32),
        decode_lens=counts,
        decode_lens_cpu=counts,
        query_start_loc=(counts.cumsum(0) - counts).int(),
        num_decodes=len(lengths),
        num_decode_tokens=num_tokens,
        use_native=native,
        next_n=new,
        max_decode_len=new,
    )
    own: Tensor = (
        found if localize is None else localize(found, len(lengths), not native or new > 1)
    )
    return own


def _chunks() -> Found:
    """How often each token of two contexts is gathered from the ranks in all chunks: once; -1 for a
    refused step.
    """
    for split in SPLITS:
        if (
            split.ranks == 3
            or split.interleave == 2
            or split.ranks * split.interleave > WORKSPACE_TOKENS
        ):
            # vLLM's ranks divide its heads, and its workspace holds more than a turn of all ranks.
            continue
        pairs = list(itertools.product(CONTEXTS, CONTEXTS))
        found = torch.zeros(len(pairs), 2 * max(CONTEXTS), dtype=torch.int64)
        want = torch.zeros_like(found)
        for row, contexts in enumerate(pairs):
            for request, context in enumerate(contexts):
                want[row, request * max(CONTEXTS) :][:context] = 1
            found[row] = _gathered(split, contexts)
        yield f"{split}: tokens of a context, in pairs", found, want


def _gathered(split: Split, contexts: tuple[int, int]) -> Tensor:
    """How often vLLM's loop over chunks hands over each token of two contexts: int64 [2 *
    longest].
    """
    times = torch.zeros(2 * max(CONTEXTS), dtype=torch.int64)
    if not any(contexts):
        return times
    ranks = _Ranks(split, contexts)
    # The gathered part of each rank lies behind the part for all.
    rows = WORKSPACE_TOKENS + WORKSPACE_TOKENS // split.ranks
    made = builder(
        ranks,
        dcp_world_size=split.ranks,
        dcp_rank=0,
        dcp_local_block_size=split.interleave,
        dcp_virtual_block_size=split.interleave * split.ranks,
        cp_kv_cache_interleave_size=split.interleave,
        dcp_manager=ranks,
        reorder_batch_threshold=1,
        page_size=PAGE_SIZE,
        chunked_prefill_workspace_size=WORKSPACE_TOKENS,
        chunked_prefill_workspace=torch.zeros(rows, 2),
    )
    sizes = ("num_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
    impl = attention(ranks, dcp_world_size=split.ranks, **dict.fromkeys(sizes, 1))
    # Three and five new tokens. A request is known by its row of the block table.
    step = step_metadata(
        (3, 5), (contexts[0] + 3, contexts[1] + 5), torch.arange(2, dtype=torch.int32)[:, None]
    )
    with (
        lazy_plans(flashmla),
        mock.patch.object(mla_attention.ops, "cp_gather_cache", ranks.cp_gather_cache),
        mock.patch.object(mla_attention, "get_dcp_group", lambda: ranks),
    ):
        try:
            impl._context_parallel_compute_prefill_context(
                torch.zeros(8, 1, 2),
                torch.zeros(1, PAGE_SIZE, 2),
                made.build(0, step),
                None,
                split.ranks,
            )
        # vLLM asserts what it cannot gather. The search counts the step as -1, so it is a finding.
        except AssertionError:
            return times - 1
    return times.index_add_(0, ranks.tokens, torch.ones_like(ranks.tokens))


class _Ranks:
    """All ranks with their caches, the attention kernels, and the projection, which sees the
    gathered tokens.
    """

    weight = torch.zeros(1)

    def __init__(self, split: Split, contexts: tuple[int, int]) -> None:
        owner_and_place = [split.rank_and_place(torch.arange(context)) for context in contexts]
        self._held = [
            [
                request * max(CONTEXTS) + (owner == rank).nonzero().flatten()
                for request, (owner, _) in enumerate(owner_and_place)
            ]
            for rank in range(split.ranks)
        ]
        self.tokens = torch.zeros(0, dtype=torch.int64)

    def cp_gather_cache(
        self, *, dst: Tensor, block_table: Tensor, cu_seq_lens: Tensor, seq_starts: Tensor, **_: Any
    ) -> None:
        """vLLM's operator on this rank: dst [C, 2] float32, block_table [B, 1], cu_seq_lens [B +
        1], seq_starts [B], all three int32.

        What every rank gathers is noted: its tokens, or -1 behind its last. `dst` is left as it is.
        """
        del dst
        self._gathered = [
            torch.cat(
                [
                    _cut(held[int(row)], int(start), int(count))
                    for row, start, count in zip(
                        block_table[:, 0], seq_starts, cu_seq_lens.diff(), strict=False
                    )
                ]
            )
            for held in self._held
        ]

    def all_gather(self, local: Tensor, dim: int) -> Tensor:
        """The rows of all ranks, up to 0.27: local [T, 2] float32 -> float32 [ranks * T, 2].

        A row has the number of its token as latent.
        """
        gathered = torch.cat([rows[: len(local)] for rows in self._gathered])
        return gathered[:, None].expand(-1, 2).float()

    def kv_gather(self, out: Tensor, local: Tensor) -> None:
        """The same since 0.28, to out [ranks * T, 2] of local [T, 2], both float32."""
        out.copy_(self.all_gather(local, 0))

    def __call__(self, latents: Tensor) -> tuple[Tensor, None]:
        """The projection: notes which tokens [T, 1, 1] attention will see.

        A token of -1 counts for the last place.
        """
        self.tokens = torch.cat((self.tokens, latents.flatten().long() % (2 * max(CONTEXTS))))
        return latents.view(-1, 1).expand(-1, 2), None

    def prepare_metadata(self, metadata: Any) -> None:
        """Part of the attention kernels, as the next one."""

    def get_name(self) -> str:
        return "HARNESS"

    def run_prefill_context_chunk(self, *, q: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        """Zeros as output and log-sum-exp of q [T, 1, 2] float32: only tokens are looked at."""
        return torch.zeros(len(q), 1, 1), torch.zeros(1, len(q))


def _cut(tokens: Tensor, start: int, count: int) -> Tensor:
    """`count` of a rank's tokens, from `start` on, with -1 behind the last."""
    own = tokens[start : start + count]
    return torch.cat((own, torch.full((count - len(own),), -1)))


def _partition() -> Found:
    """How often each token of two prompts or decodes is stored, and whether its hidden state comes
    back.
    """
    for ranks, dcp, sharded in (
        (2, 1, False),
        (2, 1, True),
        (2, 2, False),
        (3, 1, False),
        (4, 1, True),
        (4, 2, False),
    ):
        most = 2 * ranks + 2
        batches = list(
            itertools.product(
                range(1, most), range(1, most), ((True, True), (False, True), (False, False))
            )
        )
        found, want = torch.zeros(2, len(batches), 2, 2 * most, dtype=torch.int64)
        for row, (first, second, prefills) in enumerate(batches):
            want[row, :, : first + second] = 1
            found[row] = _stored(
                ranks, dcp, sharded, np.array([first, second]), np.array(prefills), found[row]
            )
        yield (
            f"{ranks} ranks, {dcp} of decode, decodes {'dealt' if sharded else 'repeated'}: tokens",
            found,
            want,
        )


def _stored(
    ranks: int, dcp: int, sharded: bool, counts: Any, prefills: Any, times: Tensor
) -> Tensor:
    """Of each token [T], how many ranks store it, and how many of its hidden states come back:
    int64 [2, T].
    """
    manager = made_without_init(
        PREFILL_RANKS.module().PCPManager,
        pcp_world_size=ranks,
        dcp_world_size=dcp,
        device=CPU,
        shard_decode_requests=sharded,
    )
    starts = np.array([0, *counts.cumsum()])
    manager._build_batch_layout(counts, np.array([0, 3]), prefills, starts)
    rows = manager._padded_gather_idx
    tokens = torch.arange(starts[-1])
    stored = rows[manager._gathered_kv_write_mask]
    times[0].index_add_(0, stored, torch.ones_like(stored))
    times[1, : len(tokens)] = (
        rows[manager._hidden_restore_idx.clamp(0, len(rows) - 1)] == tokens
    ).long()
    return times


SEARCHES: dict[str, Callable[[], Found]] = {
    "lengths": _lengths,
    "drafts": _drafts,
    "slots": _slots,
    "chunks": _chunks,
    "partition": _partition,
}
