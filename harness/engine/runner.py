"""One step of the model: fill blocks with new owners, build the batch, replay a graph or run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor

from harness.core.engine_params import EngineParams
from harness.core.seams import seam
from harness.engine import batch as batches
from harness.engine.batch import Batch, Padding
from harness.engine.capture import DecodeGraphs, LazyPlans, PersistentPlans, Plans
from harness.engine.kernels import bind
from harness.engine.memory import CacheLayout, fill_pool, hand_over_blocks, initial_memory
from harness.engine.model.transformer import CausalLM
from harness.engine.observations import (
    Binding,
    ChoiceNotes,
    Observations,
    PaddedTwins,
    ReplayNote,
    ZeroedBlock,
    decided_alike,
    dirty_workspace,
    written_blocks,
)
from harness.engine.paged_model import Forwarded, PagedModel
from harness.engine.probe import Probe
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import NULL_BLOCK, num_pages
from harness.engine.schedule.scheduler import ScheduledSequence, Step
from harness.engine.speculation import Drafter, greedy_tokens
from harness.memory.graph.interface import GraphPool
from harness.memory.graph.launch import launches_shown_to
from harness.memory.graph.recording import new_pool
from harness.memory.poison.patterns import Poison


class ModelRunner:
    """Owns the pool's memory, the static inputs and the graphs. Keeps notes for judges in `observations`."""

    def __init__(
        self,
        model: CausalLM,
        params: EngineParams,
        pool: BlockPool,
        poison: Poison,
        max_model_len: int,
        observe: bool = True,
        probe: Probe | None = None,
    ) -> None:
        self._observe = observe
        self._probe = probe
        self._embedding = model.embed_tokens
        self._device = model.embed_tokens.weight.device
        self._query_len = 1 + params.speculative_tokens
        trash = trash_block(pool) if params.pad_tokens == "trash" else None
        self._padding = Padding(trash, params.pad_keys)
        self._pool = pool
        self._has_window = "window" in model.config.layer_types
        self._poison = poison
        self._num_columns = num_pages(max_model_len)
        layout = CacheLayout(model.config, params.kv, params.num_blocks, params.window_kv)
        self.memory = initial_memory(layout, pool.trap_block, poison, self._device)
        # Before warm-ups and captures. The null block must never change.
        self.null_block_at_start = self.memory.block(NULL_BLOCK)
        self.observations = Observations()
        self._choices = ChoiceNotes(self.observations, params.prefix_caching)
        self.drafts: dict[int, int] = {}
        """The drafter's latest guess for each request, not verified."""
        self.paged_model = self._model = PagedModel(model, params, bind(params, poison), poison, probe)
        self._params = params
        workspace = self._model.kernels.workspace
        max_requests = None if workspace is None else workspace.num_requests
        self.padded_twins = PaddedTwins(self._dummy, poison, self._padding, max_requests)
        num_requests = max(*params.capture_sizes, params.max_num_seqs)
        shape = (num_requests, self._query_len, params.num_heads, params.kv_lora_rank)
        self._output = torch.zeros(shape, device=self._device) if params.zero_fill_output else None
        self._drafter: Drafter | None = None
        self._graphs: DecodeGraphs | None = None
        self._sweep_free = free_memory_sweep(self._device, poison)
        graph_pool = new_pool(self._device, poison)
        if params.drafter:
            self._drafter = Drafter(model, num_requests * self._query_len, graph_pool)
        self._graph_pool = graph_pool
        self.capture()

    def capture(self) -> None:
        """Capture the decode graphs, if the case has some; after a change of addresses again."""
        if self._params.graph == "full":
            with launches_shown_to(self._probe):
                self._capture(self._params, self._graph_pool)

    def _capture(self, params: EngineParams, graph_pool: GraphPool) -> None:
        self._static = self._dummy(max(params.capture_sizes))
        assert self._static.decode is not None
        self._static.decode.output = None if self._output is None else self._output[: max(params.capture_sizes)]
        plans: Plans = LazyPlans()
        if params.capture == "persistent":
            kernels = self._model.kernels
            plans = PersistentPlans(kernels.mla_decode_plan, params.num_heads, kernels.plan_options)
        self._graphs = DecodeGraphs(self._model, self._static, self.memory, plans, graph_pool, bool(params.changes))
        # Larger graphs first, as in engines: smaller ones reuse their memory.
        for size in reversed(reachable_sizes(params.capture_sizes, params.max_num_seqs)):
            self._graphs.capture(size)
            if self._drafter is not None:
                self._drafter.capture(size * self._query_len)

    def run(self, step: Step, number: int) -> Tensor:
        """Run a step. Returns logits [n, vocab] in the step's order.

        A request has one row, for its last token, or a row for each query token if it verifies drafts.
        """
        self._sweep_free()
        hand_over_blocks(self.memory, step, self._poison)
        if self._observe:
            self._note_zeroed(step, number)
        if not step.scheduled:
            return torch.empty(0, self._embedding.num_embeddings, device=self._device)
        ordered = batches.order(step.scheduled)
        if self._poison.covers("kv.tail"):
            for item in ordered:
                length = item.sequence.num_computed_tokens + item.num_new_tokens
                self.memory.fill_tail(item.sequence, length, self._poison)
        batch = batches.build(ordered, self._embedding, self._num_columns, self._poison, bool(self._params.adapters))
        size = self._graph_size(batch)
        logits = self._run_probed(batch, ordered, size, number)
        if self._observe:
            num_decodes = batch.num_decodes if size is None else size
            self.observations.written += dirty_workspace(self._model.kernels.workspace, num_decodes, number)
        parts = torch.split(logits, [num_rows(item) for item in ordered])
        part_of = {id(item): part for item, part in zip(ordered, parts, strict=True)}
        return torch.cat([part_of[id(item)] for item in step.scheduled])

    def _run_probed(self, batch: Batch, ordered: list[ScheduledSequence], size: int | None, number: int) -> Tensor:
        probe = self._model.probe
        with launches_shown_to(self._probe):
            with probe.on_step(ordered, is_replay=size is not None):
                if size is None:
                    logits = self._run_eagerly(batch, ordered)
                else:
                    logits = self._run_graph(batch, ordered, size, number)
            probe.on_answers(logits)
        return logits

    def clear(self, blocks: list[int]) -> None:
        """Fill free `blocks` as before the first request."""
        self.memory.zero(blocks)
        self.memory.fill(blocks, "kv.free", self._poison)

    def unmap(self) -> None:
        """Fill the KV pool and the memory of graphs as memory that a sleep gave back."""
        fill_pool(self.memory, self._pool.trap_block, "kv.unmapped", self._poison)
        if self._graphs is not None:
            self._graphs.unmap(self._poison)

    def map_again(self) -> None:
        """After a wake, give the null block and the trap their content. Other blocks hold what memory held."""
        self.memory.zero((NULL_BLOCK, self._pool.trap_block))
        fill_pool(self.memory, self._pool.trap_block, "kv.unmapped", self._poison)

    def _dummy(self, size: int) -> Batch:
        return batches.dummy_batch(
            size,
            self._embedding,
            self._num_columns,
            self._query_len,
            self._has_window,
            self._padding,
            bool(self._params.adapters),
        )

    def run_dummy(self, number: int) -> None:
        """A decode step of one dummy token, as an idle data-parallel rank runs it."""
        before = self.memory.snapshot() if self._observe else None
        dummy = self._dummy(1)
        size = self._graph_size(dummy)
        with launches_shown_to(self._probe):
            if size is None or self._graphs is None:
                self._model.forward(dummy, self.memory)
            else:
                batches.fill_dummy(self._static, dummy, self._poison, self._padding)
                self._graphs.replay(size)
        if before is not None:
            written = written_blocks(before, self.memory, self._pool.free_blocks, number)
            self.observations.written += [note for note in written if note.name != f"block {self._padding.trash_block}"]

    def _graph_size(self, batch: Batch) -> int | None:
        """The size of the smallest graph that fits; None for an eager run."""
        if self._graphs is None or batch.prefill:
            return None
        return next((size for size in self._graphs.sizes if size >= batch.num_decodes), None)

    def _run_eagerly(self, batch: Batch, ordered: list[ScheduledSequence]) -> Tensor:
        if batch.decode is not None and self._output is not None:
            batch.decode.output = self._output[: batch.num_decodes]
        forwarded = self._model.forward(batch, self.memory)
        self.observations.num_mixed_steps += bool(batch.decode and batch.prefill)
        if self._observe:
            self._choices.note(forwarded, ordered)
        rows = logit_rows(ordered).to(self._device)
        logits = forwarded.logits[rows]
        if self._drafter is not None:
            tokens = greedy_tokens(logits)
            self._note_drafts(self._drafter.forward(forwarded.hidden[rows], tokens), ordered)
        return logits

    def _run_graph(self, batch: Batch, ordered: list[ScheduledSequence], size: int, number: int) -> Tensor:
        assert self._graphs is not None
        batches.fill_static(self._static, batch, self._poison, self._padding)
        replayed = self._replay_beside_eager(ordered, size, number) if self._observe else self._graphs.replay(size)
        logits = take_logits(replayed, batch.num_decode_tokens)
        if self._drafter is not None:
            tokens = greedy_tokens(replayed.logits)
            self._note_drafts(self._drafter.replay(replayed.hidden, tokens), ordered)
        return logits.clone()

    def _replay_beside_eager(self, ordered: list[ScheduledSequence], size: int, number: int) -> Forwarded:
        """Replay, and repeat the step eagerly on a copy of the memory."""
        assert self._graphs is not None
        inputs, memory = self._static.head(size).snapshot(), self.memory.snapshot()
        replayed = self._graphs.replay(size)
        self._choices.note(replayed, ordered)
        replayed_logits = replayed.logits.clone()
        self.padded_twins.note(self._model, inputs, memory, len(ordered), number)
        eager = self._model.forward(inputs, memory.snapshot())
        assert inputs.decode is not None
        stale = self._graphs.reads_stale_plan(size, inputs.decode.metadata.plan)
        again = alike = None
        if replayed_logits.is_cuda and not torch.equal(replayed_logits, eager.logits):
            # A second eager run shows whether the kernels repeat their bits at all.
            alike = decided_alike(replayed, eager)
            again = self._model.forward(inputs, memory).logits
        given = [(*item.sequence.tokens, *item.sequence.drafts) for item in ordered]
        rows = tuple(hash((tokens, row)) for tokens in given for row in range(self._query_len))
        note = ReplayNote(number, len(rows), replayed_logits, eager.logits, stale, again, alike, rows)
        self.observations.replays.append(note)
        self.observations.bindings += [
            Binding(number, f"{name} of the graph of {size}", site, captured, current)
            for name, site, captured, current in self._graphs.bindings(size)
        ]
        return replayed

    def _note_zeroed(self, step: Step, number: int) -> None:
        for block in step.blocks_to_zero:
            content = self.memory.block(block)
            note = ZeroedBlock(number, block, content.numel(), int(content.count_nonzero()))
            self.observations.zeroed.append(note)

    def _note_drafts(self, drafts: Tensor, ordered: list[ScheduledSequence]) -> None:
        """Keep the last draft of each request; `drafts` has the rows of `ordered`, then padding."""
        guesses = drafts.tolist()
        for item, end in zip(ordered, accumulate(num_rows(item) for item in ordered), strict=True):
            self.drafts[item.sequence.request] = guesses[end - 1]


def num_rows(item: ScheduledSequence) -> int:
    """How many rows of logits a request gets: one for its last token, or one for each token of a decode."""
    return item.num_new_tokens if item.is_decode else 1


def logit_rows(ordered: list[ScheduledSequence]) -> Tensor:
    """The rows [n] int64 of a batch of these requests that get logits."""
    rows: list[int] = []
    end = 0
    for item in ordered:
        end += item.num_new_tokens
        rows += range(end - num_rows(item), end)
    return torch.tensor(rows)


def free_memory_sweep(device: torch.device, poison: Poison) -> Callable[[], object]:
    """A function that fills the free memory of `device`. On a CPU it does nothing: each allocation is filled."""
    if device.type != "cuda" or poison.is_natural:
        return lambda: None
    from harness.memory.poison.cuda_sweep import CudaSweep, fill_word

    sweep, word = CudaSweep.of(device), fill_word(poison, "workspace")
    return lambda: sweep(word)


@seam("pad.shared-trash-slot")
def trash_block(pool: BlockPool) -> int:
    """Reserve the block for padded tokens. Unlike the null block it is never read (huggingface/transformers#46765)."""
    return pool.reserve()


def reachable_sizes(capture_sizes: tuple[int, ...], max_num_seqs: int) -> list[int]:
    """The graph sizes, rising, that a batch of at most `max_num_seqs` requests can need."""
    rising = sorted(set(capture_sizes))
    needed = [size for size in rising if size < max_num_seqs]
    return rising[: len(needed) + 1]


@seam("graph.shared-pool-overwrite")
def take_logits(forwarded: Forwarded, num_live: int) -> Tensor:
    """A copy of the logits [num_live, vocab] of the live rows.

    The drafter's replay may reuse the pool's memory before they are read (PR 53488).
    """
    return forwarded.logits[:num_live].clone()
