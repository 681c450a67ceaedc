"""Runs one step of the model: hands blocks over, builds the batch, replays a graph or runs eagerly."""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.engine import batch as batches
from harness.engine.batch import Batch
from harness.engine.block_pool import BlockPool
from harness.engine.capture import DecodeGraphs, LazyPlans, PersistentPlans, Plans
from harness.engine.config import num_pages
from harness.engine.drafter import Drafter
from harness.engine.kernels import bind
from harness.engine.memory import CacheLayout, hand_over_blocks, initial_memory
from harness.engine.observations import BindingNote, Observations, ReplayNote
from harness.engine.paged_model import Forwarded, PagedModel
from harness.engine.scheduler import ScheduledSequence, Step
from harness.graph.interface import GraphPool, new_pool
from harness.model.transformer import CausalLM
from harness.poison.patterns import Poison
from harness.scenario.params import EngineParams


class ModelRunner:
    """Owns the pool's memory, the static inputs and the graphs; leaves what judges want to see in `observations`."""

    def __init__(
        self,
        model: CausalLM,
        params: EngineParams,
        pool: BlockPool,
        poison: Poison,
        max_model_len: int,
        observe: bool = True,
    ) -> None:
        self._observe = observe
        self._embedding = model.embed_tokens
        self._device = model.embed_tokens.weight.device
        self._is_hybrid = model.config.is_hybrid
        self._poison = poison
        self._num_columns = num_pages(max_model_len)
        self.memory = initial_memory(
            CacheLayout.of(model.config, params.kv, params.num_blocks), pool.trap_block, poison, self._device
        )
        self.observations = Observations()
        self.drafts: dict[int, int] = {}
        """The drafter's latest guess for each request; nobody verifies it here."""
        self._model = PagedModel(model, params, bind(params, poison), poison)
        self._output = None
        num_rows = max(*params.capture_sizes, params.max_num_seqs)
        if params.zero_fill_output:
            self._output = torch.zeros(num_rows, 1, params.num_heads, params.kv_lora_rank, device=self._device)
        self._drafter: Drafter | None = None
        self._graphs: DecodeGraphs | None = None
        graph_pool = new_pool(self._device, poison)
        self._sweep_free = free_memory_sweep(self._device, poison)
        if params.drafter:
            self._drafter = Drafter(model, num_rows, graph_pool)
        if params.graph == "full":
            self._capture(params, graph_pool)

    def _capture(self, params: EngineParams, graph_pool: GraphPool) -> None:
        self._static = batches.dummy_batch(max(params.capture_sizes), self._embedding, self._num_columns)
        assert self._static.decode is not None
        self._static.decode.output = None if self._output is None else self._output[: max(params.capture_sizes)]
        plans: Plans = LazyPlans()
        if params.capture == "persistent":
            plans = PersistentPlans(self._model.kernels.mla_decode_plan, params.num_heads)
        self._graphs = DecodeGraphs(self._model, self._static, self.memory, plans, graph_pool)
        # Larger graphs first, as engines do, so that smaller ones can live in memory that exists already.
        for size in reversed(reachable_sizes(params.capture_sizes, params.max_num_seqs)):
            self._graphs.capture(size)
            if self._drafter is not None:
                self._drafter.capture(size)

    def run(self, step: Step, number: int) -> list[torch.Tensor]:
        """Run a step; returns logits [vocab] of the last token of each scheduled request, in the step's order."""
        self._sweep_free()
        hand_over_blocks(self.memory, step, self._is_hybrid, self._poison)
        ordered = batches.order(step.scheduled)
        if self._poison.covers("kv.tail"):
            for item in ordered:
                length = item.sequence.num_computed_tokens + item.num_new_tokens
                self.memory.fill_tail(item.sequence, length, self._poison)
        batch = batches.build(ordered, self._embedding, self._num_columns, self._poison)
        size = self._graph_size(batch)
        logits = self._run_eagerly(batch, ordered) if size is None else self._run_graph(batch, ordered, size, number)
        row_of = {id(item): row for item, row in zip(ordered, logits, strict=True)}
        return [row_of[id(item)] for item in step.scheduled]

    def run_dummy(self) -> None:
        """A decode step of one token that belongs to nobody, as a data-parallel rank runs while others work."""
        dummy = batches.dummy_batch(1, self._embedding, self._num_columns)
        size = self._graph_size(dummy)
        if size is None or self._graphs is None:
            self._model.forward(dummy, self.memory)
        else:
            batches.fill_static(self._static, dummy, self._poison)
            self._graphs.replay(size)

    def _graph_size(self, batch: Batch) -> int | None:
        """The smallest graph that a batch fits in; None runs it eagerly."""
        if self._graphs is None or batch.prefill:
            return None
        return next((size for size in self._graphs.sizes if size >= batch.num_decodes), None)

    def _run_eagerly(self, batch: Batch, ordered: list[ScheduledSequence]) -> list[torch.Tensor]:
        if batch.decode is not None and self._output is not None:
            batch.decode.output = self._output[: batch.num_decodes]
        forwarded = self._model.forward(batch, self.memory)
        self.observations.num_eager_steps += 1
        self.observations.num_mixed_steps += bool(batch.decode and batch.prefill)
        if self._observe:
            self._note_experts(forwarded, ordered)
        last_rows = torch.tensor([item.num_new_tokens for item in ordered]).cumsum(0) - 1
        if self._drafter is not None:
            self._note_drafts(self._drafter.forward(forwarded.hidden[last_rows]), ordered)
        return list(forwarded.logits[last_rows])

    def _run_graph(self, batch: Batch, ordered: list[ScheduledSequence], size: int, number: int) -> list[torch.Tensor]:
        assert self._graphs is not None
        batches.fill_static(self._static, batch, self._poison)
        replayed = self._replay_beside_eager(ordered, size, number) if self._observe else self._graphs.replay(size)
        logits = take_logits(replayed, len(ordered))
        if self._drafter is not None:
            self._note_drafts(self._drafter.replay(replayed.hidden), ordered)
        return list(logits.clone())

    def _replay_beside_eager(self, ordered: list[ScheduledSequence], size: int, number: int) -> Forwarded:
        """Replay, and run the same step eagerly on a copy of the same memory for the judges."""
        assert self._graphs is not None
        inputs, memory = self._static.head(size).snapshot(), self.memory.snapshot()
        replayed = self._graphs.replay(size)
        self._note_experts(replayed, ordered)
        replayed_logits = replayed.logits.clone()
        eager = self._model.forward(inputs, memory.snapshot())
        assert inputs.decode is not None
        stale = self._graphs.reads_stale_plan(size, inputs.decode.metadata.plan)
        again = None
        if replayed_logits.is_cuda and not torch.equal(replayed_logits, eager.logits):
            # Is it the kernels that do not repeat their bits? A second eager run of the same step tells.
            again = self._model.forward(inputs, memory).logits
        note = ReplayNote(number, len(ordered), replayed_logits, eager.logits, stale, again)
        self.observations.replays.append(note)
        self.observations.bindings += [BindingNote(number, size, *binding) for binding in self._graphs.bindings(size)]
        return replayed

    def _note_experts(self, forwarded: Forwarded, ordered: list[ScheduledSequence]) -> None:
        if not forwarded.expert_ids:
            return
        chosen = torch.stack(forwarded.expert_ids, dim=1).cpu()
        row = 0
        for item in ordered:
            noted = self.observations.expert_ids.setdefault(item.sequence.request, {})
            for position in range(item.num_new_tokens):
                noted[item.sequence.num_computed_tokens + position] = chosen[row]
                row += 1

    def _note_drafts(self, drafts: torch.Tensor, ordered: list[ScheduledSequence]) -> None:
        for item, draft in zip(ordered, drafts.tolist()[: len(ordered)], strict=True):
            self.drafts[item.sequence.request] = draft


def free_memory_sweep(device: torch.device, poison: Poison) -> Callable[[], object]:
    """What fills the free memory of `device` before a step. On a CPU nobody lists it, and kernels' own allocations are
    filled one by one."""
    if device.type != "cuda" or poison.is_natural:
        return lambda: None
    from harness.poison.cuda_sweep import CudaSweep, fill_word

    sweep, word = CudaSweep.of(device), fill_word(poison, "workspace")
    return lambda: sweep(word)


def reachable_sizes(capture_sizes: tuple[int, ...], max_num_seqs: int) -> list[int]:
    """The sizes, rising, that a batch of at most `max_num_seqs` requests can be padded to."""
    rising = sorted(set(capture_sizes))
    needed = [size for size in rising if size < max_num_seqs]
    return rising[: len(needed) + 1]


def take_logits(forwarded: Forwarded, num_live: int) -> torch.Tensor:
    """Logits [B, vocab] of the live rows, copied out before another graph of the pool may reuse their memory.

    The next replay is the drafter's, and comes before these are read (vllm-project/vllm#53488).
    """
    return forwarded.logits[:num_live].clone()
