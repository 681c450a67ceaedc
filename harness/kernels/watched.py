"""The parts of a process that a plug-in may leave changed: how each is read, restored and worded.

`WATCHED` is the table. Not in it: torch's generator of random numbers, as the harness draws from
generators of its own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import ne
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from harness.core.finding_words import few
from harness.kernels import replaced_code


@dataclass(frozen=True, slots=True)
class Watched:
    """A part of the process.

    `read` returns it, and `restore` makes it what was read before. `differs` compares two readings,
    and `says` words their difference after the name of who made it; empty for a difference that
    does not matter. `each_call`: the harness computes with it between two calls, so it is restored
    after each call, and else after each run. `is_constant`: only foreign code changes it, so it is
    read once before, which saves time.
    """

    name: str
    why: str
    read: Callable[[], Any]
    restore: Callable[[Any], None] | None
    says: Callable[[Any, Any], str]
    differs: Callable[[Any, Any], bool] = ne
    is_failure: bool = False
    each_call: bool = True
    is_constant: bool = False


def _setting(
    name: str,
    why: str,
    read: Callable[[], Any],
    restore: Callable[[Any], Any],
    *,
    each_call: bool = True,
    has_word: bool = True,
) -> Watched:
    """A row for a setting, which says the new value if it `has_word`."""

    def says(before: Any, after: Any) -> str:
        return f"set the {name} to {after}" if has_word else f"changed the {name}"

    return Watched(name, why, read, restore, says, each_call=each_call)


# Modes of torch.


def _function_modes() -> list[Any]:
    return list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def _device_modes() -> list[Any]:
    return [mode for mode in _function_modes() if isinstance(mode, DeviceContext)]


def _other_modes_only() -> list[Any]:
    return [mode for mode in _function_modes() if not isinstance(mode, DeviceContext)]


def _set_function_modes(wanted: list[Any]) -> None:
    for _ in _function_modes():
        # All are taken off and pushed again, as torch cannot remove one from the middle.
        torch._C._pop_torch_function_stack()
    for mode in wanted:
        torch._C._push_on_torch_function_stack(mode)


def _set_device_modes(wanted: list[Any]) -> None:
    """Set what `torch.set_default_device`, or `torch.device` in a `with`, sets.

    Torch's own exits need its entries.
    """
    _set_function_modes(wanted + _other_modes_only())
    torch.utils._device.CURRENT_DEVICE = wanted[-1].device if wanted else None
    torch._GLOBAL_DEVICE_CONTEXT.device_context = wanted[0] if wanted else None


def _says_device(before: list[Any], after: list[Any]) -> str:
    return f"set the default device to {after[-1].device if after else 'cpu'}"


Modes = tuple[list[Any], list[Any]]
"""Function modes without that of the default device, and dispatch modes, the innermost last."""


def _modes() -> Modes:
    return _other_modes_only(), _get_current_dispatch_mode_stack()


def _are_others(before: list[Any], after: list[Any]) -> bool:
    return list(map(id, before)) != list(map(id, after))


def _are_other_modes(before: Modes, after: Modes) -> bool:
    return any(map(_are_others, before, after))


def _set_modes(wanted: Modes) -> None:
    functions, dispatches = wanted
    _set_function_modes(_device_modes() + functions)
    for mode in reversed(_get_current_dispatch_mode_stack()):
        torch._C._pop_torch_dispatch_stack(getattr(mode, "_mode_key", None))
    for mode in dispatches:
        torch._C._push_on_torch_dispatch_stack(mode)


def _says_modes(before: Modes, after: Modes) -> str:
    known = {id(mode) for modes in before for mode in modes}
    left = [type(mode).__name__ for modes in after for mode in modes if id(mode) not in known]
    return (
        f"left a mode of torch on: {few(left)}"
        if left
        else "ended a mode of torch that it did not begin"
    )


# Settings of torch.

_guards: list[Any] = []
"""The guards that hold inference mode off. It would come back if they were collected."""


def _set_inference_mode(wanted: bool) -> None:
    # Torch has no switch for it.
    _guards.append(torch.inference_mode(wanted))
    _guards[-1].__enter__()


def _determinism() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        bool(torch.utils.deterministic.fill_uninitialized_memory),  # type: ignore[attr-defined]
    )


def _set_determinism(wanted: tuple[bool, bool, bool]) -> None:
    is_on, only_warns, fills = wanted
    torch.use_deterministic_algorithms(is_on, warn_only=only_warns)
    torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


_AUTOCAST = ("cpu", "cuda")


def _autocast() -> tuple[Any, ...]:
    return tuple(
        (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in _AUTOCAST
    )


def _set_autocast(wanted: tuple[Any, ...]) -> None:
    for device, (is_enabled, dtype) in zip(_AUTOCAST, wanted, strict=True):
        torch.set_autocast_enabled(device, is_enabled)
        torch.set_autocast_dtype(device, dtype)


def _matmul_backends() -> list[Any]:
    backends: Any = torch.backends
    return [
        backends,
        backends.cuda.matmul,
        backends.cudnn.conv,
        backends.cudnn.rnn,
        backends.mkldnn.matmul,
    ]


def _precision() -> tuple[str, ...]:
    return tuple(backend.fp32_precision for backend in _matmul_backends())


def _set_precision(wanted: tuple[str, ...]) -> None:
    # The older switches of torch must agree with the newer ones, or reading them raises.
    torch.set_float32_matmul_precision("highest")
    for backend, precision in zip(_matmul_backends(), wanted, strict=True):
        backend.fp32_precision = precision


_smallest_normal = sys.float_info.min


def _flushes_denormals() -> bool:
    return _smallest_normal / 2 == 0.0


# The interpreter and the process.

_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGPIPE,
)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _handlers() -> tuple[Any, ...]:
    return tuple(map(signal.getsignal, _SIGNALS))


def _other_handlers(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    return any(old is not new for old, new in zip(before, after, strict=True))


def _set_handlers(wanted: tuple[Any, ...]) -> None:
    for number, handler in zip(_SIGNALS, wanted, strict=True):
        # None is a handler that was not set by Python. Only the main thread may set one.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)


def _says_handlers(before: tuple[Any, ...], after: tuple[Any, ...]) -> str:
    names = [
        signal.Signals(n).name
        for n, old, new in zip(_SIGNALS, before, after, strict=True)
        if old is not new
    ]
    return f"set a handler of {few(names)}"


def _timers() -> tuple[bool, ...]:
    return tuple(signal.getitimer(which)[0] > 0 for which in _TIMERS)


def _stop_timers(wanted: tuple[bool, ...]) -> None:
    for which, was_on in zip(_TIMERS, wanted, strict=True):
        if not was_on:
            signal.setitimer(which, 0)


def _says_timers(before: tuple[bool, ...], after: tuple[bool, ...]) -> str:
    is_new = any(now and not then for then, now in zip(before, after, strict=True))
    return "left an alarm set (signal.alarm, signal.setitimer)" if is_new else ""


def _says_threads(before: list[threading.Thread], after: list[threading.Thread]) -> str:
    names = [repr(thread.name) for thread in after if thread not in before]
    return f"left running: thread {few(names)}" if names else ""


def _errors_of_warnings(filters: Sequence[Any]) -> set[Any]:
    return {one for one in filters if one[0] == "error"}


def _set_filters(wanted: Sequence[Any]) -> None:
    warnings.filters[:] = wanted  # type: ignore[index]
    # Python keeps what it decided by the filters before.
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _folder() -> str:
    with suppress(OSError):
        return os.getcwd()
    return ""


def _set_folder(wanted: str) -> None:
    if wanted:
        os.chdir(wanted)


WATCHED = (
    # First of all: a mode sees the calls of torch that put the others back.
    Watched(
        "modes of torch",
        "a mode stands between each caller and torch, as a replaced function does",
        _modes,
        _set_modes,
        _says_modes,
        _are_other_modes,
        is_failure=True,
    ),
    Watched(
        "functions of torch",
        "a replaced torch.empty allocates memory that no poison reaches, a replaced == compares"
        " otherwise",
        replaced_code.functions_of_torch,
        replaced_code.set_functions_of_torch,
        replaced_code.says_functions_of_torch,
        replaced_code.other_functions_of_torch,
        is_failure=True,
        is_constant=True,
    ),
    Watched(
        "torch's kernels for the CPU",
        "the reference and the oracles compute with them",
        replaced_code.num_kernels_of_aten,
        None,
        replaced_code.says_kernels_of_aten,
        is_failure=True,
    ),
    Watched(
        "code of the harness",
        "a replaced comparator or reference gives any verdict",
        replaced_code.code_of_harness,
        replaced_code.set_code_of_harness,
        replaced_code.says_code_of_harness,
        replaced_code.other_code_of_harness,
        is_failure=True,
        each_call=False,
    ),
    Watched(
        "default device",
        "new tensors lie there",
        _device_modes,
        _set_device_modes,
        _says_device,
        _are_others,
    ),
    _setting(
        "default dtype", "new tensors have it", torch.get_default_dtype, torch.set_default_dtype
    ),
    # In front of the grad mode, which it turns off.
    _setting(
        "inference mode",
        "its tensors cannot be written later",
        torch.is_inference_mode_enabled,
        _set_inference_mode,
    ),
    _setting(
        "grad mode",
        "every tensor would keep its inputs",
        torch.is_grad_enabled,
        torch.set_grad_enabled,
    ),
    _setting(
        "use of deterministic algorithms",
        "torch fills or refuses what it does not otherwise",
        _determinism,
        _set_determinism,
        has_word=False,
    ),
    _setting(
        "autocast settings", "products round to its dtype", _autocast, _set_autocast, has_word=False
    ),
    _setting(
        "number of threads", "sums are cut by it", torch.get_num_threads, torch.set_num_threads
    ),
    _setting(
        "flushing of denormals",
        "small numbers of the reference become 0",
        _flushes_denormals,
        torch.set_flush_denormal,
    ),
    _setting(
        "recursion limit", "a low one ends deep calls", sys.getrecursionlimit, sys.setrecursionlimit
    ),
    Watched(
        "warnings",
        "a warning of torch would be an error",
        lambda: tuple(warnings.filters),
        _set_filters,
        lambda before, after: "made warnings errors",
        lambda before, after: (
            before != after and not _errors_of_warnings(after) <= _errors_of_warnings(before)
        ),
    ),
    _setting(
        "precision of float32 products",
        "TF32 and bfloat16 round them",
        _precision,
        _set_precision,
        each_call=False,
        has_word=False,
    ),
    Watched(
        "signal handlers",
        "Ctrl-C and time limits need them",
        _handlers,
        _set_handlers,
        _says_handlers,
        _other_handlers,
        each_call=False,
    ),
    Watched("alarms", "one ends the process later", _timers, _stop_timers, _says_timers),
    Watched(
        "threads",
        "one that computes slows down later cases",
        threading.enumerate,
        None,
        _says_threads,
        each_call=False,
    ),
    _setting("working folder", "relative paths begin there", _folder, _set_folder, each_call=False),
)
"""Everything that is looked at, each with its reason."""
