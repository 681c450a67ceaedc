"""SGLang's radix cache, allocator and batches: does every request read the memory of its own
tokens?

Requests share prefixes, are prefilled in chunks, decode and finish, and what they leave is evicted
from a small pool. Batches, pools and the cache are SGLang's. The harness draws the schedule, and
writes a value for each token, which depends on all tokens up to it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.api import Count, Run
from mla_harness_adapters.host_parts import of_all_rows
from mla_harness_sglang.host.scheduling import (
    FINISHED,
    VOCABULARY,
    WIDTH,
    Server,
    count_once,
    fill,
    free_slots,
    prefix_length,
)
from mla_harness_sglang.params import SglangHostParams

NUM_REQUESTS = 24
NUM_ROWS = 4
CHUNK = 48
PAGES_OF = {1: 400, 16: 32, 64: 16}
"""Pages of the pool: few enough that cached prefixes are evicted."""
LONGEST = 150
MOST_ANSWERS = 12


@dataclass(slots=True, eq=False)
class Live:
    """A request that has memory, and its tokens so far."""

    name: str
    req: Any
    tokens: list[int]
    num_answers: int
    stored: int = 0
    """Tokens with a value in the cache."""
    is_prefilled: bool = False


@dataclass(slots=True)
class Play:
    """One schedule on one server."""

    poison: Poison
    server: Server
    values: Tensor
    rng: random.Random
    found: Run
    live: list[Live] = field(default_factory=list)
    step: int = 0

    def store(self, one: Live, slots: Tensor) -> None:
        """Write the values of a request's next tokens to the slots [n] that SGLang gave for
        them.
        """
        known = values_of(one.tokens, self.values)[one.stored : one.stored + len(slots)]
        self.server.cache[slots.long()] = known
        one.stored += len(slots)

    def look(self) -> None:
        """Fill memory without an owner, then read what each request reads."""
        server = self.server
        free = free_slots(self.server.alloc)
        fill(self.poison, server.cache, free, "kv.free")
        fill(self.poison, server.cache, torch.arange(server.page_size), "kv.null")
        self.found.evidence.append(count_once(free, f"step {self.step}"))
        for one in self.live:
            slots = server.slots_of(one.req, one.stored)
            if server.page_size > 1 and len(slots):
                end = int(slots[-1]) + 1
                # What is left of the last page of a request has no owner.
                tail = torch.arange(end, -(-end // server.page_size) * server.page_size)
                fill(self.poison, server.cache, tail, "kv.tail")
        if self.live:
            read = torch.cat(
                [server.cache[server.slots_of(one.req, one.stored)] for one in self.live]
            )
            want = torch.cat(
                [values_of(one.tokens, self.values)[: one.stored] for one in self.live]
            ).double()
            name = f"KV that is read in step {self.step}"
            describe = "token of all live requests"
            self.found.evidence.append(of_all_rows(name, read, want, "write_kv.fp32", describe))
        self.step += 1


def run(poison: Poison, params: SglangHostParams) -> Run:
    """Play a drawn schedule to its end, and look after each step."""
    rng = random.Random(poison.seed)
    random_values = torch.randn(
        VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(poison.seed)
    )
    server = Server(params.page_size, PAGES_OF[params.page_size] * params.page_size, NUM_ROWS)
    poison.fill_(server.cache, "kv.new")
    play = Play(poison, server, random_values, rng, Run(poison.pattern))
    waiting = [
        Live(f"r{i}", None, tokens, rng.randint(1, MOST_ANSWERS))
        for i, tokens in enumerate(prompts(rng))
    ]
    running: Any = None
    while waiting or play.live:
        started = next((one for one in play.live if not one.is_prefilled), None)
        may_start = (
            len(play.live) < NUM_ROWS and waiting and has_room(server, play.live, waiting[0])
        )
        if started or (may_start and (not play.live or rng.random() < 0.6)):
            batch = prefill(play, started, waiting)
            if batch is not None and running is not None and running.reqs:
                running.merge_batch(batch)
            elif batch is not None:
                running = batch
        else:
            decode(play, running)
            running.filter_batch()
        play.look()
    at_end(play)
    return play.found


def prompts(rng: random.Random) -> list[list[int]]:
    """Prompts. Many begin alike, and some are equal."""
    stems = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(20, 120))] for _ in range(3)]
    drawn: list[list[int]] = []
    for _ in range(NUM_REQUESTS):
        if drawn and rng.random() < 0.2:
            drawn.append(list(rng.choice(drawn)))
            continue
        stem = rng.choice(stems)
        kept = stem[: rng.randint(1, len(stem))] if rng.random() < 0.5 else stem
        drawn.append(
            (kept + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 70))])[:LONGEST]
        )
    return drawn


def has_room(server: Server, live: list[Live], new: Live) -> bool:
    """Whether the pool holds all live requests to their ends and the new one, if all that is cached
    is evicted.
    """
    pages = sum(
        -(-(len(one.tokens) + one.num_answers) // server.page_size) + 2 for one in [*live, new]
    )
    return pages * server.page_size <= server.num_slots


def prefill(play: Play, started: Live | None, waiting: list[Live]) -> Any:
    """Prefill a chunk of the prompt that was begun, and up to two new ones.

    Returns the batch that can decode now.
    """
    server = play.server
    room = CHUNK
    chosen: list[tuple[Live, bool]] = []
    if started:
        is_whole = server.admit(started.req, room, is_first=False)
        room -= min(room, len(started.tokens) - prefix_length(started.req))
        chosen.append((started, is_whole))
    while waiting and room and len(chosen) < 2 and all(is_whole for _, is_whole in chosen):
        if len(play.live) >= NUM_ROWS or not has_room(server, play.live, waiting[0]):
            break
        one = waiting.pop(0)
        one.req = server.request(one.name, one.tokens, one.num_answers)
        chosen.append((one, server.admit(one.req, room, is_first=True)))
        one.stored = prefix_length(one.req)
        room -= min(room, len(one.tokens) - one.stored)
        play.live.append(one)
    batch = server.extend([one.req for one, _ in chosen])
    fill(play.poison, server.cache, batch.out_cache_loc, "kv.new")
    at = 0
    for one, is_whole in chosen:
        start = prefix_length(one.req)
        assert start == one.stored, "SGLang skips tokens without values"
        end = start + (len(one.tokens) - start if is_whole else CHUNK - at)
        play.store(one, batch.out_cache_loc[at : at + end - start])
        at += end - start
    server.forward(batch)
    assert at == len(batch.out_cache_loc), "the batch has other tokens than were admitted"
    play.look()
    with server.result(is_prefill=True):
        for one, is_whole in chosen:
            one.is_prefilled = is_whole
            if is_whole:
                answered(play, one, is_decoded=False)
    for one, is_whole in chosen:
        if not is_whole:
            server.keep(one.req, is_chunked=True)
    # The argument's name differs between releases.
    batch.filter_batch([one.req for one, is_whole in chosen if not is_whole])
    return batch if batch.reqs else None


def decode(play: Play, running: Any) -> None:
    running.prepare_for_decode()
    play.server.forward(running)
    fill(play.poison, play.server.cache, running.out_cache_loc, "kv.new")
    of = {id(one.req): one for one in play.live}
    for req, slot in zip(running.reqs, running.out_cache_loc, strict=True):
        play.store(of[id(req)], slot[None])
    play.look()
    with play.server.result(is_prefill=False):
        for req in list(running.reqs):
            answered(play, of[id(req)], is_decoded=True)


def answered(play: Play, one: Live, *, is_decoded: bool) -> None:
    """Do what SGLang does with a token: the request ends, or what was prefilled goes into the radix
    cache.
    """
    token = play.rng.randrange(VOCABULARY)
    one.req.output_ids.append(token)
    if len(one.req.output_ids) >= one.num_answers:
        one.req.finished_reason = FINISHED
        play.server.release(one.req)
        play.live.remove(one)
        return
    one.tokens.append(token)
    if not is_decoded:
        play.server.keep(one.req, is_chunked=False)


def at_end(play: Play) -> None:
    """Count slots after the last request: all are free or cached, none is locked, and all can be
    evicted.
    """
    server = play.server
    cached = server.tree.evictable_size()
    free = server.alloc.available_size()
    play.found.evidence += [
        Count("slots that are free or cached", server.num_slots, free + cached, "at the end"),
        Count("slots that a request still locks", 0, server.tree.protected_size(), "at the end"),
        Count(
            "rows of requests that are free", NUM_ROWS, server.rows.available_size(), "at the end"
        ),
    ]


def values_of(tokens: list[int], values: Tensor) -> Tensor:
    """The value of each token of a sequence: values [vocabulary, width] float32 -> float32 [tokens,
    width].

    It depends on the tokens before it.
    """
    # A sum of n random values grows with the root of n: the division keeps their size in a long
    # sequence. The place counts too, so prefixes of two lengths differ even if their sums are
    # equal.
    place = torch.arange(1, len(tokens) + 1, dtype=torch.float64)[:, None]
    return (values[tokens].double().cumsum(dim=0) / place.sqrt() + 0.01 * place).float()
