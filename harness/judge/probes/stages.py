"""The first stage of a serving run whose output leaves its reference, though its inputs agree with
theirs.

Each stage is compared on the inputs that it had in the engine, so an error names the stage that
made it and none behind it: the tokens that the scheduler runs, the batch, the static inputs of a
graph, the plan, and in each layer the pages, the attention and the experts; then the output head,
the drafter, the hand-over of logits, and the sampler. Only a stage that was compared is named. On a
CPU: a replay on a GPU runs no Python, so what is between its stages is not seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from harness.engine.batch import Batch, Padding, slots_of, tensors_by_name
from harness.engine.memory import PagedMemory
from harness.engine.model.layers import MoE
from harness.engine.model.mla import MLAAttention
from harness.engine.model.transformer import CausalLM, DecoderLayer
from harness.engine.paged_model import Forwarded, PagedModel
from harness.engine.probe import Probe, Sampled
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.config import PAGE_SIZE
from harness.engine.schedule.sequence import ScheduledSequence, Sequence
from harness.engine.speculation import GraphDrafter, greedy_tokens
from harness.judge.dense_reference import DenseReference, visible_tokens
from harness.judge.probes.addresses import plan_tensors
from harness.memory.graph.launch import launch_unseen, launches_shown_to

MOST_SCORES = 2**25
"""The most scores of a compared attention: the reference takes all tokens of a request in each
step.
"""
EXACT = 1e-4
"""The most error of a float32 stage, as a share of the row's size: ten times what right stages
need.
"""


class Stages(Probe):
    """Finds the first wrong stage of one engine, for `reference`, the model that serves all its
    requests.

    `tolerance` is the most error of attention over a rounded cache, `rounding` of a stage with
    rounded activations, as shares of a row's size. `first` is the stage in a sentence, or empty;
    `site` is its memory, if it has one.
    """

    def __init__(self, reference: DenseReference, tolerance: float, rounding: float) -> None:
        self.first = self.site = ""
        self._reference = reference
        self._tolerance = max(tolerance, rounding)
        self._rounding = max(rounding, EXACT)
        self._layers = layers_of(reference.model)
        self._handles: list[Any] = []
        self._kept: dict[tuple[str, int], Tensor] = {}
        self._is_pending = self._is_on = False
        self._step = -1
        self._ordered: list[ScheduledSequence] = []
        self._tokens: dict[int, dict[int, int]] = {}
        """Request -> position -> the token that was computed there last."""
        self._blocks: dict[int, list[int]] = {}
        self._history: dict[tuple[int, int], dict[int, Tensor]] = {}
        """Layer and request -> position -> the normed input [hidden] float64 of the attention."""

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def on_start(
        self, model: PagedModel, memory: PagedMemory, pool: BlockPool, padding: Padding
    ) -> None:
        self._model = model
        self._memory = memory
        for number, layer in enumerate(layers_of(model.model)):
            self._keep_inputs_of(layer.input_layernorm, ("before", number))
            self._keep_inputs_of(layer.post_attention_layernorm, ("between", number))
        self._keep_inputs_of(model.model.norm, ("behind", 0))

    def _keep_inputs_of(self, module: nn.Module, key: tuple[str, int]) -> None:
        self._handles.append(
            module.register_forward_pre_hook(
                lambda _, args: launch_unseen(self._keep, key, args[0])
            )
        )

    def _keep(self, key: tuple[str, int], x: Tensor) -> None:
        """Keep x [T, hidden] of the step's own forward. A graph repeats this in each replay."""
        if self._is_on:
            # A copy: a graph's pool writes over it within the same replay.
            self._kept[key] = x.double()

    @contextlib.contextmanager
    def on_step(self, ordered: list[ScheduledSequence], batch: Batch) -> Iterator[None]:
        self._step += 1
        self._ordered = ordered
        self._batch = batch
        self._is_pending = True
        self._check_batch()
        yield
        self._is_pending = False

    @contextlib.contextmanager
    def _own_forward(self) -> Iterator[None]:
        """Keep what the first forward or replay of a step computes, not its twins."""
        self._is_on = self._is_pending
        self._is_pending = False
        yield
        self._is_on = False

    def on_forward(self, num_tokens: int) -> AbstractContextManager[None]:
        return self._own_forward() if not self._is_on else contextlib.nullcontext()

    @contextlib.contextmanager
    def on_replay(self, inputs: Batch) -> Iterator[None]:
        if self._is_pending:
            self._check_static(inputs)
        with self._own_forward():
            yield

    def on_forwarded(self, forwarded: Forwarded) -> None:
        self._hidden = forwarded.hidden.clone()
        self._logits = forwarded.logits.clone()
        # The first wrong stage explains all behind it.
        if self.first or not self._kept:
            return
        self._check_plan()
        for item, rows in self._spans():
            self._note_inputs(item, rows)
        moe = sparse = 0
        for number, layer in enumerate(self._layers):
            selected = None
            if getattr(layer.self_attn, "indexer", None) is not None:
                selected = forwarded.selected[sparse].long()
                sparse = sparse + 1
            for item, rows in self._spans():
                self._check_attention(number, layer.self_attn, item, rows, selected)
            ids = None
            if isinstance(layer.mlp, MoE):
                ids = forwarded.expert_ids[moe]
                moe = moe + 1
            self._check_mlp(number, layer, ids)
        hidden = self._kept["behind", 0]
        self._compare(
            "the output head", self._logits, self._reference.model.compute_logits(hidden), EXACT
        )

    def on_drafted(self, drafter: GraphDrafter, logits: Tensor) -> None:
        """Compare the draft logits [T, vocab] float32 with those of the same module outside its
        graph.
        """
        with launches_shown_to(None):
            want = drafter.forward(self._hidden, greedy_tokens(self._logits))
        self._compare("the drafter", logits, want.double(), EXACT)

    def on_logits(self, logits: Tensor) -> None:
        """Keep the rows of logits [n, vocab] float32 of each request: once it has tokens, it no
        longer says how many it had.
        """
        self._rows = {
            item.sequence: self._logits[: rows.stop][-item.num_rows :]
            for item, rows in self._spans()
        }

    def on_sampled(self, sampled: list[Sampled]) -> None:
        for item in sampled:
            # NaN equals nothing, itself neither, so it is replaced on both sides.
            if not torch.equal(self._rows[item.sequence].nan_to_num(), item.logits.nan_to_num()):
                self._found(
                    "what hands out the logits",
                    f"request {item.sequence.request} got rows of others",
                )
            own = item.logits.argmax(dim=-1).tolist()
            if item.tokens and item.tokens != own[: len(item.tokens)] and item.tokens != own[-1:]:
                self._found(
                    "the sampler", f"request {item.sequence.request} got {item.tokens}, not {own}"
                )

    def _spans(self) -> Iterator[tuple[ScheduledSequence, slice]]:
        end = 0
        for item in self._ordered:
            start = end
            end = end + item.num_new_tokens
            yield item, slice(start, end)

    def _found(self, stage: str, what: str, site: str = "") -> None:
        if not self.first:
            self.first = f"{stage}, step {self._step}: {what}"
            self.site = site

    def _check_batch(self) -> None:
        """The batch has the tokens, slots and blocks of its requests."""
        batch = self._batch
        row = 0
        embedding = self._model.model.embed_tokens.weight
        for item, rows in self._spans():
            sequence = item.sequence
            start = item.sequence.num_computed_tokens
            places = range(start, start + item.num_new_tokens)
            expected: dict[str, tuple[Tensor, Iterable[Any]]] = {
                "positions": (batch.positions[rows], places)
            }
            for name, blocks in (
                ("slot_mapping", sequence.blocks),
                ("window_slots", sequence.window_blocks),
            ):
                slots = getattr(batch, name)
                if blocks and slots is not None:
                    expected[name] = (slots[rows], slots_of(blocks, places))
            if item.is_decode and batch.decode is not None:
                decode = batch.decode
                expected["seq_lens"] = (decode.seq_lens[row : row + 1], [places.stop])
                expected["block_table"] = (
                    # What stands behind is padding, and may be anything.
                    decode.block_table[row, : len(sequence.blocks)],
                    sequence.blocks,
                )
                expected["state_blocks"] = (
                    decode.state_blocks[row : row + 1],
                    [sequence.state_block or 0],
                )
                row += 1
            tokens = _known(sequence)[start : places.stop]
            if not torch.equal(batch.hidden[rows], embedding[tokens]):
                self._found(
                    "the batch", f"hidden of request {sequence.request} is not of its tokens"
                )
            for name, (found, wanted) in expected.items():
                if found.tolist() != list(wanted):
                    self._found(
                        "the batch",
                        f"{name} of request {sequence.request} is not what the request has",
                    )

    def _check_static(self, inputs: Batch) -> None:
        batch = self._batch
        assert batch.decode is not None and inputs.decode is not None
        pairs = [(tensors_by_name(batch), tensors_by_name(inputs), batch.num_decode_tokens)]
        pairs.append(
            (tensors_by_name(batch.decode), tensors_by_name(inputs.decode), batch.num_decodes)
        )
        for live, static, rows in pairs:
            for name in live.keys() & static.keys() - {"output"}:
                if not torch.equal(static[name][:rows], live[name][:rows]):
                    self._found(
                        "the static inputs of the graph",
                        f"{name} is not what the batch of the step has",
                    )

    def _check_plan(self) -> None:
        decode = self._batch.decode
        kernels = self._model.kernels
        if decode is None or decode.metadata.plan is None:
            return
        with launches_shown_to(None):
            heads = self._model.model.config.num_heads
            fresh = kernels.mla_decode_plan(
                decode.seq_lens, num_heads=heads, **kernels.plan_options
            )
        own = plan_tensors(decode.metadata.plan)
        if any(not torch.equal(own[name], tensor) for name, tensor in plan_tensors(fresh).items()):
            self._found("the plan", "it is not the plan for the lengths of this step", "sched_meta")

    def _note_inputs(self, item: ScheduledSequence, rows: slice) -> None:
        """Note what the request's rows brought to each attention; earlier positions were noted when
        they ran.
        """
        sequence = item.sequence
        start = item.sequence.num_computed_tokens
        known = _known(sequence)
        computed = self._tokens.setdefault(sequence.request, {})
        held = self._blocks.get(sequence.request, [])
        self._blocks[sequence.request] = list(sequence.blocks)
        # A request that goes on only gets pages. If others stand in its table, it lost what it
        # computed.
        if start > sequence.num_shared_tokens and sequence.blocks[: len(held)] != held:
            self._found(
                "the scheduler",
                f"request {sequence.request} has {start} tokens in pages that it lost",
            )
        for position in (
            range(sequence.num_shared_tokens) if start == sequence.num_shared_tokens else ()
        ):
            self._take_shared(sequence, position)
        for row in range(rows.start, rows.stop):
            position = start + row - rows.start
            computed[position] = known[position]
            for number, layer in enumerate(self._layers):
                history = self._history.setdefault((number, sequence.request), {})
                history[position] = layer.input_layernorm(self._kept["before", number][row])
        for position in range(start):
            if computed.get(position, known[position]) != known[position]:
                where = f"request {sequence.request}, position {position}"
                self._found(
                    "the scheduler",
                    f"{where} has token {known[position]} and is not computed from it",
                )

    def _take_shared(self, sequence: Sequence, position: int) -> None:
        """Take the inputs of a request with the same tokens up to `position`."""
        prefix = sequence.tokens[: position + 1]
        for request, tokens in self._tokens.items():
            if (
                request != sequence.request
                and [tokens.get(p) for p in range(position + 1)] == prefix
            ):
                self._tokens[sequence.request][position] = prefix[-1]
                for number in range(len(self._layers)):
                    own = self._history.setdefault((number, sequence.request), {})
                    own[position] = self._history[number, request][position]
                return

    def _check_attention(
        self,
        number: int,
        attention: nn.Module,
        item: ScheduledSequence,
        rows: slice,
        selected: Tensor | None,
    ) -> None:
        """The pages of a request and the attention of its rows, on the layer's own inputs;
        `selected` [T, K].
        """
        sequence = item.sequence
        start = item.sequence.num_computed_tokens
        end = start + item.num_new_tokens
        history = self._history[number, sequence.request]
        heads = self._model.model.config.num_heads
        if (
            self.first
            or heads * end**2 > MOST_SCORES
            # The inputs of positions that were found in the cache may not be known.
            or any(position not in history for position in range(end))
        ):
            return
        x = torch.stack([history[position] for position in range(end)])[None]
        positions = torch.arange(end)
        if not isinstance(attention, MLAAttention):
            want = attention(x)[0]
        else:
            self._check_pages(number, attention, sequence, x[0], start)
            if selected is None:
                want = attention(x, positions)[0]
            else:
                seen = torch.full((1, end, selected.shape[-1]), -1)
                seen[0, start:] = torch.where(selected[rows] < end, selected[rows], -1)
                visible, _ = visible_tokens(attention, x, seen, self._reference.tie_margin)
                want = attention(x, positions, visible)[0]
        # What the attention added to the residual stream.
        got = self._kept["between", number][rows] - self._kept["before", number][rows]
        self._compare(
            f"attention of layer {number}", got, want[start:], self._tolerance, sequence, start
        )

    def _check_pages(
        self, number: int, attention: MLAAttention, sequence: Sequence, x: Tensor, start: int
    ) -> None:
        """The latents of x [end, hidden] lie in the pages of the request.

        A window has given some back.
        """
        blocks = sequence.blocks if attention.sliding_window is None else sequence.window_blocks
        kv_scale = self._memory.layout.scale_of(number) or 1.0
        want = torch.cat(attention.project_kv(x, torch.arange(len(x))), dim=-1)
        first = (
            sequence.num_evicted_pages * PAGE_SIZE if attention.sliding_window is not None else 0
        )
        places = range(first, len(x))
        pages = [blocks[position // PAGE_SIZE] for position in places]
        cache = self._memory.latents(number)
        # As bytes, because older torch cannot index fp8.
        raw = cache.view(torch.uint8) if cache.element_size() == 1 else cache
        stored = (
            raw[pages, [position % PAGE_SIZE for position in places]].view(cache.dtype).double()
            * kv_scale
        )
        tolerance = max(self._tolerance, EXACT)
        self._compare(
            f"the pages of layer {number}", stored, want[first:], tolerance, sequence, first, "kv"
        )

    def _check_mlp(self, number: int, layer: DecoderLayer, ids: Tensor | None) -> None:
        """The experts (`ids` [T, k]) or the MLP of a layer, for the live rows."""
        live = sum(item.num_new_tokens for item in self._ordered)
        x = self._kept["between", number][:live]
        normed = layer.post_attention_layernorm(x)
        # The next layer begins with this stream. Behind the last layer it is the final norm's
        # input.
        behind = self._kept.get(("before", number + 1), self._kept["behind", 0])[:live]
        if ids is None or not isinstance(layer.mlp, MoE):
            self._compare(
                f"the MLP of layer {number}", behind - x, layer.mlp(normed), self._rounding
            )
            return
        mixed, _ = self._reference.experts(layer.mlp, normed[None], ids[None, :live].long())
        self._compare(f"the experts of layer {number}", behind - x, mixed[0], self._rounding)

    def _compare(
        self,
        stage: str,
        got: Tensor,
        want: Tensor,
        allowed: float,
        sequence: Sequence | None = None,
        first: int = 0,
        kind: str = "",
    ) -> None:
        """Compare rows [n, K] in L2.

        A row of a request is named by its position, which counts from `first`.
        """
        live = sum(item.num_new_tokens for item in self._ordered) if sequence is None else len(want)
        got = got[:live].double()
        want = want[:live]
        # A row that cancels to nearly nothing holds rounding alone, so it is measured by the
        # others' size.
        error = (got - want).norm(dim=-1) / want.norm(dim=-1).clamp(
            min=1e-2 * float(want.norm(dim=-1).mean()) + 1e-9
        )
        bad = (~(error <= allowed)).nonzero().flatten().tolist()
        if bad:
            row = bad[0]
            where = (
                f"row {row}"
                if sequence is None
                else f"request {sequence.request}, position {first + row}"
            )
            self._found(
                stage,
                f"{where} is off by {float(error[row]):.2g} of its size, and its inputs are right",
            )


def layers_of(model: CausalLM) -> list[DecoderLayer]:
    return [layer for layer in model.layers if isinstance(layer, DecoderLayer)]


def _known(sequence: Sequence) -> list[int]:
    return sequence.tokens + sequence.drafts
