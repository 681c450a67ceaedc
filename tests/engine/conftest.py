from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run on one core without gradients, as a worker does."""
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
