"""A device beside the CPU, simulated: an op on tensors of both devices fails there as on a GPU.

A tensor on it is an `Elsewhere`, which holds CPU memory and says that its device is `OTHER`. Every
op is run on the CPU memory, after a check that its tensors are on one device. As on CUDA, a tensor
without dimensions, an index, and the source of a copy may be on the CPU.

`OTHER` is "meta", as torch knows no other device on every machine; nothing of torch's meta device
is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

OTHER = torch.device("meta")
_CPU = torch.device("cpu")
_COPIES = ("aten.copy_.", "aten._to_copy.")
_INDEXED = ("aten.index.", "aten.index_put", "aten._index_put_impl_")
_READS = ("aten._local_scalar_dense.",)


class Elsewhere(Tensor):
    """A tensor on the other device.

    `inner` is its memory, on the CPU, with the same shape, strides and dtype.
    """

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made = Tensor._make_wrapper_subclass(
            cls, inner.size(), **layout, dtype=inner.dtype, device=OTHER
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    # What reads the memory of a tensor, and is no op.
    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def tolist(self) -> Any:
        return self.inner.tolist()

    def set_(self, *args: Any) -> Tensor:
        # A wrapper cannot change its storage, so this is another one.
        return Elsewhere(self.inner.set_(*args))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return Elsewhere(self.inner.clone())

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Elsewhere) -> None:
        self.inner = value.inner

    # torch makes tensors of lists of numbers below dispatch, where the other device has no memory.
    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_with_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_with_tensors(index), value)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _with_tensors(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_with_tensors, index))
    return (
        torch.tensor(index, dtype=None if index else torch.int64)
        if isinstance(index, list)
        else index
    )


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an op on the CPU memory of its tensors.

    Raises RuntimeError if they are on both devices.
    """
    flat, spec = tree_flatten((args, kwargs))
    there = [one for one in flat if isinstance(one, Elsewhere)]
    name = str(func)
    if any(
        one.device == OTHER and not isinstance(one, Elsewhere)
        for one in flat
        if isinstance(one, Tensor)
    ):
        raise AssertionError(f"{name}: a tensor on {OTHER} has no memory; see how it was made")
    _check(name, args, [one for one in flat if isinstance(one, Tensor)])
    asked = next((one for one in flat if isinstance(one, torch.device)), None)
    plain = [
        one.inner if isinstance(one, Elsewhere) else _CPU if one == OTHER else one for one in flat
    ]
    given, named = tree_unflatten(plain, spec)
    result = func(*given, **named)
    if name.startswith(_READS):
        return result
    is_there = isinstance(args[0], Elsewhere) if name.startswith("aten.copy_.") else bool(there)
    is_there = is_there if asked is None else asked == OTHER
    known = {id(one.inner): one for one in there}

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, Elsewhere):
            return value
        if id(value) in known:
            # An op in place returns the tensor that it was given.
            return known[id(value)]
        return Elsewhere(value) if is_there else value

    return tree_map(placed, result)


def _check(name: str, args: Any, tensors: list[Tensor]) -> None:
    if name.startswith(_COPIES):
        return
    if name.startswith(_INDEXED):
        # Indices may be on the CPU, but not those of a tensor there. The values that are put are
        # where the tensor is.
        tensors = [args[0], *args[2:3]] if isinstance(args[0], Elsewhere) else tensors
        tensors = [one for one in tensors if isinstance(one, Tensor)]
    sized = [one for one in tensors if one.dim() > 0]
    places = {isinstance(one, Elsewhere) for one in sized}
    if len(places) == 2:
        shapes = [
            (tuple(one.shape), "there" if isinstance(one, Elsewhere) else "cpu") for one in sized
        ]
        raise RuntimeError(f"Expected all tensors to be on the same device: {name} on {shapes}")


class _Dispatch(TorchDispatchMode):
    """Makes tensors of ops that ask for the other device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Made(TorchFunctionMode):
    """Makes tensors where Python asks for the other device:

    `torch.tensor` and `Tensor.to` allocate below dispatch.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        asks = any(map(_is_other, (*args, kwargs.get("device"))))
        if func in (torch.device, torch._C._nn._parse_to) or not asks:
            return func(*args, **kwargs)
        if func is Tensor.to and isinstance(args[0], Elsewhere):
            dtypes = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.dtype)]
            return args[0].to(*dtypes) if dtypes else args[0]
        kwargs = {name: _CPU if _is_other(value) else value for name, value in kwargs.items()}
        made = func(*(_CPU if _is_other(one) else one for one in args), **kwargs)
        return (
            Elsewhere(made)
            if isinstance(made, Tensor) and not isinstance(made, Elsewhere)
            else made
        )


def _is_other(value: Any) -> bool:
    return isinstance(value, torch.device | str) and str(value).partition(":")[0] == OTHER.type


@contextlib.contextmanager
def other_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """While it lasts, tensors can be made on the device of the name that it gives. No gradients."""
    # Parts of a kernel switch dispatch off because a mode costs time; then no check would see their
    # ops.
    monkeypatch.setattr(torch._C, "_DisableTorchDispatch", contextlib.nullcontext)
    # `Module.to` puts new parameters in place of the old ones.
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    with torch.no_grad(), _Made(), _Dispatch():
        yield str(OTHER)
