"""The serving engine: requests in, tokens out, one step after another."""

from __future__ import annotations

import torch

from harness.engine.block_pool import BlockPool
from harness.engine.config import NULL_BLOCK
from harness.engine.observations import Observations
from harness.engine.runner import ModelRunner
from harness.engine.scheduler import Scheduler
from harness.engine.sequence import Sequence
from harness.errors import InputError
from harness.model.transformer import CausalLM
from harness.ops.memory import raise_bad_indices
from harness.poison.patterns import Poison
from harness.scenario.params import EngineParams


class Engine:
    """Greedy decoding of many requests over one block pool, as a vLLM engine serves an MLA model.

    `model` gives the weights and sizes, `params` the rest: caches, kernels, graphs, limits. `max_model_len` bounds the
    tokens of a request. The same arguments and requests give the same bits. With `observe` each graph replay is run a
    second time eagerly and its inputs are noted, for judges; without it only the tokens' logits are.
    """

    def __init__(
        self, model: CausalLM, params: EngineParams, poison: Poison, max_model_len: int, observe: bool = True
    ) -> None:
        self.params = params
        self.max_model_len = max_model_len
        self.pool = BlockPool(params.num_blocks, params.free_list)
        self.scheduler = Scheduler(
            self.pool, params.max_batched_tokens, params.max_num_seqs, needs_state=model.config.is_hybrid
        )
        with torch.no_grad():
            self.runner = ModelRunner(model, params, self.pool, poison, max_model_len, observe)
        self.num_steps = 0
        self._num_requests = 0

    @property
    def observations(self) -> Observations:
        """What the steps so far left for judges."""
        return self.runner.observations

    def add_request(self, prompt: list[int], max_tokens: int) -> Sequence:
        """Queue a prompt. Raises InputError when it is empty, longer than the engine was made for, or cannot fit."""
        if not prompt or max_tokens < 1:
            raise InputError("a request needs a prompt and at least one token to generate")
        sequence = Sequence(self._num_requests, list(prompt), max_tokens)
        if sequence.max_length > self.max_model_len:
            raise InputError(
                f"request {sequence.request} grows to {sequence.max_length} tokens, and max_model_len is "
                f"{self.max_model_len}; make the engine for longer ones"
            )
        self.scheduler.add(sequence)
        self._num_requests += 1
        return sequence

    @torch.no_grad()
    def step(self) -> list[Sequence]:
        """Schedule, run, take the next tokens; returns the requests that finished."""
        step = self.scheduler.schedule()
        logits = self.runner.run(step, self.num_steps)
        # One look at the device for the whole batch. A row of NaN has a largest index too: garbage in, a token out, as
        # a real sampler does.
        tokens = torch.stack(logits).argmax(dim=-1).tolist()
        finished = []
        for item, row, token in zip(step.scheduled, logits, tokens, strict=True):
            sequence = item.sequence
            sequence.num_computed_tokens += item.num_new_tokens
            if sequence.num_uncomputed_tokens == 0:
                sequence.tokens.append(token)
                self.observations.logits.setdefault(sequence.request, []).append(row)
            if sequence.is_finished:
                self.scheduler.finish(sequence)
                finished.append(sequence)
        if self.params.dummy_steps:
            self.runner.run_dummy()
        raise_bad_indices()
        self.num_steps += 1
        return finished

    def run(self) -> None:
        """Step until every request is finished."""
        while self.scheduler.has_work:
            self.step()

    def null_block(self) -> torch.Tensor:
        """A copy of the null block's bytes [slots, block_bytes]; nobody may ever write them."""
        return self.runner.memory.block(NULL_BLOCK)
