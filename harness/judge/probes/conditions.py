"""What the steps of an engine showed of its conditions: each step as it ran, whatever the scheduler
was asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from harness.core.conditions.engine import LAYERS, SPACE, STATE, Request, Step
from harness.core.conditions.table import key_of
from harness.core.engine_params import EngineParams
from harness.engine.batch import Batch, Padding
from harness.engine.memory import KV_DTYPES, PagedMemory
from harness.engine.paged_model import PagedModel
from harness.engine.probe import Probe, Sampled
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import PAGE_SIZE
from harness.engine.schedule.sequence import ScheduledSequence, Sequence
from harness.engine.schedule.sequence import Step as Scheduled
from harness.memory.graph.interface import Graph

SCALES = {
    "none": "none",
    "fp8_per_tensor": "one scale",
    "fp8_per_token": "scale of rows",
    "mxfp8": "scale of rows",
}


class StepConditions(Probe):
    """`points` has the coded points of all steps.

    Options that hold for a whole engine are read from `params`.

    It keeps the row of each request in the step before, the number of its pages, and the first
    owner of each block.
    """

    def __init__(self, params: EngineParams) -> None:
        self.points: set[str] = set()
        self._params = params
        self._sizes: set[int] = set()
        self._rows: dict[Sequence, int] = {}
        self._pages: dict[Sequence, int] = {}
        self._owner: dict[int, Sequence] = {}
        self._after_dummy = self._is_cancelled = False
        self._step: Step | None = None
        self._requests: dict[Sequence, Request] = {}

    @property
    def shown(self) -> dict[str, tuple[str, ...]]:
        """The points under the name of their classes."""
        return {key_of(SPACE): tuple(sorted(self.points))}

    def on_start(
        self, model: PagedModel, memory: PagedMemory, pool: BlockPool, padding: Padding
    ) -> None:
        config = model.model.config
        names = {dtype: kv for kv, dtype in KV_DTYPES.items()}
        kinds = {LAYERS[kind]: layer for layer, kind in enumerate(config.layer_types)}
        layers = {
            kind: None if kind == STATE else names[memory.latents(n).dtype]
            for kind, n in kinds.items()
        }
        limits = {"window": config.sliding_window, "sparse": config.index_topk}
        params = self._params
        self._engine: dict[str, Any] = {
            "layers": layers,
            "limits": {kind: limit for kind, limit in limits.items() if kind in kinds},
            "experts": max((len(experts.ranks) for experts in model.routed_experts()), default=0),
            "padding": "key"
            if padding.num_keys
            else "skip"
            if padding.trash_block is None
            else "trash",
            "num_drafts": params.speculative_tokens,
            "activations": SCALES[params.quantize],
            "ranks": params.context_ranks,
            "context_chunk": params.context_chunk,
            "plan": params.capture,
            "persistent_output": params.zero_fill_output,
        }

    def on_capture(self, inputs: Batch, graph: Graph) -> None:
        self._sizes.add(inputs.num_decodes)

    def before_step(self, step: Scheduled) -> None:
        owned = {block for item in step.scheduled for block in item.sequence.blocks}
        # A block was given to a request that is no longer in the step, so it left after it was
        # scheduled.
        self._is_cancelled = not owned.issuperset(step.new_attention_blocks)

    @contextlib.contextmanager
    def on_dummy_step(self) -> Iterator[None]:
        yield
        self._after_dummy = True

    @contextlib.contextmanager
    def on_step(self, ordered: list[ScheduledSequence], batch: Batch) -> Iterator[None]:
        change = self._change(ordered)
        self._requests = {item.sequence: self._request(item) for item in ordered}
        self._step = Step(
            list(self._requests.values()),
            change=change,
            after_dummy=self._after_dummy,
            sizes=sorted(self._sizes),
            **self._engine,
        )
        self._rows = {item.sequence: row for row, item in enumerate(ordered)}
        self._after_dummy = False
        yield

    @contextlib.contextmanager
    def on_replay(self, inputs: Batch) -> Iterator[None]:
        if self._step is not None:
            self._step.replayed = inputs.num_decodes
        yield

    def on_sampled(self, sampled: list[Sampled]) -> None:
        if self._step is None:
            return
        for one in sampled:
            request = self._requests[one.sequence]
            if request.drafts:
                request.confirmed = one.sequence.num_computed_tokens - request.computed - 1
            request.given = len(one.tokens)
            request.ends = one.sequence.is_finished
        self.points.update(SPACE.shown({"step": self._step}))
        self._step = None

    def _request(self, item: ScheduledSequence) -> Request:
        """A request before its step."""
        sequence = item.sequence
        computed = item.sequence.num_computed_tokens
        hit = item.sequence.num_shared_tokens
        is_new = computed == hit
        last = (computed + item.num_new_tokens - 1) // PAGE_SIZE
        blocks = {
            "full": sequence.blocks[last],
            "sparse": sequence.blocks[last],
            STATE: sequence.state_block,
        }
        if sequence.window_blocks:
            blocks["window"] = sequence.window_blocks[last]
        owners = {
            kind: self._owner.setdefault(block, sequence)
            for kind, block in blocks.items()
            if block is not None
        }
        for block in (*sequence.blocks, *sequence.window_blocks):
            self._owner.setdefault(block, sequence)
        # Pages that were found in the cache are not given.
        before = hit // PAGE_SIZE if is_new else self._pages[sequence]
        self._pages[sequence] = len(sequence.blocks)
        return Request(
            computed,
            item.num_new_tokens,
            len(sequence.tokens),
            sequence.num_generated_tokens,
            hit,
            len(sequence.drafts),
            len(sequence.blocks) - before,
            sequence.num_evicted_pages,
            sequence.preempted_at,
            item.is_decode,
            None if is_new else self._rows.get(sequence),
            {kind: owner is not sequence for kind, owner in owners.items()},
        )

    def _change(self, ordered: list[ScheduledSequence]) -> str:
        """What became of the requests of the step before, the rarest first."""
        now = {item.sequence for item in ordered}
        gone = [sequence for sequence in self._rows if sequence not in now]
        found = {
            "cancelled": self._is_cancelled,
            "aborted": any(
                not one.is_finished and not one.blocks and one.num_computed_tokens for one in gone
            ),
            "preempted": any(not one.is_finished and not one.num_computed_tokens for one in gone),
            "joined": any(sequence not in self._rows for sequence in now),
            "left": bool(gone),
        }
        return next((change for change, is_so in found.items() if is_so), "none")
