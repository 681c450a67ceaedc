"""Each part of the process that a plug-in may change is seen, worded, and restored as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.core.registry import attribute_at
from harness.evidence import compare
from harness.judge import outcome
from harness.kernels.process_state import (
    PROCESS_CHANGES,
    ProcessChange,
    watching,
    watching_call,
    watching_run,
)
from harness.kernels.watched import WATCHED

KEPT: list[Any] = []
"""What a plug-in holds in a variable of its module."""


class Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Refusing(TorchFunctionMode):
    """A mode in which nothing works, not even what would put it back by torch's own functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("no")


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def enter(manager: Any) -> None:
    KEPT.append(manager)
    manager.__enter__()


def delete() -> None:
    del torch.empty


def replace_kernel() -> None:
    KEPT.append(torch.library.Library("aten", "IMPL"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        KEPT[-1].impl("sinh", lambda x: x, "CPU")


def start_thread() -> None:
    KEPT.append(threading.Event())
    threading.Thread(target=KEPT[-1].wait, name="waiting", daemon=True).start()


def both() -> None:
    enter(Function())
    torch.set_default_device("meta")


CHANGES: dict[str, tuple[str, Callable[[], Any], str]] = {
    "torch.empty is another": (
        "functions of torch",
        lambda: setattr(torch, "empty", torch.zeros),
        "replaced torch.empty",
    ),
    "torch.empty is gone": ("functions of torch", delete, "replaced torch.empty"),
    "== of tensors": (
        "functions of torch",
        lambda: setattr(torch.Tensor, "__eq__", lambda a, b: True),
        "replaced torch.Tensor.__eq__",
    ),
    "an inherited method": (
        "functions of torch",
        lambda: setattr(torch.Tensor, "isfinite", lambda a: True),
        "replaced torch.Tensor.isfinite",
    ),
    "a kernel of torch": (
        "torch's kernels for the CPU",
        replace_kernel,
        "replaced torch's kernels for the CPU of sinh",
    ),
    "the comparator": (
        "code of the harness",
        lambda: setattr(compare, "compare", lambda *args: compare.Comparison(1)),
        "replaced harness.evidence.compare.compare",
    ),
    "a method of a record": (
        "code of the harness",
        lambda: setattr(outcome.Outcome, "result_of", lambda *args: None),
        "replaced harness.judge.outcome.Outcome.result_of",
    ),
    "a function mode": (
        "modes of torch",
        lambda: enter(Function()),
        "left a mode of torch on: Function",
    ),
    "a mode that refuses all": (
        "modes of torch",
        lambda: enter(Refusing()),
        "left a mode of torch on: Refusing",
    ),
    "a dispatch mode": (
        "modes of torch",
        lambda: enter(Dispatch()),
        "left a mode of torch on: Dispatch",
    ),
    "another mode ended": (
        "modes of torch",
        torch._C._pop_torch_function_stack,
        "ended a mode of torch that it did not begin",
    ),
    "the default device": (
        "default device",
        lambda: torch.set_default_device("meta"),
        "set the default device to meta",
    ),
    "a device in a with": (
        "default device",
        lambda: enter(torch.device("meta")),
        "set the default device to meta",
    ),
    "a mode and a device": ("modes of torch", both, "left a mode of torch on: Function"),
    "the default dtype": (
        "default dtype",
        lambda: torch.set_default_dtype(torch.float64),
        "set the default dtype to torch.float64",
    ),
    "inference mode": (
        "inference mode",
        lambda: enter(torch.inference_mode()),
        "set the inference mode to True",
    ),
    "grad mode": ("grad mode", lambda: torch.set_grad_enabled(False), "set the grad mode to False"),
    "deterministic algorithms": (
        "use of deterministic algorithms",
        lambda: torch.use_deterministic_algorithms(True),
        "changed the use of deterministic algorithms",
    ),
    "autocast": (
        "autocast settings",
        lambda: enter(torch.autocast("cpu")),
        "changed the autocast settings",
    ),
    "TF32": (
        "precision of float32 products",
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        "changed the precision of float32 products",
    ),
    "the precision of products": (
        "precision of float32 products",
        lambda: torch.set_float32_matmul_precision("medium"),
        "changed the precision of float32 products",
    ),
    "threads of torch": (
        "number of threads",
        lambda: torch.set_num_threads(3),
        "set the number of threads to 3",
    ),
    "denormals": (
        "flushing of denormals",
        lambda: torch.set_flush_denormal(True),
        "set the flushing of denormals to True",
    ),
    "a low recursion limit": (
        "recursion limit",
        lambda: set_lowest_limit(),
        "set the recursion limit to",
    ),
    "a high recursion limit": (
        "recursion limit",
        lambda: sys.setrecursionlimit(10**6),
        "set the recursion limit to 1000000",
    ),
    "warnings": (
        "warnings",
        lambda: warnings.filterwarnings("error", "of mine"),
        "made warnings errors",
    ),
    "a handler": (
        "signal handlers",
        lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        "set a handler of SIGTERM",
    ),
    "an alarm": (
        "alarms",
        lambda: signal.alarm(3600),
        "left an alarm set (signal.alarm, signal.setitimer)",
    ),
    "a thread": ("threads", start_thread, "left running: thread 'waiting'"),
    "the folder": ("working folder", lambda: os.chdir("/"), "set the working folder to /"),
}
NOT_RESTORED = {"a kernel of torch", "a thread"}


def set_lowest_limit() -> None:
    """Set the recursion limit as low as Python lets it be here."""
    for limit in range(10, 1000):
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(limit)
            return


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Around each test a folder and a mode of the suite's own, and the end of what cannot be
    restored.
    """
    monkeypatch.chdir(os.getcwd())
    with Function():
        yield
    for kept in KEPT:
        if isinstance(kept, threading.Event):
            kept.set()
        if isinstance(kept, torch.library.Library):
            kept._destroy()  # type: ignore[no-untyped-call]
    KEPT.clear()


def rows_that_differ(before: list[Any]) -> list[str]:
    return [
        row.name
        for row, old in zip(WATCHED, before, strict=True)
        if row.differs(old, now := row.read()) and row.says(old, now)
    ]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_worded_and_restored(name: str) -> None:
    row, change, says = CHANGES[name]
    before = [one.read() for one in WATCHED]
    with PROCESS_CHANGES.noting() as noted, watching("mine"):
        change()
    mine = next(one for one in noted if one.what.startswith(says))
    (watched,) = (one for one in WATCHED if one.name == row)
    assert mine == ProcessChange("mine", mine.what, watched.is_failure, name not in NOT_RESTORED)
    assert rows_that_differ(before) == (
        [] if name not in NOT_RESTORED else ["threads"] * (name == "a thread")
    )
    assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
    with PROCESS_CHANGES.noting() as again, watching("mine"):
        pass
    assert again == []


def test_each_row_of_the_table_has_a_change_that_it_sees() -> None:
    assert {row for row, _, _ in CHANGES.values()} == {row.name for row in WATCHED}
    assert all(row.why for row in WATCHED)


@pytest.mark.parametrize(
    "change",
    [
        lambda: None,
        lambda: setattr(torch.Tensor, "method_of_a_library", lambda self: self),
        lambda: setattr(torch, "function_of_a_library", len),
        lambda: setattr(torch, "load", len),
        lambda: warnings.simplefilter("ignore"),
        lambda: torch.manual_seed(3),
    ],
    ids=[
        "nothing",
        "a method more",
        "a function more",
        "torch.load",
        "fewer warnings",
        "random numbers",
    ],
)
def test_what_changes_no_number_and_no_memory_is_left_alone(
    change: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", torch.load)
    with warnings.catch_warnings(), PROCESS_CHANGES.noting() as noted, watching("mine"):
        change()
    assert noted == []


def test_an_exception_of_the_code_passes_after_all_was_restored() -> None:
    with PROCESS_CHANGES.noting() as noted, pytest.raises(KeyboardInterrupt), watching("mine"):
        torch.set_default_dtype(torch.float64)
        raise KeyboardInterrupt
    assert torch.get_default_dtype() is torch.float32 and len(noted) == 1


def test_a_call_and_a_run_together_watch_the_whole_table() -> None:
    def rows(watch: watching) -> set[str]:
        return {row.name for row in watch.rows}

    assert rows(watching_call("x")) | rows(watching_run("x")) == {row.name for row in WATCHED}
    assert not rows(watching_call("x")) & rows(watching_run("x"))


@pytest.mark.parametrize(
    ("place", "is_watched"),
    [
        ("harness.ops.parts.slots:stored_slots", True),
        ("harness.engine.attention:context_chunks", False),
        ("harness.ops.mla_decode.kernels.tiled:mla_decode", False),
    ],
)
def test_code_that_a_fault_may_replace_is_not_watched(
    place: str, is_watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = place.partition(":")
    right = attribute_at(place)
    with PROCESS_CHANGES.noting() as noted, watching("mine"):
        monkeypatch.setattr(f"{module}.{name}", len)
    assert (attribute_at(place) is right) is is_watched
    assert bool(noted) is is_watched
