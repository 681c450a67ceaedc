"""The allocator of slots or pages."""

import torch


class TokenToKVPoolAllocator:
    def __init__(self, size, page):
        self.page, self.size, self.device = page, size // page, "cpu"
        self.clear()

    def clear(self):
        # fmt: off
        self.free_pages = torch.arange(
            1, self.size + 1, dtype=torch.int64, device=self.device
        )
        # fmt: on
        self.release_pages = torch.empty(0, dtype=torch.int64)

    def alloc(self, count):
        pages = -(-count // self.page)
        taken, self.free_pages = self.free_pages[:pages], self.free_pages[pages:]
        return (taken[:, None] * self.page + torch.arange(self.page)).flatten()[:count]

    def free(self, slots):
        self.free_pages = torch.cat([self.free_pages, torch.unique(slots // self.page)])
