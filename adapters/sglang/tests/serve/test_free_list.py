"""Free pages of SGLang's allocators, with stand-ins for the two ways in which they keep them."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from mla_harness_sglang.free_list import free_pages, slots_of


def test_pages_that_are_freed_and_not_sorted_yet_are_free() -> None:
    before = SimpleNamespace(free_pages=torch.tensor([3, 4]), release_pages=torch.tensor([1]))
    assert free_pages(before).tolist() == [3, 4, 1]


def test_an_allocator_that_keeps_freed_pages_elsewhere_is_asked_for_all() -> None:
    since = SimpleNamespace(
        free_pages=torch.tensor([3, 4]),
        release_pages=None,
        get_all_free_pages=lambda: torch.tensor([3, 4, 1]),
    )
    assert free_pages(since).tolist() == [3, 4, 1]


def test_a_page_has_its_slots_one_after_the_other() -> None:
    assert slots_of(torch.tensor([2, 0]), 3).tolist() == [6, 7, 8, 0, 1, 2]
