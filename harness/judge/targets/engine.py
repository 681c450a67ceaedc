"""The reference engine as a target: serves a case's requests under poison and records the evidence
for oracles.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import KERNELS
from harness.core.cause_codes import Code, WhyNot
from harness.core.conditions import changes
from harness.core.conditions.table import key_of
from harness.core.cuda_failures import is_device_failure
from harness.core.engine_params import EngineParams
from harness.core.errors import (
    Refused,
    SystemUnderTestError,
)
from harness.core.params import KvType
from harness.core.records import FirstNan
from harness.engine.changes import with_adapter
from harness.engine.engine import ReferenceEngine
from harness.engine.memory import CacheLayout
from harness.engine.model.next_token import NextTokenModule
from harness.engine.model.transformer import CausalLM
from harness.engine.probe import Probe
from harness.engine.schedule.config import (
    PAGE_SIZE,
    EngineModelConfig,
    model_config,
    num_pages,
    why_not_together,
)
from harness.engine.schedule.sequence import Sequence
from harness.evidence.compare import token_margins
from harness.evidence.counts import Count
from harness.evidence.decisions import Decisions
from harness.evidence.experts import ChosenExperts
from harness.evidence.facts import Happened
from harness.evidence.observed import Observed
from harness.evidence.pairs import Pair
from harness.evidence.records import Run
from harness.evidence.replay import ReplayedStep
from harness.evidence.thresholds import bound
from harness.judge.by_heart import counts_of_drafts, drafted_beside_reference, knows_by_heart
from harness.judge.dense_reference import DenseReference
from harness.judge.probes.notes import Notes
from harness.judge.probes.recorder import recorder_on
from harness.judge.probes.stages import Stages
from harness.judge.probes.trace import Trace
from harness.judge.target import Target
from harness.judge.targets.answer_pairs import pair_of, pairs_of
from harness.judge.targets.engine_errors import errors_of_the_engine
from harness.judge.targets.serving import Served, serve
from harness.judge.targets.step_counts import counts_of_run, counts_of_steps, length
from harness.kernels.call import counting_launches
from harness.memory.graph.launch import launches_shown_to

WEIGHT_SEED = 0
"""Cases of one model share its weights and differ in their prompts."""

_TIE_MARGIN: dict[KvType, float] = {"fp32": 1e-3, "bf16": 0.02, "fp8_e4m3": 0.1}
"""Scores of routers and indexers have about unit variance.

A decision closer than the rounding of their inputs may fall either way. docs/tolerances.md has what
right kernels need.
"""
_TIE_MARGIN_FP8_ACTIVATIONS = 0.5
_COARSE_STAGE: dict[KvType, float] = {"fp32": 1e-4, "bf16": 0.05, "fp8_e4m3": 0.6}
"""The most error of a stage, as a share of a row: several times what right ones have, as blame must
not be wrong.
"""


class EngineTarget(Target):
    """A serving run of the reference engine, `epochs` times the same requests on one engine."""

    def __init__(self, case: Case, device: str = "cpu", **more: Any) -> None:
        super().__init__(case, device, **more)
        params = case.params_as(EngineParams)
        # Graphs for more requests than the case has would never run.
        self._params = params.but(max_num_seqs=min(params.max_num_seqs, len(params.requests)))
        self._config = model_config(self._params)

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> WhyNot | None:
        params = case.params_as(EngineParams)
        if device == "cuda" and (params.quantize, params.graph) == ("mxfp8", "full"):
            why = (
                "quantize_blocks/torch reads its offsets on the host, which a captured CUDA graph"
                " cannot"
            )
            return WhyNot(why, Code.UNSUPPORTED)
        if device == "cuda" and params.graph == "breakable":
            return WhyNot("graph breakable is simulated on a CPU", Code.UNSUPPORTED)
        if reason := why_not_together(model_config(params), params):
            return reason
        kernel = KERNELS.get(f"mla_decode/{params.decode_kernel}")
        if "window" in params.layers and "window" not in kernel.takes:
            return kernel.lacks("window")
        return None

    def first_writer(self, poison: Poison) -> FirstNan:
        reference = _reference(self._config, self._margin)
        rounding = 0.0 if self._params.quantize == "none" else _COARSE_STAGE["fp8_e4m3"]
        stages = Stages(reference, _COARSE_STAGE[self._coarsest], rounding)
        with recorder_on(self.device) as watching, contextlib.closing(stages):
            one_model = not (self._params.changes or self._params.adapters)
            try:
                self.run(
                    poison, watching, *([stages] if self.device == "cpu" and one_model else [])
                )
            except SystemUnderTestError:
                pass
            except RuntimeError as error:
                if not is_device_failure(error):
                    raise
            found = watching.report() or FirstNan()
            return found.but(stage=stages.first, stage_site=stages.site)

    def run(self, poison: Poison, probe: Probe | None = None, *more: Probe) -> Run:
        """Serve all requests `epochs` times under `poison` on a fresh engine.

        `probe` watches it and sees all launches, `more` watch it.
        """
        params = self._params
        poison = self._legitimate(poison)
        notes = Notes(
            params, poison, *([probe] if probe else []), *more, padding_bound=self._padding_bound
        )
        # Errors first: what the engine raises must be told as its own, whichever probe watches.
        with errors_of_the_engine(), counting_launches() as launched, launches_shown_to(probe):
            served = self._serve(poison, notes)
        engine = served.engine
        epochs = served.epochs
        answered = [_answered(epoch) for epoch in epochs]
        run = Run(poison.pattern, shown=notes.conditions.shown | _shown_changes(served))
        for epoch, sequences in enumerate(answered):
            name = f"epoch {epoch}" if epoch < params.epochs else "the epoch after the flush"
            run.evidence += self._observed(notes, name, sequences)
        if served.refusal is not None:
            # The engine stopped within a step, so nothing else is as it is after a run.
            run.refusal = served.refusal
            return run
        run.evidence += [*notes.writes.guards(), *notes.writes.zeroed]
        decisions = {
            made.request: made for observed in run.all(Observed) for made in observed.decisions
        }
        run.evidence += pairs_of(notes.answers, epochs, params, self._bound, decisions)
        run.evidence += notes.twins.padded
        if params.changes:
            try:
                run.evidence += self._beside_cold(served, poison, decisions)
            except Refused as refusal:
                run.refusal = refusal
        if notes.choices.routed:
            ids = torch.cat(notes.choices.routed)
            run.evidence.append(
                ChosenExperts("expert ids of all forwards", ids, self._config.num_experts)
            )
        run.evidence += [
            *served.counts,
            *served.counts_at_end(),
            *counts_of_run(params, launched, epochs),
            *counts_of_steps(params.steps, notes.answers.decided),
            *counts_of_drafts(params, notes.answers),
        ]
        replays = len(notes.twins.replays) if params.drafter or params.has_module else 0
        run.evidence.append(Count("replays of a drafter", replays, len(notes.twins.drafts)))
        run.evidence.append(Happened(dict(engine.scheduler.events + engine.pool.events)))
        run.evidence += [*notes.twins.replays, *notes.twins.drafts, *notes.twins.bindings]
        for replay in run.all(ReplayedStep):
            # An epoch repeats the answers of the one before.
            replay.name += f" in epoch {bisect.bisect(served.starts, replay.step) - 1}"
        return run

    def _serve(self, poison: Poison, notes: Notes) -> Served:
        longest = max(map(length, self._params.requests))
        model = _model(self._config, self.device)
        # The judge keeps the module on the CPU, beside its float64 reference.
        module = copy.deepcopy(self._module)
        served = None if module is None else module.to(self.device)
        engine = ReferenceEngine(model, self._params, poison, longest, notes, served)
        return serve(engine, notes, self._prompts(), self._checkpoint)

    @property
    def _module(self) -> NextTokenModule | None:
        params = self._params
        if not params.has_module:
            return None
        counts = (count for _, count in params.requests)
        requests = tuple(
            (tuple(prompt), count) for prompt, count in zip(self._prompts(), counts, strict=True)
        )
        # A module that never guesses right would leave the code behind an accepted draft unrun.
        return knows_by_heart(_model(self._config), params.speculative, requests)

    def _checkpoint(self, number: int) -> CausalLM:
        return _model(self._config, self.device, number)

    def _beside_cold(
        self, served: Served, poison: Poison, decisions: dict[int, Decisions]
    ) -> Iterator[Pair]:
        """Answers after all changes beside an engine that starts with the last weights and
        adapters.

        It is asked the very prompts: a conversation goes on with an answer that the weights before
        may have given.
        """
        engine = served.engine
        last = served.epochs[-1]
        # Without graphs it is cheaper, and `replay` compares each graph with eager steps.
        params = self._params.but(changes=(), happens=(), epochs=1, graph="none", chains=())
        notes = Notes(params, poison)
        cold = ReferenceEngine(
            self._checkpoint(engine.num_reloads), params, poison, engine.max_model_len, notes
        )
        # Its requests are then judged by the reference of these weights and adapters.
        cold.num_reloads = engine.num_reloads
        cold.adapters = engine.adapters
        prompts = [sequence.tokens[: sequence.num_prompt_tokens] for sequence in last]
        with errors_of_the_engine():
            served_cold = serve(cold, notes, prompts, self._checkpoint)
        if served_cold.refusal is not None:
            raise served_cold.refusal
        (answers,) = served_cold.epochs
        observed = self._observed(notes, "the engine that starts cold", _answered(answers))
        of_cold = {made.request: made for one in observed for made in one.decisions}
        for index, (first, later) in enumerate(zip(answers, last, strict=True)):
            if len(served.notes.answers.models.get(later.request, ())) == 1:
                sides = ((first, notes.answers, of_cold), (later, served.notes.answers, decisions))
                yield from pair_of(
                    "cold_warm", f"request {index} after the changes", sides, self._bound
                )

    def run_traced(self, poison: Poison, trace: Trace) -> Run:
        return self.run(poison, probe=trace)

    @property
    def _padding_bound(self) -> str:
        """The bound for steps with and without padding; empty if their bits must be equal.

        A scale over the whole batch covers padding by design, and copies of a row round differently
        at their places.
        """
        return "" if self.device == "cpu" and self._params.amax_rows == "live" else self._bound

    @property
    def _bound(self) -> str:
        return f"engine.logits.{self._coarsest}" + (
            "" if self._params.quantize == "none" else ".fp8act"
        )

    @property
    def _margin(self) -> float:
        return (
            _TIE_MARGIN[self._coarsest]
            if self._params.quantize == "none"
            else _TIE_MARGIN_FP8_ACTIVATIONS
        )

    @property
    def _coarsest(self) -> KvType:
        """The cache type of a layer that rounds most."""
        params = self._params
        window_kv = params.window_kv if "window" in params.layers else None
        return max((params.kv, window_kv or params.kv), key=list(_TIE_MARGIN).index)

    def _legitimate(self, poison: Poison) -> Poison:
        """`poison` with the engine's traps, and without the sites that must be finite for the
        decode kernel.

        A kernel that needs finite tails reads slots past a request's length. They hold zeros in a
        hybrid model, and older latents if all blocks have one type. In a window layer it reads the
        null block too.
        """
        sites = set(poison.sites)
        params = self._params
        if KERNELS.get(f"mla_decode/{self._params.decode_kernel}").needs_finite_tail:
            sites.discard("kv.tail")
            layout = CacheLayout(self._config, params.kv, params.num_blocks, params.window_kv)
            if len({group.dtype for group in layout.groups}) == 1:
                sites -= {"kv.new", "kv.unmapped"}
            if "window" in params.layers:
                sites.discard("kv.null")
        if params.amax_rows == "batch":
            # This engine promises finite rows of padding, and with keys for them a finite null
            # block.
            sites -= {"graph.pad_rows"} | (
                {"kv.null"} if params.pad_keys or self._config.is_hybrid else set()
            )
        traps = {
            "block_table.pad": params.num_blocks - 1,
            # The expert behind the last one is the trap.
            "router.ids": params.num_experts,
            # The last slot of a full table, past the length of any request, is in a padded page.
            "sparse.topk": num_pages(params.longest) * PAGE_SIZE - 1,
        }
        return replace(poison, sites=frozenset(sites), traps=traps)

    def _prompts(self) -> list[list[int]]:
        """Prompts drawn from the case's seed: what all share, the pages of its chain, and tokens of
        its own.
        """
        params = self._params
        generator = torch.Generator().manual_seed(self.case.seed)
        vocab = self._config.vocab_size

        def draw(count: int) -> list[int]:
            drawn: list[int] = torch.randint(vocab, (count,), generator=generator).tolist()
            return drawn

        # Drawn in a fixed order, so that a change of one length leaves the other tokens as they
        # are.
        prefix = draw(params.shared_prefix)
        pages = {
            letter: draw(PAGE_SIZE)
            for letter in sorted(set("".join(params.chains)))
            if letter.isalpha()
        }
        chains = [
            [token for letter in chain for token in pages.get(letter, [])]
            for chain in params.chains
        ]
        starts = itertools.chain(chains, itertools.repeat([]))
        lengths = (length for length, _ in params.requests)
        return [
            (prefix + start + draw(length))[:length]
            for length, start in zip(lengths, starts, strict=False)
        ]

    def _judged(
        self, notes: Notes, sequences: list[Sequence], margin: float
    ) -> tuple[torch.Tensor, list[Decisions]]:
        """The reference's logits of each token by the model that generated it, and the decisions of
        the last model.
        """
        expected = torch.empty(0)
        models = [notes.answers.models[sequence.request] for sequence in sequences]
        decisions: list[Decisions] = []
        for key in sorted({key for spans in models for _, key in spans}):
            reference = _reference(self._config, margin, *key)
            chosen = notes.choices.of(key)
            logits, made = reference.judged(sequences, chosen.expert_ids, chosen.selected)
            if not decisions:
                expected = logits
                decisions = made
            start = 0
            for index, (sequence, spans) in enumerate(zip(sequences, models, strict=True)):
                end = start + sequence.num_generated_tokens
                # The numbers of reloads and adapters only grow, so later models replace the rows of
                # earlier ones.
                for first in (first for first, own in spans if own == key):
                    expected[start + first : end] = logits[start + first : end]
                    decisions[index] = made[index]
                start = end
        return expected, decisions

    def _observed(self, notes: Notes, epoch: str, sequences: list[Sequence]) -> list[Observed]:
        """The logits of an epoch's tokens, and of its rejected drafts, which have no reference."""
        logits = notes.answers.logits
        # A request with more or fewer rows than tokens is a finding of `conserved`.
        sequences = [
            made
            for made in sequences
            if len(logits.get(made.request, ())) == made.num_generated_tokens
        ]
        rows = [row for sequence in sequences for row in logits.get(sequence.request, [])]
        tokens = [
            token
            for sequence in sequences
            for token in sequence.tokens[sequence.num_prompt_tokens :]
        ]
        if not rows:
            return []
        rejected = [
            row
            for sequence in sequences
            for row in notes.answers.rejected.get(sequence.request, [])
        ]
        expected, decisions = self._judged(notes, sequences, self._margin)
        margins = torch.split(
            token_margins(expected, bound(self._bound)), [len(made.tokens) for made in decisions]
        )
        for made, of_tokens in zip(decisions, margins, strict=True):
            made.token_margins = of_tokens

        def of(what: str, rows: list[torch.Tensor], word: str, **more: Any) -> Observed:
            live = torch.ones(len(rows), dtype=torch.bool)
            return Observed(
                f"{what} of {epoch}", torch.stack(rows).cpu(), live, describe=word, **more
            )

        judged = {
            "bound": self._bound,
            "decisions": tuple(decisions),
            "tokens": torch.tensor(tokens),
        }
        observed = [
            of(
                "logits",
                rows,
                f"generated token ({_ranges(sequences)})",
                expected=expected,
                **judged,
            )
        ]
        if (module := self._module) is not None:
            reference = _reference(self._config, self._margin, 0, 0)
            asked = [(s.request, s.tokens) for s in sequences]
            found, wanted, word = drafted_beside_reference(module, reference, notes.answers, asked)
            observed.append(
                of("draft logits", found, word, expected=torch.stack(wanted), bound=self._bound)
            )
        if rejected:
            observed.append(of("logits of rejected drafts", rejected, "rejected draft"))
        return observed


def _answered(sequences: list[Sequence]) -> list[Sequence]:
    """The requests that got a token. One that is aborted earlier has no answer to judge."""
    return [sequence for sequence in sequences if sequence.num_generated_tokens]


def _shown_changes(served: Served) -> dict[str, tuple[str, ...]]:
    """The pairs of what happened to the engine, if its state changed."""
    if not served.engine.params.changes:
        return {}
    arguments = {"happened": served.happened, "has_graph": served.engine.params.has_graph}
    return {key_of(changes.SPACE): changes.SPACE.shown(arguments)}


def _ranges(sequences: list[Sequence]) -> str:
    """The rows of each request in words: ``request 0 has 0-11, request 1 has 12-21``."""
    ends = list(
        itertools.accumulate((sequence.num_generated_tokens for sequence in sequences), initial=0)
    )
    spans = enumerate(itertools.pairwise(ends))
    return ", ".join(f"request {index} has {start}-{end - 1}" for index, (start, end) in spans)


@functools.lru_cache(maxsize=8)
def _model(config: EngineModelConfig, device: str = "cpu", num_reloads: int = 0) -> CausalLM:
    """The model of this seed.

    After an odd number of reloads `kv_b_proj` is twice as large, so its scale differs.
    """
    model = (
        CausalLM(config).reset_parameters(WEIGHT_SEED + num_reloads).eval().requires_grad_(False)
    )
    for attention in model.mla_layers():
        attention.kv_b_proj.weight *= 1 + num_reloads % 2
    return model.to(device)


@functools.lru_cache(maxsize=8)
def _reference(
    config: EngineModelConfig, tie_margin: float, num_reloads: int = 0, adapter: int = 0
) -> DenseReference:
    model = _model(config, "cpu", num_reloads)
    return DenseReference(with_adapter(model, adapter) if adapter else model, tie_margin)
