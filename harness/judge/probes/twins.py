"""Replayed steps run again: eagerly on the same memory, and with another number of padded
requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.engine_params import EngineParams
from harness.engine.batch import (
    Batch,
    DecodeMetadata,
    Padding,
    dummy_batch,
    fill_static,
    map_tensors,
)
from harness.engine.memory import PagedMemory
from harness.engine.paged_model import Forwarded, PagedModel
from harness.engine.probe import Probe
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.sequence import ScheduledSequence, Step
from harness.engine.speculation import GraphDrafter, greedy_tokens
from harness.evidence.addresses import Binding
from harness.evidence.pairs import Pair
from harness.evidence.replay import ReplayedStep
from harness.judge.probes.addresses import GraphAddresses
from harness.memory.graph.interface import Graph

MOST_PADDED = 3
"""How many steps of an engine are repeated with other padding. Later steps show nothing new."""
MORE_ROWS = 3
"""The least room for padding in a batch, so that several lengths of padding can be tried."""


class Twins(Probe):
    """Each replay beside an eager run, and the first ones without padding beside a run with
    padding.

    Padding is compared within `padding_bound`, a row of the tolerance table, or bit by bit if it is
    empty. `poison` is what padded rows hold. In a case with changes graphs must read the weights
    that there are now.
    """

    def __init__(self, params: EngineParams, poison: Poison, padding_bound: str) -> None:
        self.replays: list[ReplayedStep] = []
        self.drafts: list[ReplayedStep] = []
        """The guesses that a drafter's graph made behind a replay, beside the guesses from the
        eager step.
        """
        self.bindings: list[Binding] = []
        self.padded: list[Pair] = []
        self._poison = poison
        self._padding_bound = padding_bound
        self._params = params
        self._tried: dict[int, int] = {}
        self._step = -1
        self._ordered: list[ScheduledSequence] = []
        self._before: tuple[Batch, Batch, PagedMemory] | None = None
        """The inputs of the replay, and copies of them and of the memory from before it."""

    def on_start(
        self, model: PagedModel, memory: PagedMemory, pool: BlockPool, padding: Padding
    ) -> None:
        self._model = model
        self._memory = memory
        self._padding = padding
        self._addresses = GraphAddresses(model, self._params)

    def on_capture(self, inputs: Batch, graph: Graph) -> None:
        self._addresses.capture(inputs, graph)

    def before_step(self, step: Step) -> None:
        self._step += 1

    @contextlib.contextmanager
    def on_step(self, ordered: list[ScheduledSequence], batch: Batch) -> Iterator[None]:
        self._ordered = ordered
        yield
        self._ordered = []

    @contextlib.contextmanager
    def on_replay(self, inputs: Batch) -> Iterator[None]:
        """Copy what the replay of a step reads. The replay of a dummy step has no requests."""
        if self._ordered:
            self._before = inputs, copy_of_inputs(inputs), copy_of_memory(self._memory)
        yield

    def on_forwarded(self, forwarded: Forwarded) -> None:
        if self._before is None:
            return
        inputs, copied, memory = self._before
        self._before = None
        # The next replay writes over its outputs.
        replayed = forwarded.logits.clone()
        drafted = None if forwarded.drafted is None else forwarded.drafted.clone()
        # On copies: a twin writes latents, and the engine must go on with its own.
        self._run_padded(copied, memory)
        eager = self._model.forward(copied, copy_of_memory(memory))
        assert copied.decode is not None
        stale = self._addresses.stale_reads(inputs.num_decodes)
        site = "graph.pool" if stale else None
        # A stale read of the pool is told first: it explains a stale plan too.
        if not stale and self._addresses.is_stale(inputs.num_decodes, copied.decode.metadata.plan):
            site = "sched_meta"
        rows = self._inputs_of_rows(copied.decode.query_len)
        live = torch.arange(len(replayed)) < len(rows)
        runs = [eager]
        # A CPU repeats its bits, so there a difference needs no second run.
        if replayed.is_cuda and not torch.equal(replayed, eager.logits):
            # A second eager run shows whether the kernels repeat their bits at all.
            live &= decided_alike(forwarded, eager)
            runs.append(self._model.forward(copied, memory))
        self._eager = runs
        self.replays.append(
            ReplayedStep(
                step=self._step,
                name=f"decode logits of the graph of {len(replayed)}",
                replayed=replayed.cpu(),
                eager=eager.logits.cpu(),
                live=live,
                eager_again=runs[1].logits.cpu() if len(runs) > 1 else None,
                stale_site=site,
                stale=stale[0] if stale else "",
                inputs=rows,
            )
        )
        if drafted is not None:
            self._note_drafts(
                drafted, [run.drafted.cpu() for run in runs if run.drafted is not None]
            )
        self.bindings += self._addresses.bindings(inputs, self._step)

    def on_drafted(self, drafter: GraphDrafter, logits: Tensor) -> None:
        """Draft from the eager twin of the step too.

        A copy of hidden states or tokens that comes late shows here.

        logits [T, vocab] are float32.
        """
        runs = self._eager
        self._note_drafts(
            logits, [drafter.forward(run.hidden, greedy_tokens(run.logits)).cpu() for run in runs]
        )

    def _note_drafts(self, replayed: Tensor, eager: list[Tensor]) -> None:
        """Note the logits [n, vocab] of a drafter's graph beside those from each eager run of the
        newest step.
        """
        name = f"draft logits of the graph of {len(replayed)}"
        again = eager[1] if len(eager) > 1 else None
        step = replace(
            self.replays[-1], name=name, replayed=replayed.cpu(), eager=eager[0], eager_again=again
        )
        self.drafts.append(step)

    def _inputs_of_rows(self, query_len: int) -> tuple[int, ...]:
        """A number for each live row. Rows of requests with equal tokens have equal numbers."""
        # Requests with equal tokens must have equal rows, so they tell a batch that mixes them up.
        given = [(*item.sequence.tokens, *item.sequence.drafts) for item in self._ordered]
        return tuple(hash((tokens, row)) for tokens in given for row in range(query_len))

    def _run_padded(self, inputs: Batch, memory: PagedMemory) -> None:
        """Run the step on copies of `memory` without padding, and with a number of padded requests
        not yet tried.
        """
        num_live = len(self._ordered)
        workspace = self._model.kernels.workspace
        size = max(inputs.num_decodes, num_live + MORE_ROWS)
        size = size if workspace is None else min(size, workspace.num_requests)
        if len(self.padded) >= MOST_PADDED or size == num_live:
            return
        num_padded = self._tried[num_live] = self._tried.get(num_live, 0) % (size - num_live) + 1
        first, second = (
            self._forward(inputs, memory, num_live, size, count) for count in (0, num_padded)
        )
        assert inputs.decode is not None
        rows = num_live * inputs.decode.query_len
        self.padded.append(
            Pair(
                "padding",
                name=f"logits of step {self._step} beside {num_padded} padded requests",
                first=first.logits[:rows].cpu(),
                second=second.logits[:rows].cpu(),
                # Equal bits leave nothing to decide differently. Where bits may differ, a near tie
                # may be.
                live=decided_alike(first, second)[:rows]
                if self._padding_bound
                else torch.ones(rows, dtype=torch.bool),
                bound=self._padding_bound,
            )
        )

    def _forward(
        self, inputs: Batch, memory: PagedMemory, num_live: int, size: int, num_padded: int
    ) -> Forwarded:
        assert inputs.decode is not None
        twin = dummy_batch(
            size,
            self._model.model.embed_tokens,
            inputs.decode.block_table.shape[1],
            inputs.decode.query_len,
            padding=self._padding,
            has_window=inputs.window_slots is not None,
            has_adapters=inputs.adapters is not None,
        )
        assert twin.decode is not None
        # The static inputs of a graph hold the pages of earlier steps. These are in no pool, so a
        # read of one shows.
        for table in (twin.decode.block_table, twin.decode.window_table):
            if table is not None:
                table.fill_(memory.layout.num_blocks)
        if inputs.decode.output is not None:
            twin.decode.output = inputs.decode.output.new_zeros(
                size, *inputs.decode.output.shape[1:]
            )
        rest = repeated(inputs, num_live, size - num_padded, self._padding.slot)
        fill_static(twin, rest, self._poison, self._padding)
        return self._model.forward(twin, copy_of_memory(memory))


def copy_of_memory(memory: PagedMemory) -> PagedMemory:
    """A copy of all bytes of the pool, to repeat a step on."""
    # Poison included: a twin must read what the step itself read.
    return PagedMemory(memory.layout, memory.data.clone())


def copy_of_inputs(inputs: Batch) -> Batch:
    """A decode batch with copies of all tensors and without a plan."""
    assert inputs.decode is not None
    decode = map_tensors(inputs.decode, Tensor.clone, metadata=DecodeMetadata())
    return map_tensors(inputs, Tensor.clone, decode=decode)


def decided_alike(first: Forwarded, second: Forwarded) -> Tensor:
    """The rows [T] bool with the same experts and the same selected tokens in two forwards of one
    batch.
    """
    alike = torch.ones(len(first.logits), dtype=torch.bool)
    for one, other in zip(
        first.expert_ids + first.selected, second.expert_ids + second.selected, strict=True
    ):
        alike &= (one.sort(dim=-1).values == other.sort(dim=-1).values).all(dim=-1).cpu()
    return alike


def repeated(inputs: Batch, num_live: int, count: int, slot: int) -> Batch:
    """The first `num_live` requests of a decode batch, repeated to `count` requests.

    Repetitions are stored at `slot` and do not count as live.
    """
    assert inputs.decode is not None
    decode = inputs.decode
    query_len = inputs.decode.query_len
    device = inputs.hidden.device
    order = torch.arange(count, device=device) % num_live
    rows = (order[:, None] * query_len + torch.arange(query_len, device=device)).flatten()
    is_first = torch.arange(len(rows), device=device) < num_live * query_len
    of_requests = map_tensors(
        replace(decode, output=None),
        # The number of live rows is one number, and no row of a request.
        lambda tensor: tensor if tensor is decode.num_live else tensor[order],
        metadata=DecodeMetadata(),
    )
    return Batch(
        hidden=inputs.hidden[rows],
        positions=inputs.positions[rows],
        # A repetition must not store over the latents of the request that it repeats.
        slot_mapping=torch.where(is_first, inputs.slot_mapping[rows], slot),
        decode=of_requests,
        window_slots=None
        if inputs.window_slots is None
        else torch.where(is_first, inputs.window_slots[rows], slot),
        adapters=None if inputs.adapters is None else inputs.adapters[rows],
        next_tokens=None if inputs.next_tokens is None else inputs.next_tokens[rows],
    )
