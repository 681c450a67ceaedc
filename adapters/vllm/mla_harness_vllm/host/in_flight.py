"""vLLM's asynchronous scheduler on a CPU: does each request get its own tokens, each of them once?

The scheduler, its blocks and its counters are vLLM's. A step is scheduled before the output of the
last one is known, and requests are preempted, aborted, finished, or sent back by a reset of the
prefix cache meanwhile. The runner is the harness's: it keeps each request's tokens as vLLM's
runners do, and verifies drafts. The next token follows from all tokens before it, so that a token
that is lost, repeated or misplaced changes all later ones.
"""

from __future__ import annotations

import random
import traceback
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from torch_poison.patterns import Poison
from vllm.v1.request import RequestStatus

from harness.api import Count, Run
from mla_harness_vllm.host.kv_layers import layers_of, planned
from mla_harness_vllm.host.kv_moves import (
    MOST_STEPS,
    ONE_GROUP,
    STOP,
    request_of,
    runner_output,
    scheduler_of,
    settings,
)
from mla_harness_vllm.params import VllmHostParams
from mla_harness_vllm.releases import PREFILL_TOKENS

NUM_SCHEDULES = 30
MOST_TOKENS = 40
LENGTHS = (17, 30, 20, 33, 26, 40)
"""The prompts of the requests.

Four run at once, and together they outgrow the pool, so that some are preempted.
"""


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Serve the requests in several seeded schedules.

    Ends with the first one that loses a token or a block.
    """
    found = Run(poison.pattern)
    for number in range(NUM_SCHEDULES):
        counts = _served(params, poison.seed + number, f"schedule {number}")
        found.evidence += counts
        if any(count.found != count.expected for count in counts):
            break
    return found


@dataclass(slots=True)
class TokenRunner:
    """The tokens that a runner knows of each request, and how many of them have keys."""

    random: random.Random
    where: str
    counts: list[Count] = field(default_factory=list)
    known: dict[str, list[int]] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)
    drafting: set[str] = field(default_factory=set)
    """Requests with drafts behind their last token."""

    def execute(self, scheduled: Any) -> Any:
        """The output of one step: the next token of each request with no prompt left, and of its
        accepted drafts.
        """
        for name in scheduled.finished_req_ids:
            self.known.pop(name, None)
        for new in scheduled.scheduled_new_reqs:
            self._begin(new.req_id, PREFILL_TOKENS.value(new), new.num_computed_tokens)
        cached = scheduled.scheduled_cached_reqs
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                self._begin(name, cached.all_token_ids[name], computed)
        counts = scheduled.num_scheduled_tokens
        drafts = scheduled.scheduled_spec_decode_tokens
        return runner_output(
            {name: self._sampled(name, counts[name], len(drafts.get(name, ()))) for name in counts}
        )

    def _begin(self, name: str, tokens: list[int], computed: int) -> None:
        self.known[name] = list(tokens)
        self.computed[name] = computed
        self.drafting.discard(name)

    def keep(self, name: str, expected: int | str, found: int | str) -> None:
        """Note a number that must be kept."""
        self.counts.append(Count(name, expected, found, self.where))

    def _sampled(self, name: str, count: int, num_drafts: int) -> list[int]:
        tokens = self.known[name]
        left = len(tokens) - self.computed[name]
        if count - num_drafts > left or (num_drafts and count - num_drafts != left):
            # The positions behind the last token hold nothing.
            self.keep(f"known tokens of request {name} in a step", left, count - num_drafts)
        if count - num_drafts < left:
            self.computed[name] += count
            return []
        # The drafts of a first step are padding.
        num_accepted = self.random.randint(0, num_drafts) if name in self.drafting else 0
        given = []
        for _ in range(num_accepted + 1):
            given.append(next_token(tokens, int(name)))
            tokens.append(given[-1])
        self.computed[name] = len(tokens) - 1
        self.drafting.add(name)
        return given


def next_token(tokens: list[int], number: int) -> int:
    """The token behind `tokens` of a request: a hash of them all, or the one that ends the
    request.
    """
    generated = len(tokens) - LENGTHS[number]
    # A hash is below STOP, so no request ends by chance.
    return STOP if generated == 20 + 5 * number else zlib.crc32(repr(tokens).encode()) % STOP


def _wanted(number: int) -> list[int]:
    """The tokens that a request gets if it is served alone."""
    tokens = _prompt(number)
    while len(tokens) - LENGTHS[number] < MOST_TOKENS and tokens[-1] != STOP:
        tokens.append(next_token(tokens, number))
    return tokens[LENGTHS[number] :]


def _prompt(number: int) -> list[int]:
    return [100 * (number + 1) + place for place in range(LENGTHS[number])]


def _served(params: VllmHostParams, seed: int, where: str) -> list[Count]:
    draws = random.Random(seed)
    runner = TokenRunner(draws, where)
    scheduler = _scheduler(params)
    given: dict[str, list[int]] = {str(number): [] for number in range(len(LENGTHS))}
    aborted: set[str] = set()
    waiting = list(given)
    queue = deque[Any]()
    try:
        for _ in range(MOST_STEPS):
            if waiting and draws.random() < 0.4:
                number = int(waiting.pop(0))
                scheduler.add_request(request_of(number, _prompt(number), MOST_TOKENS))
            if not (waiting or scheduler.has_requests()):
                break
            if params.event == "abort" and draws.random() < 0.05:
                name = draws.choice(list(given))
                aborted |= {name} & set(scheduler.requests)
                scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            if params.event == "reset" and draws.random() < 0.1:
                scheduler.reset_prefix_cache(reset_running_requests=True)
            scheduled = scheduler.schedule()
            queue.append((scheduled, runner.execute(scheduled)))
            # Earlier steps, one for each stage, are looked at while this one runs.
            ran = queue.popleft() if len(queue) > params.stages else None
            for each in scheduler.update_from_output(*ran).values() if ran else ():
                for one in each.outputs:
                    given[one.request_id] += one.new_token_ids
    except AssertionError as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        runner.keep("vLLM's own assertion", "holds", f"fails: {line.line}")
        return runner.counts
    for name, tokens in given.items():
        wanted = _wanted(int(name))
        if name in aborted:
            wanted = wanted[: len(tokens)]
        same = next(
            (
                place
                for place, pair in enumerate(zip(tokens, wanted, strict=False))
                if pair[0] != pair[1]
            ),
            None,
        )
        found = f"{len(tokens)} tokens" + (f", wrong from {same} on" if same is not None else "")
        runner.keep(f"tokens of request {name}", f"{len(wanted)} tokens", found)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    # Block 0 is vLLM's null block, which is never free.
    runner.keep("free blocks at the end", ONE_GROUP.num_blocks - 1, free)
    return runner.counts


@dataclass(slots=True)
class Drafter:
    """The settings of a drafter without layers of its own.

    The scheduler asks what kind it is: none that it knows.
    """

    num_speculative_tokens: int

    def __getattr__(self, name: str) -> Any:
        return (lambda: False) if name.startswith(("use", "needs")) else 0


def _scheduler(params: VllmHostParams) -> Any:
    layers = layers_of("", 0)
    vllm_config = settings("", True, "engine", layers)
    vllm_config.parallel_config.pipeline_parallel_size = params.stages
    if params.drafts:
        vllm_config.speculative_config = Drafter(params.drafts)
    return scheduler_of(vllm_config, planned(vllm_config, layers), True)
