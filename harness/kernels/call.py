"""A kernel under poison: one launch, with every allocation filled and named by its site."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch_poison import errors
from torch_poison.allocations import AllocationPoison
from torch_poison.patterns import Poison
from torch_poison.storages import tensors_of

from harness.core.cause_codes import Code
from harness.core.errors import (
    BrokenPlugin,
    IllegalAddress,
    KernelError,
    Refused,
    line_of,
    message_of,
)
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.kernels.outputs import BadOutput, is_plain, plain_outputs
from harness.kernels.process_state import watching_call
from harness.kernels.undeclared import hint
from harness.memory.bounds import finding_of
from harness.memory.graph.launch import holding, launch

_launched: ContextVar[Counter[str] | None] = ContextVar("harness_launched_kernels", default=None)
_intercepts: ContextVar[bool] = ContextVar("harness_intercepts_allocations", default=True)
OutputSites = dict[tuple[Any, ...], dict[int, str]]
"""Name of a kernel and shapes of its arguments -> ordinal of an allocation -> site of the output it
became.
"""
_output_sites: ContextVar[OutputSites | None] = ContextVar("harness_output_sites", default=None)


@contextlib.contextmanager
def counting_launches() -> Iterator[Counter[str]]:
    """The name of each kernel that is launched inside the block -> how often.

    Blocks around it count them too.
    """
    launched: Counter[str] = Counter()
    try:
        with holding(_launched, launched):
            yield launched
    finally:
        if (around := _launched.get()) is not None:
            around.update(launched)


def note_launch(name: str) -> None:
    launched = _launched.get()
    if launched is not None:
        launched[name] += 1


def keeping_output_sites() -> AbstractContextManager[OutputSites | None]:
    """Inside the block all kernels share what is known of their outputs.

    Outside of one, each kernel has its own.
    """
    return holding(_output_sites, {})


def without_interception() -> AbstractContextManager[bool]:
    """Record and fill no allocation of a kernel inside the block."""
    return holding(_intercepts, False)


class BoundKernel:
    """A kernel with the poison of the run. A call is one launch.

    Which allocations become outputs is known only when the kernel returns, so it is guessed: those
    of the last call with these shapes, see `keeping_output_sites`, else of the last call with any
    shapes, else the first allocations in the order of the outputs. A call that allocates in another
    order runs again, with the right sites for outputs and scratch. Kernels of ops without outputs
    write their arguments and run once.
    """

    def __init__(self, spec: KernelSpec, poison: Poison | None) -> None:
        self.spec = spec
        self._function: Callable[..., Any] = spec.load()
        self._outputs = OPS.get(spec.op).outputs
        self._poison = poison
        self._own_sites: OutputSites = {}
        self._in_order = dict(enumerate(output.site for output in self._outputs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return launch(self._run, *args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        note_launch(self.spec.name)
        if (in_cell := getattr(self._function, "call", None)) is not None:
            # Its process fills its own allocations.
            return in_cell(self._poison, args, kwargs)
        # Natural memory is that of production: not even the order of allocations may change.
        if self._poison is None or self._poison.is_natural or not _intercepts.get():
            return self._call(args, kwargs)
        # It writes its arguments, which are poisoned by the caller; what it allocates is scratch.
        if not self._outputs:
            with AllocationPoison(self._poison):
                return self._call(args, kwargs)
        # What a kernel allocates depends on shapes and options, so each of these is learned by
        # itself.
        any_shapes = (self.spec.name,)
        key = (*any_shapes, *(_shape_key(value) for value in (*args, *kwargs.values())))
        shared = _output_sites.get()
        known = self._own_sites if shared is None else shared
        guess = known.get(key, known.get(any_shapes, self._in_order))
        result, sites, is_right = self._call_poisoned(guess, args, kwargs)
        known[key] = known[any_shapes] = sites
        # The guess was wrong, so outputs held the poison of scratch, or scratch that of outputs:
        # the run is repeated with the right one.
        if not is_right:
            result, *_ = self._call_poisoned(sites, args, kwargs)
        return result

    def _call_poisoned(
        self, sites: dict[int, str], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[int, str], bool]:
        """The result of a call with allocations filled by `sites`, the sites that are right, and
        whether all allocations were filled by these.
        """
        assert self._poison is not None
        with AllocationPoison(self._poison, sites) as mode:
            result = self._call(args, kwargs)
        allocations = mode.allocations
        right = self._sites_of_outputs(allocations, result)
        # A guess may name more allocations than there were: nothing was filled by these.
        filled = {ordinal: site for ordinal, site in sites.items() if ordinal < len(allocations)}
        return result, right, filled == right

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the kernel's own code.

        Raises KernelError for its exceptions but Refused, with a library's reason.

        The process is as before after a call of foreign code, and its outputs are plain tensors.
        Raises BrokenPlugin if a user's kernel imports what is not there.
        The result of a kernel without an lse is a pair all the same, with None in its place.
        """
        try:
            is_watched = self.spec.is_plugin
            with watching_call(self.spec.name) if is_watched else nullcontext():
                result = self._function(*args, **kwargs)
            if not self.spec.gives_lse and isinstance(result, tuple | list) and result:
                result = result[0]
            if is_watched:
                result = plain_outputs(self.spec, result)
            return result if self.spec.gives_lse else (result, None)
        except BadOutput:
            raise
        except Refused as refusal:
            refusal.kernel = self.spec.name
            raise
        except (IllegalAddress, errors.IllegalAddress) as error:
            # A plug-in may call the checks of torch_poison itself.
            found = error if isinstance(error, IllegalAddress) else finding_of(error)
            found.at = found.at or self._last_line(error)
            # The stack of the check says nothing; the kernel's own line is in the error.
            raise found from None
        # A kernel that calls sys.exit ends itself, not the worker.
        except (Exception, SystemExit) as error:
            if isinstance(error, ImportError) and self.spec.is_plugin:
                why = f"{type(error).__name__}: {' '.join(message_of(error).split())}"
                at = self._last_line(error)
                mend = "install the package, or mend the import"
                raise BrokenPlugin(
                    f"{self.spec.name} cannot be called: {why}, at {at}; {mend}"
                ) from error
            with watching_call(self.spec.name):
                # The advice calls the kernel again, so it is watched as a call is.
                advice = hint(self.spec, self._function, args, error)
            raise KernelError(
                advice or f"{self.spec.name} raised {type(error).__name__}: {message_of(error)}",
                cause=Code.UNDECLARED_SHAPES if advice else Code.RAISED,
                error=type(error).__name__,
                kernel=self.spec.name,
                at=self._last_line(error),
            ) from error

    def _last_line(self, error: BaseException) -> str:
        """See :class:`KernelError`.

        Empty if the error was raised before the kernel's first line.
        """
        code = getattr(inspect.unwrap(self._function), "__code__", None)
        stack = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in stack if code is not None and frame.filename == code.co_filename]
        return line_of(own[-1]) if own else ""

    def _sites_of_outputs(self, allocations: list[int], result: Any) -> dict[int, str]:
        """Ordinal of an allocation -> site, for the allocations that became outputs."""
        # An address may be given out again. The last allocation there is the one that lives.
        ordinal_of = {address: ordinal for ordinal, address in enumerate(allocations)}
        sites: dict[int, str] = {}
        for output, value in zip(
            self._outputs, result if isinstance(result, tuple) else (result,), strict=False
        ):
            for tensor in filter(is_plain, tensors_of(value)):
                ordinal = ordinal_of.get(tensor.untyped_storage().data_ptr())
                if ordinal is not None:
                    sites[ordinal] = output.site
        return sites


def kernel_of(launched: Callable[..., Any]) -> BoundKernel | None:
    """The kernel of a launch; None for a function of the engine or an op of torch."""
    owner = getattr(launched, "__self__", None)
    return owner if isinstance(owner, BoundKernel) else None


def name_of(launched: Callable[..., Any]) -> str:
    return str(getattr(launched, "__name__", type(launched).__name__))


def _shape_key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype)
    return value if isinstance(value, int | float | str | bool | None) else type(value).__name__
