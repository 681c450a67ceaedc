"""A producer that is held, on a GPU: work behind its event reads what it wrote, and a late copy
what the host wrote.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


@pytest.mark.parametrize("waits", [True, False])
def test_only_work_that_waits_for_its_caller_reads_what_the_producer_wrote(waits: bool) -> None:
    from harness.memory.delayed_streams import DelayedStreams

    streams, side = DelayedStreams(torch.device("cuda"), 7), torch.cuda.Stream()
    source, target = torch.full((4096,), 3.0, device="cuda"), torch.zeros(4096, device="cuda")

    def doubled() -> Tensor:
        caller = torch.cuda.current_stream()
        if waits:
            side.wait_stream(caller)
        with torch.cuda.stream(side):
            found = target * 2
        caller.wait_stream(side)
        found.record_stream(caller)
        return found

    for in_order in (True, False):
        target.zero_()
        (found,) = streams(doubled, [(source, target)], None, in_order)
        assert found.unique().tolist() == [6.0 if waits or in_order else 0.0]


@pytest.mark.parametrize("waits", [True, False])
def test_only_a_copy_that_nobody_waits_for_reads_what_the_host_wrote_later(waits: bool) -> None:
    from harness.memory.delayed_streams import DelayedStreams

    streams, copied = DelayedStreams(torch.device("cuda"), 8), torch.cuda.Event()
    pinned = torch.zeros(4096).pin_memory()

    def copy(value: float) -> Tensor:
        if waits:
            copied.synchronize()
        pinned.fill_(value)
        found = pinned.to("cuda", non_blocking=True)
        copied.record()
        return found

    for in_order in (True, False):
        (found,) = streams(lambda: copy(1.0), [], lambda: copy(2.0), in_order)
        assert found.unique().tolist() == [1.0 if waits or in_order else 2.0]


@pytest.mark.parametrize("waits", [True, False])
def test_only_a_pinned_input_that_changes_under_its_copy_is_found(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mla_harness_vllm.serve import copies

    for name in copies.METHODS:
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))
    monkeypatch.setattr(copies, "COPIES", [])
    # With this seed four of the 60 copies are held back.
    copies.install("9")
    pinned, target, copied = (
        torch.zeros(64).pin_memory(),
        torch.zeros(64, device="cuda"),
        torch.cuda.Event(),
    )
    for value in range(60):
        if waits:
            copied.synchronize()
        pinned.fill_(float(value))
        target.copy_(pinned, non_blocking=True)
        copied.record()
    assert bool(copies.races()) is not waits
