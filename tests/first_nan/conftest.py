"""One thread for cases that run in this process, as in a worker: threads that wait for a core cost
seconds a step.
"""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
