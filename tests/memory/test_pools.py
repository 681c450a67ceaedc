"""Large pools are copied and compared by the pages of the system that hold something."""

from __future__ import annotations

import torch

from harness.memory import pools

SHAPE = (40_000, 64, 32)


def pool() -> torch.Tensor:
    made = pools.zeros(*SHAPE, dtype=torch.bfloat16)
    made[39_000] = 1.0
    return made


def test_a_copy_has_the_content_and_shares_no_memory() -> None:
    made = pool()
    copy = pools.copied(made)
    assert pools.are_equal(made, copy)
    copy[5, 0, 0] = 2.0
    assert made[5, 0, 0] == 0.0 and not pools.are_equal(made, copy)


def test_an_element_that_changed_on_a_page_that_was_empty_is_seen() -> None:
    before = pool()
    after = pools.copied(before)
    after[20_000, 63, 31] = 1.0
    assert not pools.are_equal(before, after)


def test_a_pool_uses_memory_for_what_it_holds() -> None:
    held = sum(end - start for start, end in pools.used(pool()))
    # A system may give huge pages of 2 MiB.
    assert 64 * 32 * 2 <= held <= 4 << 20


def test_small_tensors_are_copied_as_torch_does() -> None:
    small = torch.randn(3, 4).T
    assert not pools.is_large(small)
    assert torch.equal(pools.copied(small), small)


def test_parts_that_touch_are_one() -> None:
    assert pools.merged([(8, 12), (0, 4), (4, 6), (11, 20)]) == [(0, 6), (8, 20)]
