"""SGLang's allocators alone: is each slot given to one owner at a time, and slot 0 to none?

Owners take slots as prefills and decodes do, and free them in any order: the slots of a page at
once, and some owners in one group. Each writes its own value to each of its slots.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.api import Count, Run
from mla_harness_adapters.host_parts import of_all_rows
from mla_harness_sglang.host.scheduling import allocator_of, count_once, free_slots, publish
from mla_harness_sglang.params import SglangHostParams

NUM_PAGES = {1: 96, 16: 24, 64: 12}
WIDTH = 4
STEPS = 80


@dataclass(slots=True, eq=False)
class Owner:
    """Slots with the values that their owner wrote."""

    slots: Tensor
    values: Tensor


def run(poison: Poison, params: SglangHostParams) -> Run:
    """Allocate and free as drawn, and read what each owner holds after each step."""
    page_size = params.page_size
    publish(page_size)
    rng = random.Random(poison.seed)
    values = torch.Generator().manual_seed(poison.seed)
    num_slots = NUM_PAGES[page_size] * page_size
    alloc = allocator_of(page_size, num_slots)
    memory = poison.empty(num_slots + page_size, WIDTH, dtype=torch.float32, site="kv.new")
    owners: list[Owner] = []
    found = Run(poison.pattern)
    for step in range(STEPS):
        if owners and (rng.random() < 0.35 or alloc.available_size() < 4 * page_size):
            give_back(
                alloc,
                [
                    owners.pop(rng.randrange(len(owners)))
                    for _ in range(min(len(owners), rng.randint(1, 2)))
                ],
                rng,
            )
        elif owners and rng.random() < 0.5:
            grow(alloc, rng.choice(owners), memory, values)
        else:
            length = rng.randint(1, 3 * page_size) if page_size > 1 else rng.randint(1, 8)
            owners.append(start(alloc, length, memory, values))
        look(found, step, alloc, owners, memory, poison)
    give_back(alloc, owners, rng)
    free = free_slots(alloc)
    found.evidence += [
        Count("free slots", num_slots, len(free), "at the end"),
        count_once(free, "at the end"),
    ]
    return found


def start(alloc: Any, length: int, memory: Tensor, values: torch.Generator) -> Owner:
    """A new owner of `length` slots of memory [slots, WIDTH]."""
    none = torch.zeros(1, dtype=torch.int64)
    if alloc.page_size == 1:
        slots = alloc.alloc(length)
    else:
        total = torch.tensor([length])
        # There is no slot before the first one: -1.
        slots = alloc.alloc_extend(none, none, total, total, none - 1, length)
    owner = Owner(slots[:0], memory[:0])
    keep(owner, slots, memory, values)
    return owner


def grow(alloc: Any, owner: Owner, memory: Tensor, values: torch.Generator) -> None:
    """One slot of memory [slots, WIDTH] more for an owner."""
    if alloc.page_size == 1:
        slots = alloc.alloc(1)
    else:
        total = torch.tensor([len(owner.slots) + 1])
        slots = alloc.alloc_decode(total, total, owner.slots[-1:])
    keep(owner, slots, memory, values)


def keep(owner: Owner, slots: Tensor, memory: Tensor, values: torch.Generator) -> None:
    """Write the values of new `slots` [n] of memory [slots, WIDTH]."""
    new = torch.randn(len(slots), memory.shape[1], generator=values)
    memory[slots] = new
    owner.slots = torch.cat([owner.slots, slots])
    owner.values = torch.cat([owner.values, new])


def give_back(alloc: Any, owners: list[Owner], rng: random.Random) -> None:
    """Free all slots of the owners, in one group if there are several."""
    if len(owners) > 1:
        alloc.free_group_begin()
    for owner in owners:
        order = list(range(len(owner.slots)))
        rng.shuffle(order)
        alloc.free(owner.slots[order])
    if len(owners) > 1:
        alloc.free_group_end()


def look(
    found: Run, step: int, alloc: Any, owners: list[Owner], memory: Tensor, poison: Poison
) -> None:
    """Fill free slots and page 0 of memory [slots, WIDTH], then read what the owners hold."""
    free = free_slots(alloc)
    memory[free] = poison.empty(len(free), WIDTH, dtype=memory.dtype, site="kv.free")
    memory[: alloc.page_size] = poison.empty(
        alloc.page_size, WIDTH, dtype=memory.dtype, site="kv.null"
    )
    found.evidence.append(count_once(free, f"step {step}"))
    if owners:
        read = memory[torch.cat([owner.slots for owner in owners])]
        want = torch.cat([owner.values for owner in owners]).double()
        found.evidence.append(
            of_all_rows(f"values of owners in step {step}", read, want, "write_kv.fp32", "slot")
        )
