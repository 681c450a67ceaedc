"""Poison for allocations: every new uninitialized tensor is filled, by a dispatch mode or in the
dispatcher.

The mode sees `torch.empty`, `empty_like`, `empty_strided`, `new_empty` and `resize_` of one thread,
also within composite ops. Memory that ATen allocates inside an op (the result of a matmul) is
written by that op and needs no poison. A mode costs some microseconds for each op.

The dispatcher's three kernels that allocate are wrapped for any program. The wrappers cost nothing
for other ops, and see all callers: Python, TorchScript, C++ and CUDA extensions, other threads.
`empty_like`, `new_empty`, `empty_permuted`, `torch.Tensor(n)` and `resize_as_` call these three;
results of most ops do not. Not reached: code of torch.compile, storages made without a tensor, and
an extension's own `cudaMalloc`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.library import Library
from torch.utils._python_dispatch import TorchDispatchMode

from torch_poison.errors import PoisonError
from torch_poison.frames import line_of_caller
from torch_poison.marks import CallSite, CallSites, mark_
from torch_poison.patterns import Poison
from torch_poison.sites import WORKSPACE
from torch_poison.storages import storage_address, whole_storage

_aten = torch.ops.aten
ALLOCATIONS = frozenset(
    {
        _aten.empty.memory_format,
        _aten.empty_like.default,
        _aten.empty_strided.default,
        _aten.new_empty.default,
        _aten.new_empty_strided.default,
        _aten.empty_permuted.default,
    }
)
"""The ops that return uninitialised memory. A replay does not repeat them."""
_RESIZES = frozenset({id(_aten.resize_.default), id(_aten.resize_as_.default)})
_ALLOCATES = frozenset(id(op) for op in ALLOCATIONS)
"""Numbers of ops, which all live as long as torch: the hash of an op is Python code."""
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def only_writes(function: FunctionT) -> FunctionT:
    """Mark a part of a kernel that makes no uninitialised memory and no result: dispatch modes see
    none of its ops.

    A mode costs as much as some small ops, which makes it most of the time of a small decode.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._DisableTorchDispatch():
            return function(*args, **kwargs)

    return cast(FunctionT, call)


class QuickDispatch:
    """The first base of a dispatch mode that is not prepared for torch.compile: that costs a third
    of a dispatch.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class AllocationPoison(QuickDispatch, TorchDispatchMode):
    """Fills each uninitialized allocation as memory of a site.

    `sites` maps the ordinal of an allocation (from 0) to its site; the default is `workspace`. With
    `keep`, allocations are kept alive for `allocations`; without it every allocation has the
    ordinal 0. With `notes_lines`, memory is kept too, and `lines` has the lines of code that
    allocated it.
    """

    def __init__(
        self,
        poison: Poison,
        sites: Mapping[int, str] | None = None,
        keep: bool = True,
        notes_lines: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._poison = poison
        self._sites = sites or {}
        self._kept: list[Tensor] = []
        self._keeps = keep
        self._notes_lines = notes_lines
        self._noted: list[tuple[str, str, Tensor]] = []

    @property
    def allocations(self) -> list[int]:
        """Storage addresses in the order of allocation. None is reused."""
        return [storage_address(tensor) for tensor in self._kept]

    @property
    def lines(self) -> dict[str, list[str]]:
        """Site -> the lines of code that allocated memory of it which nothing has written as a
        whole.
        """
        found: dict[str, dict[str, None]] = {}
        for site, line, tensor in self._noted:
            # A NaN is left where nothing was written. Memory that was written as a whole has none.
            if line and tensor.is_floating_point() and bool(whole_storage(tensor).isnan().any()):
                found.setdefault(site, {})[line] = None
        return {site: list(lines) for site, lines in found.items()}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        # A resize allocates only what it adds: the old part holds values that stay.
        if id(func) in _RESIZES:
            return self._resize(func, args, kwargs or {})
        out = func(*args, **kwargs) if kwargs else func(*args)
        if id(func) in _ALLOCATES:
            # Ordinals name a kernel's outputs, which it allocates in a fixed order; what follows is
            # scratch.
            site = self._sites.get(len(self._kept), WORKSPACE)
            self._poison.fill_(whole_storage(out), site)
            if self._notes_lines:
                self._noted.append((site, line_of_caller(), out))
            if self._keeps:
                self._kept.append(out)
        return out

    def _resize(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor: Tensor = args[0]
        before = tensor.untyped_storage().nbytes() // tensor.element_size()
        out = func(*args, **kwargs)
        whole = whole_storage(tensor)
        if whole.numel() > before:
            self._poison.fill_(whole[before:], WORKSPACE)
        return out


MAX_BYTES = 2 << 30
"""Larger allocations are not filled: some programs reserve memory that they never touch."""

RANDOM_ELEMENTS = 1 << 20
"""Larger memory repeats its random numbers: making them needs 30 times their memory."""

_NAMES = [
    "bits16",
    "bits8",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "float4_e2m1fn_x2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
_NAMES += [f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)]
_CANNOT_HOLD = {getattr(torch, name) for name in _NAMES if hasattr(torch, name)}
"""Types that torch cannot fill with the value of a pattern. Their bytes are filled."""


class DispatcherPoison:
    """Fills the dispatcher's allocations while a pattern is set.

    `pattern` is the current one, or None. It `is_paused` for the poison's own allocations.
    `wanted` returns whether the memory of a call site is filled. `on_fill` is called for each
    filled one.
    """

    def __init__(self, call_sites: CallSites) -> None:
        self.call_sites = call_sites
        self.wanted: Callable[[CallSite], bool] = lambda site: True
        self.on_fill: Callable[[CallSite, FrameType | None], None] = lambda site, frame: None
        self.filled = 0
        self.pattern: str | None = None
        self._poison: Poison | None = None
        self.is_paused = False
        self._library: Library | None = None

    def install(self) -> None:
        """Wrap the kernels of each device type of this machine.

        Raises PoisonError where torch cannot be wrapped.
        """
        get_kernel = getattr(torch.library, "get_kernel", None)
        if get_kernel is None:
            raise PoisonError(
                f"--poison: torch {torch.__version__} cannot wrap kernels; 2.11 or later can"
            )
        self._library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced is the purpose
            # Counting devices would start the driver. Then a suite could neither set
            # CUDA_VISIBLE_DEVICES nor fork.
            for key in ("CPU", *(["CUDA"] if torch.version.cuda is not None else [])):
                keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
                for name, wrap in (
                    ("empty.memory_format", self._allocating),
                    ("empty_strided", self._allocating),
                    ("resize_", self._resizing),
                ):
                    wrapped = wrap(get_kernel(f"aten::{name}", key), keys)
                    self._library.impl(name, wrapped, key)  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Restore torch's own kernels."""
        if self._library is not None:
            self._library._destroy()  # type: ignore[no-untyped-call]
            self._library = None

    @contextlib.contextmanager
    def filling(self, pattern: str) -> Iterator[None]:
        """Fill with `pattern` within the block. `nan` marks memory with the number of its line."""
        before = self.pattern, self._poison
        self.pattern = pattern
        self._poison = Poison(pattern, frozenset({WORKSPACE}))
        try:
            yield
        finally:
            self.pattern, self._poison = before

    def _allocating(self, kernel: Any, keys: Any) -> Callable[..., Tensor]:
        def allocate(*args: Any, **kwargs: Any) -> Tensor:
            out: Tensor = kernel.call_boxed(keys, *args, **kwargs)
            if self._poison is not None and not self.is_paused and out.numel():
                self._fill(out, 0, out.is_contiguous(), sys._getframe().f_back)
            return out

        return allocate

    def _resizing(self, kernel: Any, keys: Any) -> Callable[..., Tensor]:
        def resize(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            """Resize a tensor of any shape, and fill what it gained."""
            if self._poison is None or self.is_paused:
                kernel.call_boxed(keys, tensor, *args, **kwargs)
                return tensor
            before = tensor.untyped_storage().nbytes()
            kernel.call_boxed(keys, tensor, *args, **kwargs)
            if tensor.untyped_storage().nbytes() > before:
                self._fill(tensor, before, False, sys._getframe().f_back)
            return tensor

        return resize

    def _fill(self, tensor: Tensor, old_bytes: int, is_all: bool, frame: FrameType | None) -> None:
        """Fill the storage of `tensor` past its first `old_bytes` bytes; `is_all` if it has no
        gaps.

        `frame` is None in a C++ thread, such as autograd's for a CUDA device.
        """
        num_bytes = tensor.nbytes if is_all else tensor.untyped_storage().nbytes()
        if num_bytes > MAX_BYTES or tensor.is_quantized:
            return
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return  # a captured fill would run again at each replay; free memory of the pool is swept instead  # noqa: E501
        # Filling allocates too, and no mode of the program under test may see or change that.
        self.is_paused = True
        try:
            site = self.call_sites.note(frame)
            if not self.wanted(site):
                return
            self.on_fill(site, frame)
            self.filled += 1
            with torch._C.DisableTorchFunction():
                # `.data` and a fresh tensor have a version counter of their own.
                if is_all:
                    self._write(tensor.data, site.number)
                else:
                    self._write(
                        # Rounded up: an element that was there in part keeps its bits.
                        whole_storage(tensor)[-(-old_bytes // tensor.element_size()) :],
                        site.number,
                    )
        finally:
            self.is_paused = False

    def _write(self, memory: Tensor, number: int) -> None:
        assert self._poison is not None
        if self.pattern == "nan":
            mark_(memory, number)
            return
        flat = (torch.view_as_real(memory) if memory.is_complex() else memory).view(-1)
        if flat.dtype in _CANNOT_HOLD:
            flat = flat.view(torch.uint8)
        done = len(flat) if self.pattern != "random" else min(len(flat), RANDOM_ELEMENTS)
        self._poison.fill_(flat[:done], WORKSPACE)
        # The part that is filled doubles in each round.
        while done < len(flat):
            size = min(done, len(flat) - done)
            flat[done : done + size].copy_(flat[:size])
            done += size

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not fill the poison's own allocations within the block."""
        before = self.is_paused
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = before
