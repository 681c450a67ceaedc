"""One step of the model: hand over blocks, build the batch, replay a graph or run eagerly."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.engine_params import EngineParams
from harness.core.seams import seam
from harness.engine import batch as batches
from harness.engine.batch import Batch, Padding
from harness.engine.capture import DecodeGraphs, LazyPlans, PersistentPlans, Plans, reachable_sizes
from harness.engine.kernels import bind
from harness.engine.memory import CacheLayout, PagedMemory, zero_listed_blocks
from harness.engine.model.next_token import NextTokenModule
from harness.engine.model.transformer import CausalLM
from harness.engine.paged_model import Forwarded, PagedModel
from harness.engine.poisoned import fill, fill_handed_over, fill_pool, fill_tails, free_memory_sweep
from harness.engine.probe import Probe
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import NULL_BLOCK, num_pages
from harness.engine.schedule.sequence import ScheduledSequence, Step
from harness.engine.speculation import GraphDrafter, greedy_tokens
from harness.memory.graph.recording import new_pool


class ModelRunner:
    """Owns the pool's memory, the static inputs and the graphs."""

    def __init__(
        self,
        model: CausalLM,
        params: EngineParams,
        pool: BlockPool,
        poison: Poison,
        max_model_len: int,
        probe: Probe,
        module: NextTokenModule | None = None,
    ) -> None:
        self._params = params
        self._pool = pool
        self._poison = poison
        self._probe = probe
        self._embedding = model.embed_tokens
        device = model.embed_tokens.weight.device
        self._query_len = 1 + params.speculative_tokens
        self._has_window = "window" in model.config.layer_types
        self._num_columns = num_pages(max_model_len)
        self._padding = Padding(
            trash_block(pool) if params.pad_tokens == "trash" else None, params.pad_keys
        )
        layout = CacheLayout(
            model.config,
            params.kv,
            params.num_blocks,
            params.window_kv,
            num_drafters=int(module is not None),
        )
        self.memory = PagedMemory(layout, device=device)
        fill_pool(self.memory, pool.trap_block, "kv.free", poison)
        self._sweep_free = free_memory_sweep(device, poison)
        self.paged_model = PagedModel(
            model, params, bind(params, poison, device), poison, probe.on_forward, module
        )
        probe.on_start(self.paged_model, self.memory, pool, self._padding)
        # The persistent output serves graphs and eager steps, so it is as large as the larger of
        # both.
        num_requests = max(*params.capture_sizes, params.max_num_seqs)
        shape = (num_requests, self._query_len, params.num_heads, params.kv_lora_rank)
        self._output = torch.zeros(shape, device=device) if params.zero_fill_output else None
        self._graph_pool = new_pool(device, poison)
        self._drafter: GraphDrafter | None = None
        if params.drafter:
            self._drafter = GraphDrafter(model, num_requests * self._query_len, self._graph_pool)
        self.draft_logits: Tensor | None = None
        """The module's logits [n, vocab] for the token after the next, in the order of the newest
        step's logits.
        """
        self.drafts: Tensor | None = None
        """The drafter's guess [n] int64 after each row of the newest step's logits, not verified.
        """
        self._graphs: DecodeGraphs | None = None
        self.capture()

    def capture(self) -> None:
        """Capture the decode graphs, if the case has some; after a change of addresses again."""
        params = self._params
        if not params.has_graph:
            return
        # One set of inputs for all graphs: smaller sizes are views of its first rows.
        self._static = self._dummy(max(params.capture_sizes))
        assert self._static.decode is not None
        self._static.decode.output = (
            None if self._output is None else self._output[: max(params.capture_sizes)]
        )
        plans: Plans = LazyPlans()
        if params.capture == "persistent":
            kernels = self.paged_model.kernels
            plans = PersistentPlans(kernels.mla_decode_plan, params.num_heads, kernels.plan_options)
        in_parts = params.graph == "breakable"
        self._graphs = DecodeGraphs(
            self.paged_model,
            self._static,
            self.memory,
            plans,
            self._graph_pool,
            self._probe,
            in_parts,
        )
        sizes = reachable_sizes(params.capture_sizes, params.max_num_seqs)
        # Larger graphs first, as in engines: smaller ones reuse their memory.
        for size in sizes if params.capture_order == "rising" else reversed(sizes):
            self._graphs.capture(size)
            if self._drafter is not None:
                self._drafter.capture(size * self._query_len)

    def run(self, step: Step) -> Tensor:
        """Run a step. Returns logits [n, vocab] in the step's order.

        A request has one row, for its last token, or a row for each query token if it verifies
        drafts.
        """
        # Before the step's first allocation, so that its scratch comes from poisoned memory.
        self._sweep_free()
        # The poison goes into freed blocks before new owners zero and write theirs: one block can
        # be both.
        hand_over_blocks(self.memory, step, self._poison)
        self._probe.before_step(step)
        if not step.scheduled:
            return torch.empty(
                0, self._embedding.num_embeddings, device=self._embedding.weight.device
            )
        ordered = batches.order(step.scheduled)
        # Slots at or past a length are undefined at each step, not only when a page is new: drafts
        # that were rejected lie there.
        fill_tails(self.memory, ordered, self._poison)
        built = batches.build(
            ordered, self._embedding, self._num_columns, self._poison, bool(self._params.adapters)
        )
        batch = self.as_built(ordered, built)
        with self._probe.on_step(ordered, batch):
            size = self._graph_size(batch)
            logits = (
                self._run_eagerly(batch, ordered) if size is None else self._replay(batch, size)
            )
        self._probe.on_logits(logits)
        if self.draft_logits is not None:
            self.draft_logits = in_order(self.draft_logits, ordered, step.scheduled)
        return in_order(logits, ordered, step.scheduled)

    @seam("table.kept-by-request", "table.kept-by-lengths", "adapter.slots-kept-by-batch-size")
    def as_built(self, ordered: list[ScheduledSequence], batch: Batch) -> Batch:
        """The batch of these requests as it was built in this step, with nothing of earlier ones.

        A table that is kept must be found by all that it was made of. A request that starts over
        has other blocks (RBLN-SW/vllm-rbln#676), and so has one of the same length
        (NVIDIA/TensorRT-LLM#13696). As many requests may have other adapters
        (vllm-project/vllm#47724).
        """
        return batch

    def _run_eagerly(self, batch: Batch, ordered: list[ScheduledSequence]) -> Tensor:
        if batch.decode is not None and self._output is not None:
            batch.decode.output = self._output[: batch.num_decodes]
        forwarded = self.paged_model.forward(batch, self.memory)
        self._probe.on_forwarded(forwarded)
        rows = batches.logit_rows(ordered).to(forwarded.logits.device)
        logits = forwarded.logits[rows]
        if forwarded.drafted is not None:
            self.draft_logits = forwarded.drafted[rows]
        if self._drafter is not None:
            self.drafts = self._drafter.forward(
                forwarded.hidden[rows], greedy_tokens(logits)
            ).argmax(dim=-1)
        return logits

    def _replay(self, batch: Batch, size: int) -> Tensor:
        assert self._graphs is not None
        batches.fill_static(self._static, batch, self._poison, self._padding)
        forwarded = self._graphs.replay(size)
        self._probe.on_forwarded(forwarded)
        logits = take_logits(forwarded, batch.num_decode_tokens)
        if forwarded.drafted is not None:
            self.draft_logits = forwarded.drafted[: batch.num_decode_tokens]
        if self._drafter is not None:
            drafted = self._drafter.replay(forwarded.hidden, greedy_tokens(forwarded.logits))
            self._probe.on_drafted(self._drafter, drafted)
            self.drafts = drafted[: len(logits)].argmax(dim=-1)
        # The logits are memory of the graph's pool. A later replay, or the drafter's, may write
        # over them.
        return logits.clone()

    def _graph_size(self, batch: Batch) -> int | None:
        """The size of the smallest graph that fits; None for an eager run."""
        # Graphs have one number of tokens for each request. A step with a prompt runs without one.
        if self._graphs is None or batch.prefill:
            return None
        return next((size for size in self._graphs.sizes if size >= batch.num_decodes), None)

    def run_dummy(self) -> None:
        """A decode step of one dummy token, as an idle data-parallel rank runs it."""
        dummy = self._dummy(1)
        size = self._graph_size(dummy)
        with self._probe.on_dummy_step():
            if size is None:
                self.paged_model.forward(dummy, self.memory)
            else:
                assert self._graphs is not None
                batches.fill_dummy(self._static, dummy, self._poison, self._padding)
                self._graphs.replay(size)

    def _dummy(self, size: int) -> Batch:
        return batches.dummy_batch(
            size,
            self._embedding,
            self._num_columns,
            self._query_len,
            padding=self._padding,
            has_window=self._has_window,
            has_adapters=bool(self._params.adapters),
        )

    def clear(self, blocks: list[int]) -> None:
        """Fill free `blocks` as before the first request."""
        # Zeros first: a pattern that does not cover this memory leaves it as it was, and it was
        # zeros.
        self.memory.zero(blocks)
        fill(self.memory, blocks, "kv.free", self._poison)

    def unmap(self) -> None:
        """Fill the KV pool and the memory of graphs as memory that a sleep gave back."""
        fill_pool(self.memory, self._pool.trap_block, "kv.unmapped", self._poison)
        if self._graphs is not None:
            self._graphs.unmap(self._poison)

    def map_again(self) -> None:
        """After a wake, give the null block and the trap their content.

        Other blocks hold what memory held.
        """
        # As at the start, where the pool is zeros before the poison goes in.
        self.memory.zero((NULL_BLOCK, self._pool.trap_block))
        fill_pool(self.memory, self._pool.trap_block, "kv.unmapped", self._poison)


@seam("drafter.prefix-never-written")
def hand_over_blocks(memory: PagedMemory, step: Step, poison: Poison) -> None:
    """Prepare the blocks that changed their owner in `step`: old content, zeros, copied states.

    A block that a prompt found in the prefix cache keeps its content in all layers, the drafter's
    included (sgl-project/sglang#19897).
    """
    # The states are read before the poison goes in: a block that a prompt found a state in may be
    # given to another request in the same step.
    copies = states_to_copy(step)
    states = [memory.block(source) for source, _ in copies]
    fill_handed_over(memory, step, poison)
    zero_listed_blocks(memory, step)
    for (_, target), state in zip(copies, states, strict=True):
        memory.data[:, target] = state


@seam("prefix.state-of-last-occupant")
def states_to_copy(step: Step) -> tuple[tuple[int, int], ...]:
    """Pairs of blocks, from and to: after a hit, what is kept by request is the last occupant's
    (ROCm/ATOM#1417).
    """
    return step.state_copies


def in_order(
    rows: Tensor, ordered: list[ScheduledSequence], wanted: tuple[ScheduledSequence, ...]
) -> Tensor:
    """The rows [n, vocab] float32 of the requests `ordered`, in the order of `wanted`."""
    parts = torch.split(rows, [item.num_rows for item in ordered])
    part_of = {id(item): part for item, part in zip(ordered, parts, strict=True)}
    return torch.cat([part_of[id(item)] for item in wanted])


@seam("pad.shared-trash-slot")
def trash_block(pool: BlockPool) -> int:
    """Reserve the block for padded tokens.

    Unlike the null block it is never read (huggingface/transformers#46765).
    """
    return pool.reserve()


@seam("graph.shared-pool-overwrite")
def take_logits(forwarded: Forwarded, num_live: int) -> Tensor:
    """A copy of the logits [num_live, vocab] of the live rows.

    The drafter's replay may reuse the pool's memory before they are read (vllm-project/vllm#53488).
    """
    return forwarded.logits[:num_live].clone()
