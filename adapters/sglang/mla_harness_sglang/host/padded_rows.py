"""The input buffers of SGLang's decode graph: where do rows write that pad a batch to the size of a
graph?

The buffers and their filling are SGLang's, and so is the allocator. The harness stands for the
graph: each of its rows writes a value to the slot that the buffers name. Padded rows write last.
"""

from __future__ import annotations

import random

import torch
from torch_poison.patterns import Poison

from harness.api import Count, Run
from mla_harness_sglang.host.free_pages import Owner, give_back, grow, look, start
from mla_harness_sglang.host.graph_buffers import CAPTURED, GraphBuffers
from mla_harness_sglang.host.scheduling import allocator_of, publish
from mla_harness_sglang.params import SglangHostParams

NUM_SLOTS = 64
FILL_LENGTH = 1
STEPS = 40
WIDTH = 4


def run(poison: Poison, params: SglangHostParams) -> Run:
    """Decode batches of other sizes one after another, and read what each request holds after each
    step.
    """
    publish(params.page_size)
    rng = random.Random(poison.seed)
    values = torch.Generator().manual_seed(poison.seed)
    graph = GraphBuffers(FILL_LENGTH)
    alloc = allocator_of(params.page_size, NUM_SLOTS * params.page_size)
    memory = poison.empty(
        (NUM_SLOTS + 1) * params.page_size, WIDTH, dtype=torch.float32, site="kv.new"
    )
    running: list[Owner] = []
    found = Run(poison.pattern)
    for step in range(STEPS):
        wanted = rng.randint(1, CAPTURED[-1])
        while len(running) > wanted or any(len(one.slots) > 6 for one in running):
            longest = max(running, key=lambda one: len(one.slots))
            running.remove(longest)
            give_back(alloc, [longest], rng)
        while len(running) < wanted:
            running.append(start(alloc, rng.randint(1, 3), memory, values))
        for one in running:
            grow(alloc, one, memory, values)
        lengths = torch.tensor([len(one.slots) for one in running])
        size = graph.fill(
            torch.arange(1, wanted + 1), lengths, torch.cat([one.slots[-1:] for one in running])
        )
        slots = graph.read("out_cache_loc", size)
        padded = size - wanted
        memory[slots[wanted:]] = poison.empty(
            padded, WIDTH, dtype=memory.dtype, site="graph.pad_rows"
        )
        # Slot 0 is in the page without an owner: only there may padding be written.
        for name, right in (("out_cache_loc", 0), ("seq_lens", FILL_LENGTH)):
            num_right = int((graph.read(name, size)[wanted:] == right).sum())
            found.evidence.append(
                Count(f"padded rows with {right} in {name}", padded, num_right, f"step {step}")
            )
        look(found, step, alloc, running, memory, poison)
    return found
