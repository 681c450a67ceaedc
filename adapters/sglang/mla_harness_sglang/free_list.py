"""The pages and slots that SGLang's allocator will give away. No SGLang is imported here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def free_pages(allocator: Any) -> Tensor:
    """Page numbers [N] int64 in the order of the allocator's list, with those that were freed and
    not sorted yet. With pages of one token these are slots.

    A page that is free twice is here twice.
    """
    released = allocator.release_pages
    # Since 0.5.20 an allocator of pages keeps what was freed in another place until it is sorted.
    pages: Tensor = (
        allocator.get_all_free_pages()
        if released is None
        else torch.cat([allocator.free_pages, released])
    )
    return pages.long()


def slots_of(pages: Tensor, page_size: int) -> Tensor:
    """The slots of pages [N] int64, as [N * page_size] int64."""
    return (pages[:, None] * page_size + torch.arange(page_size, device=pages.device)).flatten()
