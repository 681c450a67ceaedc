"""All that the dispatcher hands out is filled, whoever asks, and nothing else changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch_poison.allocations import MAX_BYTES, DispatcherPoison
from torch_poison.marks import CallSite, CallSites, find, plain


@pytest.fixture
def poison() -> Iterator[DispatcherPoison]:
    made = DispatcherPoison(CallSites(lambda path: path == __file__, [torch.__path__[0]]))
    made.install()
    yield made
    made.remove()


FACTORIES: list[Callable[[], torch.Tensor]] = [
    lambda: torch.empty(3, 4),
    lambda: torch.empty_like(torch.ones(3, 4)),
    lambda: torch.ones(2).new_empty(5),
    lambda: torch.empty_strided((2, 3), (8, 2)),
    lambda: torch.empty_permuted((2, 3), (1, 0)),
    lambda: torch.empty(0).resize_(6),
    lambda: torch.empty(0).resize_as_(torch.ones(2, 3)),
    lambda: torch.empty(6, out=torch.empty(0)),
    lambda: torch.Tensor(4),
    lambda: torch.empty(2, dtype=torch.complex128),
    lambda: torch.empty(2, dtype=torch.int64),
    lambda: torch.empty(2, dtype=torch.bfloat16),
]


@pytest.mark.parametrize("number", range(len(FACTORIES)))
def test_every_way_to_allocate_is_marked_with_its_line(
    poison: DispatcherPoison, number: int
) -> None:
    with poison.filling("nan"):
        tensor = plain(FACTORIES[number]())
    (mark,) = find(tensor)
    assert mark.count == tensor.numel()
    if mark.is_wide:
        site = poison.call_sites.numbered(mark.number)
        assert site is not None and site.owner == "tests"
        assert site.line == (FACTORIES[number].__code__, FACTORIES[number].__code__.co_firstlineno)


@pytest.mark.parametrize(
    ("pattern", "value"), [("max", torch.finfo(torch.float32).max), ("inf", float("inf"))]
)
def test_other_patterns_are_those_of_the_harness(
    poison: DispatcherPoison, pattern: str, value: float
) -> None:
    with poison.filling(pattern):
        assert torch.empty(2).tolist() == [value] * 2


def test_other_threads_and_torchscript_are_reached(poison: DispatcherPoison) -> None:
    found: list[torch.Tensor] = []
    with poison.filling("nan"):
        thread = threading.Thread(target=lambda: found.append(torch.empty(3)))
        thread.start()
        thread.join()
    assert find(found[0])


@torch.jit.script
def empty_like_in_another_thread(values: torch.Tensor) -> torch.Tensor:
    return torch.jit.wait(torch.jit.fork(torch.empty_like, values))  # type: ignore[no-any-return]


def test_a_thread_without_any_python_frame_is_reached(poison: DispatcherPoison) -> None:
    with poison.filling("nan"):
        got = empty_like_in_another_thread(torch.ones(4))
    (mark,) = find(got)
    site = poison.call_sites.numbered(mark.number)
    assert mark.count == 4 and site is not None and site.owner == "code"


def test_large_memory_repeats_random_numbers(
    poison: DispatcherPoison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_poison.allocations.RANDOM_ELEMENTS", 4)
    with poison.filling("random"):
        got = torch.empty(11)
    assert len(got[:4].unique()) > 1
    assert torch.equal(got.view(torch.int32), got[:4].repeat(3)[:11].view(torch.int32))


@pytest.mark.parametrize("pattern", ["nan", "max", "inf", "random", "zeros"])
def test_memory_of_every_type_is_filled(poison: DispatcherPoison, pattern: str) -> None:
    types = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for dtype in sorted(types, key=str):
        if not dtype.is_complex and "q" not in str(dtype):
            before = poison.filled
            with poison.filling(pattern):
                torch.empty(8, dtype=dtype)
            assert poison.filled == before + 1, dtype


def test_the_driver_is_not_started_to_see_whether_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("is_available", "device_count", "_lazy_init"):
        monkeypatch.setattr(torch.cuda, name, lambda: pytest.fail("asked the driver"))
    poison = DispatcherPoison(CallSites(lambda path: True, []))
    poison.install()
    poison.remove()


def test_without_a_pattern_nothing_is_filled_and_removed_is_removed(
    poison: DispatcherPoison,
) -> None:
    torch.empty(5)
    assert poison.filled == 0
    poison.remove()
    with poison.filling("nan"):
        torch.empty(5)
    assert poison.filled == 0


def test_what_an_operation_writes_is_as_ever(poison: DispatcherPoison) -> None:
    state = torch.get_rng_state()
    with poison.filling("random"):
        assert torch.zeros(3).tolist() == [0.0] * 3
        assert torch.full((2,), 7.0).tolist() == [7.0] * 2
        assert torch.arange(3).tolist() == [0, 1, 2]
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).tolist() == [[2.0, 2.0]] * 2
        torch.empty(100)
    assert torch.equal(torch.get_rng_state(), state)


def test_resizing_fills_only_what_is_new(poison: DispatcherPoison) -> None:
    tensor = torch.arange(3.0)
    with poison.filling("nan"):
        tensor.resize_(5)
    assert tensor[:3].tolist() == [0.0, 1.0, 2.0]
    (mark,) = find(tensor)
    assert (mark.count, mark.first) == (2, 3)


def test_version_counters_autograd_and_modes_see_nothing(poison: DispatcherPoison) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[object] = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with poison.filling("nan"):
        tensor = torch.empty(3, requires_grad=True)
        with Seeing(), torch.device("cpu"):
            torch.empty(2)
    assert (tensor._version, tensor.grad_fn, tensor.is_leaf) == (0, None, True)
    assert seen == [torch.ops.aten.empty.memory_format]


def test_unwanted_lines_and_huge_reservations_are_left_alone(
    poison: DispatcherPoison, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(site: CallSite) -> bool:
        return False

    with poison.filling("nan"):
        monkeypatch.setattr("torch_poison.allocations.MAX_BYTES", 64)
        torch.empty(64)
        assert poison.filled == 0
        poison.wanted = unwanted
        torch.empty(2)
    assert poison.filled == 0
    assert MAX_BYTES > 64


def test_an_operator_of_a_fake_tensor_is_not_reached(poison: DispatcherPoison) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with poison.filling("nan"), FakeTensorMode():
        assert torch.empty(3).shape == (3,)
    assert poison.filled == 0
