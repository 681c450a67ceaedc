"""What follows the last computed token of a request, as vLLM hands it to its drafter: is it the
token behind it?

A drafter reads at each position the token behind it. Behind a decode that is the last sampled
token. A chunk of a prompt samples a token that is discarded, and the next token of the prompt
follows. A preempted request computes its own output again, in chunks too. All small requests are
tried, in every fourth pair. Token `p` of request `r` is `100 * r + p`, so a wrong token names its
place. The functions are vLLM's, the Triton kernels are interpreted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch_poison.patterns import Poison
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu import input_batch as second_runner
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from harness.api import Run
from mla_harness_adapters.host_parts import (
    Found,
    Without,
    made_without_init,
    searched,
)
from mla_harness_vllm.params import VllmHostParams
from mla_harness_vllm.releases import PREPARE_DRAFTS, SPECULATOR

MOST_DRAFTS = 2
LONGEST = 12
NUM_SLOTS = 3
EVERY = 4
CPU = torch.device("cpu")
DISCARDED = 999
"""A token that no request may get: what is sampled behind a chunk, or lies in memory that nothing
has written.
"""


@dataclass(frozen=True)
class DraftedRequest:
    """A request before a step: lengths of its prompt and of all its tokens, those computed, and
    those of the step.
    """

    num_prompt: int
    num_known: int
    num_computed: int
    num_new: int
    num_accepted: int = 0

    @property
    def num_drafts(self) -> int:
        """Drafts among the tokens of the step.

        Below 0 if known tokens follow, so what is sampled is discarded.
        """
        return self.num_computed + self.num_new - self.num_known

    @property
    def end(self) -> int:
        """Tokens computed after the step, without refused drafts: the position of the token that
        follows.
        """
        return self.num_known + min(self.num_drafts, self.num_accepted)

    def sampled(self, number: int) -> list[int]:
        return (
            []
            if self.num_drafts < 0
            else list(range(100 * number + self.num_known, 100 * number + self.end + 1))
        )


Pair = tuple[DraftedRequest, DraftedRequest]
DECODES = [
    DraftedRequest(4, 6, 5, 1 + n, accepted)
    for n in range(MOST_DRAFTS + 1)
    for accepted in range(n + 1)
]
CHUNKS = [
    DraftedRequest(prompt, 4, a, b - a)
    for prompt in (4, 2)
    for a, b in itertools.combinations(range(5), 2)
]
"""Each chunk of four tokens: of a prompt, and of two tokens of prompt and two of output after a
preemption.
"""


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Try the pairs. What follows each request must be its next token."""
    with Without("pin_memory"):
        return searched(poison.pattern, _pairs(params.prepares))


def _pairs(prepares: str) -> Found:
    for number, first in enumerate(requests := DECODES + CHUNKS):
        pairs = [(first, other) for other in requests[number % EVERY :: EVERY]]
        got = torch.stack(
            [_second(pair) if prepares == "second" else _first(pair, prepares) for pair in pairs]
        )
        yield (
            f"what follows {first} and another",
            got,
            torch.tensor([[one.end, 100 + two.end] for one, two in pairs]),
        )


def _first(pair: Pair, prepares: str) -> Tensor:
    """What follows the requests int32 [2] in the first runner, from padded rows of sampled tokens
    or from lists.
    """
    states = {
        str(number): made_without_init(
            CachedRequestState,
            prompt_token_ids=list(range(100 * number, 100 * number + one.num_prompt)),
            output_token_ids=list(
                range(100 * number + one.num_prompt, 100 * number + one.num_known)
            ),
            num_prompt_tokens=one.num_prompt,
            num_computed_tokens=one.num_computed,
        )
        for number, one in enumerate(pair)
    }
    buffer = CpuGpuBuffer(NUM_SLOTS, dtype=torch.int32, device=CPU, pin_memory=False)
    # The constructor would load a model. The method under test reads these two buffers alone.
    drafter = made_without_init(
        SpecDecodeBaseProposer, input_ids=buffer.gpu, backup_next_token_ids=buffer
    )
    known = _int32(one.num_known for one in pair).numpy()
    batch = SimpleNamespace(
        req_ids=list(states), num_reqs=len(pair), num_tokens_no_spec=known, vocab_size=1000
    )
    following: Tensor
    if prepares == "padded":
        # Known tokens follow a chunk, so vLLM marks what it samples as discarded.
        discarded = torch.tensor([one.num_drafts < 0 for one in pair])
        following, _ = drafter.prepare_next_token_ids_padded(
            _sampled(pair), states, batch, discarded
        )
        return following
    counts = {name: one.num_new for name, one in zip(states, pair, strict=True)}
    lists = [one.sampled(number) for number, one in enumerate(pair)]
    following = drafter.prepare_next_token_ids_cpu(lists, states, batch, counts)
    return following


def _second(pair: Pair) -> Tensor:
    """What follows the requests int32 [2] in the second runner, in slots that hold other requests'
    numbers.
    """
    prepare = PREPARE_DRAFTS.of(SPECULATOR.module())
    # The second runner keeps requests in slots of buffers that live as long as the server. Slots
    # that these requests do not have keep an earlier request's numbers.
    stale = torch.full((6 + LONGEST, NUM_SLOTS), DISCARDED, dtype=torch.int32)
    upcoming = stale[:1]
    last = stale[1][:, None]
    prefilled, computed, total = stale[2:5]
    tokens = stale[6:].T.contiguous()
    # Neither in order nor dense: a row number taken for a slot reads the third request's slot.
    slots = torch.tensor([2, 0], dtype=torch.int32)
    batch, drafts = (second_runner.InputBuffers(NUM_SLOTS, LONGEST, CPU) for _ in range(2))
    for number, (slot, one) in enumerate(zip(slots, pair, strict=True)):
        tokens[slot, : one.num_known] = torch.arange(one.num_known) + 100 * number
        # A request with output that is no decode was preempted: its output is computed again as if
        # it were prompt.
        prefilled[slot] = one.num_prompt if one in DECODES else one.num_known
        computed[slot] = one.num_computed
        total[slot] = one.num_known
    batch.idx_mapping = slots
    batch.num_reqs = len(pair)
    starts = batch.query_start_loc = _int32([0, *itertools.accumulate(one.num_new for one in pair)])
    batch.seq_lens = _int32(one.num_computed + one.num_new for one in pair)
    batch.input_ids = _int32(
        100 * n + one.num_computed + i for n, one in enumerate(pair) for i in range(one.num_new)
    )
    second_runner.prepare_prefill_inputs(
        batch.input_ids, upcoming, slots, starts, tokens, prefilled, computed
    )
    # One row of logits for each draft, and one for the token behind the last.
    logits = _int32([0, *itertools.accumulate(1 + max(0, one.num_drafts) for one in pair)])
    counts = _int32(max(1, len(one.sampled(0))) for one in pair)
    counts = second_runner.get_num_sampled_and_rejected(
        counts, batch.seq_lens, logits, slots, prefilled
    )
    second_runner.post_update(
        slots, computed, last, None, _sampled(pair), *counts, starts, tokens, total
    )
    ends, step = torch.zeros(2, NUM_SLOTS, dtype=torch.int64)
    prepare(ends, step, drafts, batch, *counts, last, upcoming, NUM_SLOTS)
    following: Tensor = drafts.input_ids[ends[: len(pair)]]
    return following


def _sampled(pair: Pair) -> Tensor:
    """The sampled tokens of each request int32 [2, 1 + MOST_DRAFTS], filled up with -1."""
    # The sampler runs for a chunk too. Its token is in the row, and nobody may use it.
    rows = [one.sampled(number) or [DISCARDED] for number, one in enumerate(pair)]
    return _int32([*row, *[-1] * (MOST_DRAFTS + 1 - len(row))] for row in rows)


def _int32(values: Iterable[Any]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)
