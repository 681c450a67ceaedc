"""Where the Triton kernels can run, and the repair of Triton's CPU interpreter that they need
there.

The stock interpreter of Triton 3.7 keeps bfloat16 as uint16 and float8 as uint8. It multiplies
those integers in `tl.dot`, truncates where hardware rounds to nearest even, and turns a float8 NaN
into 480: a kernel test would pass on garbage, and a NaN poison would vanish. `repair_interpreter`
makes every float conversion bit-equal to torch's, and computes dots of narrow types in float32.
Arithmetic on bfloat16 is computed in float32 and rounded once, which gives the bits of a bfloat16
unit, as float32 has more than twice its digits. Arithmetic on float8, which no GPU has, is refused.
A number for an argument that is annotated as int64 has 64 bits, as its product with an index needs
in a large pool. It patches private names, so it is tied to the versions it was tested with. Kernels
of the harness call `prepare`; plug-ins are served without their asking.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from harness.core.cause_codes import Code, WhyNot

REPAIRED_VERSIONS = ("3.7.1",)
"""The versions of Triton that this repair was tested with."""
SLOWDOWN = 10
"""How many times its time limit a case gets under the interpreter, which runs programs in Python: a
right kernel needs seconds for a few hundred tokens.
"""
MOST_TOKENS = 4096
"""With more tokens a right kernel needs minutes there: one of FlagGems 82 s for 8,192 tokens, and
10 s for all other calls of its op.
"""


def unavailable(device: str) -> WhyNot | None:
    """Why a Triton kernel cannot run on `device` ("cuda" or "cpu") in this process; None where it
    can.

    Imports neither torch nor Triton, so that lists stay instant.
    """
    if importlib.util.find_spec("triton") is None:
        command = "pip install triton==3.7.1"
        return WhyNot(f"Triton is not installed ({command})", Code.NOT_INSTALLED, "Triton", command)
    interpreting = interpreter_is_on()
    if device == "cpu" and not interpreting:
        why = (
            "a Triton kernel runs on a CPU only under TRITON_INTERPRET=1, set before the process"
            " starts"
        )
        command = "TRITON_INTERPRET=1 mla-harness run"
        return WhyNot(why, Code.NO_DEVICE, "Triton's interpreter", command)
    if device != "cpu" and interpreting:
        why = (
            "TRITON_INTERPRET=1 is set, so Triton kernels run on the CPU only; unset it to use"
            " the GPU"
        )
        return WhyNot(why, Code.NO_DEVICE)
    return _unknown_version() if interpreting else None


def interpreter_is_on() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0").strip().lower() in (
        "1",
        "true",
        "yes",
        "on",
        "y",
    )


def time_limit(seconds: float) -> float:
    """The time limit of a case that has `seconds` where kernels are compiled."""
    return seconds * SLOWDOWN if interpreter_is_on() else seconds


def too_many_tokens(num_tokens: int) -> WhyNot | None:
    """Why a verdict on a kernel leaves out a call of `num_tokens` here; None if it is made."""
    if not interpreter_is_on() or num_tokens <= MOST_TOKENS:
        return None
    why = (
        f"TRITON_INTERPRET=1 is set, and a call of {num_tokens:,} tokens takes minutes there: judge"
        " the kernel on a GPU too"
    )
    return WhyNot(why, Code.NO_DEVICE)


def _unknown_version() -> WhyNot | None:
    from importlib.metadata import version

    installed = version("triton")
    if installed.split("+")[0] in REPAIRED_VERSIONS:
        return None
    return WhyNot(
        f"the interpreter of Triton {installed} is not repaired here, only that of"
        f" {', '.join(REPAIRED_VERSIONS)}"
    )


def prepare() -> bool:
    """Call it before the definition of Triton kernels. Returns whether they will be interpreted.

    Raises RuntimeError if the interpreter is on and its version unknown.
    """
    if not interpreter_is_on():
        return False
    reason = _unknown_version()
    if reason:
        raise RuntimeError(reason)
    repair_interpreter()
    return True


INTERPRETER = "triton.runtime.interpreter"


def repair_when_imported() -> None:
    """Have the interpreter repaired as soon as any code of this process imports it, which it does
    for a kernel only.

    For kernels of people, who know of no repair. An import in an unknown version raises
    RuntimeError.
    """
    if INTERPRETER in sys.modules:
        _repair_known()
    elif not any(isinstance(finder, _RepairingFinder) for finder in sys.meta_path):
        # First, or the finder of files would load the interpreter unrepaired.
        sys.meta_path.insert(0, _RepairingFinder())


def _repair_known() -> None:
    if reason := _unknown_version():
        raise RuntimeError(f"{reason}; install it, or unset TRITON_INTERPRET")
    repair_interpreter()


class _RepairingFinder(MetaPathFinder):
    """Finds the interpreter where the others do, and repairs it when it was executed."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != INTERPRETER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RepairingLoader(spec.loader)
        return spec


class _RepairingLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        _repair_known()


_NARROW = ("bf16", "fp8e4nv", "fp8e5")


def repair_interpreter() -> None:
    """Patch the interpreter's float conversions, dot and arithmetic, once in a process."""
    import numpy as np
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    # Twice would wrap the repaired functions in themselves.
    if getattr(builder, "repaired_by_mla_harness", False):
        return
    stock_convert = interpreter._convert_float
    stock_cast = builder.cast_impl

    def convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.name in _TORCH_NAMES and target.name in _TORCH_NAMES:
            return _convert(data, source.name, target.name)
        return stock_convert(data, source, target, rounding)

    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        """Convert between a narrow type and any other, integers too.

        The stock one converts the stored integers.
        """
        old = source.dtype.scalar.name
        new = to.scalar.name
        storage = interpreter._get_np_dtype(to)
        if old not in _NARROW and new not in _NARROW:
            return stock_cast(self, source, to)
        if new not in _TORCH_NAMES:
            # float64 holds every number of a narrow type, so the integer is rounded once.
            data = _convert(source.data, old, "fp64").view(np.float64).astype(storage)
        elif old not in _TORCH_NAMES:
            data = _convert(source.data.astype(np.float64), "fp64", new).view(storage)
        else:
            data = _convert(source.data, old, new).view(storage)
        return interpreter.TensorHandle(data, to.scalar)

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, max_imprecise: Any) -> Any:
        # In the accumulator's type, as a tensor core adds.
        product = np.matmul(_widened(a), _widened(b), dtype=d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    stock_arguments = interpreter.GridExecutor._init_args_hst

    def arguments(self: Any, given: Any, named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a launch, with scalars of 64 bits where the kernel declares them.

        The stock one takes any small number for int32, and its product with an index overflows.
        """
        args, kwargs = stock_arguments(self, given, named)
        types = self.fn.__annotations__
        return (
            [
                _typed(value, types.get(name))
                for name, value in zip(self.arg_names, args, strict=False)
            ],
            {name: _typed(value, types.get(name)) for name, value in kwargs.items()},
        )

    interpreter._convert_float = convert_float
    interpreter.GridExecutor._init_args_hst = arguments
    builder.cast_impl = _without_warnings(cast_impl)
    builder.create_dot = _without_warnings(create_dot)
    for name in ("binary_op", "unary_op", "create_clampf", "create_fma"):
        setattr(
            builder,
            name,
            _without_warnings(_in_float32(getattr(builder, name), interpreter.TensorHandle)),
        )
    interpreter.ReduceOps.min_max = _without_warnings(interpreter.ReduceOps.min_max)
    builder.repaired_by_mla_harness = True


_TORCH_NAMES = {
    "bf16": "bfloat16",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
}
_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def _convert(data: Any, source: str, target: str) -> Any:
    """Convert raw storage of type `source` (numpy, any shape) to raw storage of `target`: torch's
    rounding and NaN.

    One exception: beyond +-448 a float8 e4m3 saturates, as the GPU's conversion instruction
    (`satfinite`) does.
    """
    import numpy as np
    import torch

    raw = np.ascontiguousarray(data)
    # torch has no uint16 to bfloat16 view from numpy; bytes carry any type across.
    values = torch.from_numpy(raw.reshape(-1).view(np.uint8).copy()).view(
        getattr(torch, _TORCH_NAMES[source])
    )
    if target == "fp8e4nv":
        values = values.to(torch.float32).clamp(-448.0, 448.0)
    out = values.to(getattr(torch, _TORCH_NAMES[target]))
    bits = out.view(torch.uint8).numpy().view(getattr(np, _UNSIGNED[out.element_size()]))
    return bits.reshape(np.shape(data))


def _typed(value: Any, annotation: Any) -> Any:
    """A number as a scalar of int64, if the argument is annotated as one; any other as it is."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle
    from triton.runtime.jit import _normalize_ty

    if not isinstance(value, int) or isinstance(value, bool) or annotation is None:
        return value
    if _normalize_ty(annotation) != "i64":
        return value
    return tl.tensor(TensorHandle(np.array([value], dtype=np.int64), tl.int64), tl.int64)


def _widened(handle: Any) -> Any:
    """A dot operand as float32 (or its own wider numpy type)."""
    import numpy as np

    name = handle.dtype.scalar.name
    return _convert(handle.data, name, "fp32").view(np.float32) if name in _NARROW else handle.data


def _in_float32(operation: Any, handle_of: Any) -> Any:
    """An operation on handles that computes in float32 what has bfloat16 operands, and rounds a
    float result once.

    A comparison of them gives booleans. Raises TypeError for an operand of float8.
    """
    import numpy as np
    import triton.language as tl

    def computed(self: Any, *args: Any) -> Any:
        names = {arg.dtype.scalar.name for arg in args if hasattr(arg, "dtype")}
        if refused := names.intersection(_NARROW) - {"bf16"}:
            name = refused.pop()
            raise TypeError(
                f"arithmetic on {name} is not modelled by the interpreter: convert with"
                " .to(tl.float32)"
            )
        if "bf16" not in names:
            return operation(self, *args)
        wide = [
            (
                handle_of(_widened(arg), tl.float32)
                if getattr(arg, "dtype", None) == tl.bfloat16
                else arg
            )
            for arg in args
        ]
        result = operation(self, *wide)
        if result.data.dtype != np.float32:
            return result
        return handle_of(_convert(result.data, "fp32", "bf16"), tl.bfloat16)

    return computed


def _without_warnings(operation: Any) -> Any:
    """Hardware does not warn of overflow, of a NaN operand, or of a maximum over nothing but NaN;
    numpy does.
    """
    import warnings

    def silent(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return operation(*args, **kwargs)

    return silent
