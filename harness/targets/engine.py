"""The engine as a target: serve a case's requests under poison, and hand over what oracles judge."""

from __future__ import annotations

import bisect
import functools
from dataclasses import replace

import torch

from harness.catalog import KERNELS
from harness.engine.config import model_config, num_pages
from harness.engine.dense_reference import DenseReference
from harness.engine.engine import Engine
from harness.engine.sequence import Sequence
from harness.model.config import ModelConfig
from harness.model.transformer import CausalLM
from harness.ops.contracts import latent_rank
from harness.poison.patterns import Poison
from harness.records import Case
from harness.scenario.params import EngineParams
from harness.targets.base import Binding, Guard, Observed, ReplayedStep, Run

WEIGHT_SEED = 0
"""All cases of one model share its weights; what differs from case to case are the prompts."""

_TIE_MARGIN = {"fp32": 1e-3, "bf16": 0.05, "fp8_e4m3": 0.5}
"""Router logits have unit variance; a decision closer than the rounding of what enters them may fall either way."""
_TIE_MARGIN_FP8_ACTIVATIONS = 0.5


class EngineTarget:
    """A serving run of the reference engine, `epochs` times the same requests on one engine."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        self._device = device
        self._case = case
        params = EngineParams.model_validate(case.params)
        # No more requests than there are ever run at once, so larger graphs would be captured for nobody.
        self._params = params.model_copy(update={"max_num_seqs": min(params.max_num_seqs, len(params.requests))})
        self._config = model_config(self._params)

    @staticmethod
    def supports(case: Case) -> str | None:
        """Why the engine cannot run a case, in one sentence; None when it can."""
        params = EngineParams.model_validate(case.params)
        config = model_config(params)
        if latent_rank(config.latent_dim) != config.kv_lora_rank:
            return (
                f"kv_lora_rank {config.kv_lora_rank} with qk_rope_head_dim {config.qk_rope_head_dim}: decode kernels "
                f"take the rank of a latent of {config.latent_dim} to be {latent_rank(config.latent_dim)}"
            )
        needed = max(num_pages(_length(request)) + config.is_hybrid for request in params.requests)
        if needed > params.num_blocks - 2:
            return f"num_blocks {params.num_blocks} leaves {params.num_blocks - 2} blocks, a request needs {needed}"
        return None

    def run(self, poison: Poison) -> Run:
        """Serve all requests `epochs` times under `poison` on a fresh engine."""
        params = self._params
        poison = self._legitimate(poison)
        engine = Engine(
            _model(self._config, self._device),
            params,
            poison,
            max_model_len=max(_length(request) for request in params.requests),
        )
        null_block = engine.null_block().cpu()
        epochs, starts = [], []
        for _ in range(params.epochs):
            starts.append(engine.num_steps)
            epochs.append([engine.add_request(*request) for request in self._requests()])
            engine.run()
        run = Run(poison.pattern)
        run.observed = [self._observed(engine, epoch, sequences) for epoch, sequences in enumerate(epochs)]
        run.guards = [Guard("the null block", "kv.null", null_block, engine.null_block().cpu())]
        _add_graph_notes(run, engine, starts)
        return run

    def _legitimate(self, poison: Poison) -> Poison:
        """`poison` with the engine's traps, and without the sites that the decode kernel is promised to find finite.

        Such a kernel reads slots past a request's length. They hold what the engine put there: zeros in a hybrid model,
        older latents in one whose blocks only ever hold latents.
        """
        sites = set(poison.sites)
        if KERNELS.get(f"mla_decode/{self._params.decode_kernel}").needs_finite_tail:
            sites.discard("kv.tail")
            if not self._config.is_hybrid:
                sites.discard("kv.new")
        traps = {"block_table.pad": self._params.num_blocks - 1, "router.ids": self._params.num_experts}
        return replace(poison, sites=frozenset(sites), traps=traps)

    def _requests(self) -> list[tuple[list[int], int]]:
        """Prompts drawn from the case's seed, and how many tokens to generate."""
        generator = torch.Generator().manual_seed(self._case.seed)
        vocab = self._config.vocab_size

        def draw(count: int) -> list[int]:
            drawn: list[int] = torch.randint(vocab, (count,), generator=generator).tolist()
            return drawn

        prefix = draw(self._params.shared_prefix)
        return [((prefix + draw(length))[:length], count) for length, count in self._params.requests]

    def _observed(self, engine: Engine, epoch: int, sequences: list[Sequence]) -> Observed:
        notes = engine.observations
        rows = [row for sequence in sequences for row in notes.logits[sequence.request]]
        kind = "" if self._params.quantize == "none" else ".fp8act"
        margin = _TIE_MARGIN_FP8_ACTIVATIONS if kind else _TIE_MARGIN[self._params.kv]
        reference = _reference(self._config, margin)
        return Observed(
            name=f"logits of epoch {epoch}",
            tensor=torch.stack(rows).cpu(),
            live=torch.ones(len(rows), dtype=torch.bool),
            expected=reference.logits(sequences, notes.expert_ids),
            bound=f"engine.logits.{self._params.kv}{kind}",
            describe=f"generated token ({_ranges(sequences)})",
        )


def _add_graph_notes(run: Run, engine: Engine, starts: list[int]) -> None:
    """`starts` are the first steps of the epochs: an epoch repeats the answers of the one before, and may."""
    notes = engine.observations
    for replay in notes.replays:
        size = replay.replayed.shape[0]
        run.replays.append(
            ReplayedStep(
                step=replay.step,
                name=f"decode logits of the graph of {size} in epoch {bisect.bisect(starts, replay.step) - 1}",
                replayed=replay.replayed.cpu(),
                eager=replay.eager.cpu(),
                eager_again=None if replay.eager_again is None else replay.eager_again.cpu(),
                live=torch.arange(size) < replay.num_live,
                stale_site="sched_meta" if replay.stale_plan else None,
            )
        )
    for binding in notes.bindings:
        name = f"{binding.name} of the graph of {binding.size}"
        run.bindings.append(
            Binding(binding.step, name, binding.site, binding.captured_address, binding.current_address)
        )


def _length(request: tuple[int, int]) -> int:
    """Cached tokens of a request at its end: the last generated one is never computed."""
    prompt, count = request
    return prompt + count - 1


def _ranges(sequences: list[Sequence]) -> str:
    """Which rows are whose: ``request 0 has 0-11, request 1 has 12-21``."""
    texts, start = [], 0
    for index, sequence in enumerate(sequences):
        texts.append(f"request {index} has {start}-{start + sequence.num_generated_tokens - 1}")
        start += sequence.num_generated_tokens
    return ", ".join(texts)


@functools.lru_cache(maxsize=8)
def _model(config: ModelConfig, device: str = "cpu") -> CausalLM:
    return CausalLM(config).reset_parameters(WEIGHT_SEED).eval().requires_grad_(False).to(device)


@functools.lru_cache(maxsize=8)
def _reference(config: ModelConfig, tie_margin: float) -> DenseReference:
    return DenseReference(_model(config), tie_margin)
