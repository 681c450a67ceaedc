"""The serving engine: requests in, tokens out, one step after another."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.engine_params import EngineParams
from harness.core.errors import InputError
from harness.engine.model.next_token import NextTokenModule
from harness.engine.model.transformer import CausalLM
from harness.engine.probe import Probe, Sampled
from harness.engine.runner import ModelRunner
from harness.engine.schedule.block_pool import BlockPool, groups_to_zero
from harness.engine.schedule.config import why_not_together
from harness.engine.schedule.events import verified
from harness.engine.schedule.scheduler import Scheduler
from harness.engine.schedule.sequence import ScheduledSequence, Sequence, Step
from harness.engine.speculation import (
    SuffixDrafts,
    confirmed,
    greedy_tokens,
    row_behind,
    rows_walked,
)
from harness.memory.bounds import raise_bad_indices


class ReferenceEngine:
    """Greedy decoding of many requests over one block pool.

    `params` chooses caches, kernels, graphs and limits; `max_model_len` limits the tokens of a
    request. The same arguments and requests give the same bits. `probe` sees every event. `module`
    drafts, if `params` ask for one.
    """

    def __init__(
        self,
        model: CausalLM,
        params: EngineParams,
        poison: Poison,
        max_model_len: int,
        probe: Probe | None = None,
        module: NextTokenModule | None = None,
    ) -> None:
        if reason := why_not_together(model.config, params):
            raise InputError(f"{reason}; leave one of them out")
        self.params = params
        self.poison = poison
        self.max_model_len = max_model_len
        self.probe = probe or Probe()
        self.pool = BlockPool(params.num_blocks, params.free_list)
        self.adapters = list(range(max(params.adapters, default=0) + 1))
        """The adapter in each slot; slot 0 has none."""
        self.num_reloads = 0
        self.num_requests = 0
        self._query_len = 1 + params.speculative_tokens
        self._drafts = SuffixDrafts(params.speculative_tokens)
        self._cancelled = frozenset(params.cancelled)
        if params.changes or params.adapters:
            # Changes and adapters write into the model, which the caller keeps for other runs and
            # references.
            model = copy.deepcopy(model)
        with torch.no_grad():
            # Drafts are stored before they are verified.
            longest = max_model_len + params.speculative_tokens
            self.runner = ModelRunner(model, params, self.pool, poison, longest, self.probe, module)
        self.scheduler = Scheduler(
            self.pool,
            params.max_batched_tokens,
            params.max_num_seqs,
            needs_state=model.config.is_hybrid,
            prefix_caching=params.prefix_caching,
            window=model.config.sliding_window,
            num_hashes=params.num_hashes,
            zeroed_groups=groups_to_zero(self.runner.memory.layout.groups),
            has_module=module is not None,
        )

    def add_request(self, prompt: list[int], max_tokens: int, slot: int = 0) -> Sequence:
        """Queue a prompt.

        Raises InputError if it is empty, longer than `max_model_len`, or too large for the pool.
        """
        if not prompt or max_tokens < 1:
            raise InputError("a request needs a prompt and at least one token to generate")
        sequence = Sequence(
            self.num_requests, list(prompt), max_tokens, query_len=self._query_len, slot=slot
        )
        sequence.model = self._model_of(sequence)
        length = len(prompt) + max_tokens - 1
        if length > self.max_model_len:
            raise InputError(
                f"request {sequence.request} grows to {length} tokens, and max_model_len is "
                f"{self.max_model_len}; make the engine for longer ones"
            )
        self.scheduler.add(sequence)
        self.num_requests += 1
        return sequence

    @torch.no_grad()
    def step(self) -> list[Sampled]:
        """Run one step. Returns what each of its requests got."""
        step = self._without_cancelled(self.scheduler.schedule())
        sampled = self._sample(step, self.runner.run(step))
        # Before finished requests give their blocks back: probes look at blocks that still have an
        # owner.
        self.probe.on_sampled(sampled)
        for item in sampled:
            if item.sequence.is_finished:
                self.scheduler.finish(item.sequence)
        if self.params.dummy_steps:
            # Between two steps, as an idle rank takes part while others compute
            # (vllm-project/vllm#39444).
            self.runner.run_dummy()
        # The tokens were read above, so the device has run the checks of the step. Their verdicts
        # lie in pinned memory, so this does not wait.
        raise_bad_indices()
        return sampled

    def _sample(self, step: Step, logits: Tensor) -> list[Sampled]:
        """Give each request the tokens that its rows of `logits` [n, vocab] choose."""
        # One device read for the whole batch. A row of NaN yields some token, as in a real sampler.
        tokens = greedy_tokens(logits).tolist()
        drafted = self.runner.draft_logits
        guesses = None if drafted is None else drafted.argmax(dim=-1).tolist()
        sampled = []
        start = 0
        for item in step.scheduled:
            count = item.num_rows
            end = start + count
            verified = list(item.sequence.drafts)
            given = self._advance(
                item, tokens[start:end], None if guesses is None else guesses[start:end]
            )
            guessed = None if drafted is None else drafted[start:end]
            sampled.append(Sampled(item.sequence, logits[start:end], given, guessed, verified))
            start += rows_walked(count, given)
        return sampled

    def _advance(
        self, item: ScheduledSequence, tokens: list[int], guesses: list[int] | None
    ) -> list[int]:
        """Append the target's choices `tokens` after a request's rows.

        Returns the tokens that were appended.

        `guesses` are the module's for the tokens behind them.
        """
        sequence = item.sequence
        if sequence.drafts:
            given = confirmed(sequence.drafts, tokens)
            self.scheduler.events.update(verified(len(given) - 1, len(sequence.drafts)))
            # The last token and each draft that came true have their latents in the pages. Those of
            # rejected drafts lie behind, past the length, until the next step writes over them.
            sequence.num_computed_tokens += len(given)
            # A verification may confirm more tokens than the request asked for.
            given = given[: sequence.max_tokens - sequence.num_generated_tokens]
        else:
            sequence.num_computed_tokens += item.num_new_tokens
            # A chunk in the middle of a prompt has a row of logits too, and its token is the
            # prompt's own.
            given = tokens[-1:] if sequence.num_uncomputed_tokens == 0 else []
        sequence.tokens += given
        is_drafted = self._query_len > 1 and sequence.is_decoding and not sequence.is_finished
        sequence.drafts = []
        if is_drafted:
            sequence.drafts = (
                self._drafts.propose(sequence) if guesses is None else [guesses[row_behind(given)]]
            )
        return given

    def _without_cancelled(self, step: Step) -> Step:
        left = [
            item.sequence for item in step.scheduled if item.sequence.request in self._cancelled
        ]
        if not left:
            return step
        for sequence in left:
            self.scheduler.cancel(sequence)
        return replace(
            step, scheduled=tuple(item for item in step.scheduled if item.sequence not in left)
        )

    def abort(self, sequence: Sequence) -> None:
        """Between two steps, drop a request that is not finished."""
        self.scheduler.abort(sequence)

    def start_over(self, sequences: list[Sequence]) -> None:
        """Let running requests compute their tokens again, and serve all that wait by the model
        there is now.
        """
        self.scheduler.start_over(sequences)
        for sequence in self.scheduler.waiting:
            sequence.model = self._model_of(sequence)

    def _model_of(self, sequence: Sequence) -> tuple[int, int]:
        return self.num_reloads, self.adapters[sequence.slot]

    def flush(self) -> None:
        """Forget all cached prefixes and clear all blocks. Raises ValueError while requests run."""
        if self.scheduler.has_work:
            raise ValueError("a cache is flushed between requests; run them to their end first")
        self.runner.clear(self.pool.flush())
