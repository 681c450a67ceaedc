"""People's own kernels: the `@kernel` decorator, plug-in files, and the entry points of installed packages.

A plug-in is code of a stranger: it is executed in a worker process only, never in the parent that plans and reports.
No torch is imported here, so that a plug-in decides itself what it needs.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from harness.core.catalog import KERNELS
from harness.core.errors import InputError
from harness.core.kernel_spec import Bf16Step, EmptyLse, EmptyRows, Fp8Products, KernelSpec
from harness.core.loaded_files import line_in, load_once
from harness.core.ops import OPS, Op

ENTRY_POINT_GROUP = "mla_harness.kernels"
"""Entry points of this group name a module, or anything in one, whose import registers kernels."""

KV_TYPES = ("fp32", "bf16", "fp8_e4m3")
DEVICES = ("cpu", "cuda")

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

# A worker runs many jobs that name the same files; each is executed once in a process, and fails alike ever after.
_loaded: dict[Path, tuple[KernelSpec, ...] | InputError] = {}


def kernel(
    *,
    op: str,
    name: str,
    summary: str = "",
    devices: Iterable[str] = ("cpu",),
    kv: Iterable[str] = KV_TYPES,
    empty_rows: EmptyRows = "undefined",
    empty_lse: EmptyLse = "undefined",
    needs_finite_tail: bool = False,
    needs_valid_table: bool = False,
    fp8_products: Fp8Products = "float32",
    bf16_steps: Iterable[Bf16Step] = (),
) -> Callable[[FunctionT], FunctionT]:
    """Register the decorated function as a kernel called `name` for `op`; the function itself is returned unchanged.

    The function takes the op's arguments as :mod:`harness.core.ops` lists them and allocates its own outputs
    with torch, which is what lets the poison reach them. The other arguments are promises: see
    :class:`harness.core.kernel_spec.KernelSpec`. Raises InputError for an unknown op, a value that no promise has, a
    name that is taken, or a signature that the harness cannot call.
    """
    contract = OPS.get(op)
    _check_choice(name, "empty_rows", (empty_rows,), get_args(EmptyRows))
    _check_choice(name, "empty_lse", (empty_lse,), get_args(EmptyLse))
    runs_on = _checked_names(name, "devices", devices, DEVICES)
    reads = _checked_names(name, "kv", kv, KV_TYPES)
    _check_choice(name, "fp8_products", (fp8_products,), get_args(Fp8Products))
    steps = _checked_names(name, "bf16_steps", bf16_steps, get_args(Bf16Step)) if bf16_steps != () else ()
    if not name or "/" in name:
        raise InputError(f"kernel name {name!r}: use a non-empty name without '/'")

    def register(function: FunctionT) -> FunctionT:
        check_signature(contract, name, function)
        doc = inspect.getdoc(function) or ""
        KERNELS.add(
            KernelSpec(
                op=op,
                short_name=name,
                summary=summary or doc.partition("\n")[0] or "a plug-in",
                impl=function,
                devices=runs_on,
                kv=reads,
                empty_rows=empty_rows,
                empty_lse=empty_lse,
                needs_finite_tail=needs_finite_tail,
                needs_valid_table=needs_valid_table,
                fp8_products=fp8_products,
                bf16_steps=cast("tuple[Bf16Step, ...]", steps),
                windowed="window" in inspect.signature(function).parameters,
                counted="workspace" in inspect.signature(function).parameters,
                live_only=op == "route_experts" and "num_live" in inspect.signature(function).parameters,
                origin=inspect.getfile(function),
            )
        )
        return function

    return register


def check_signature(op: Op, name: str, function: Callable[..., Any]) -> None:
    """Raise InputError unless `function` can be called as `op` is: positional tensors first, the rest by keyword."""
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    takes_any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters)
    by_keyword = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    missing = [word for word in op.keywords if word not in by_keyword and not takes_any_keyword]
    problem = f"has no keyword argument {', '.join(missing)}" if missing else ""
    if not problem:
        try:
            signature.bind(*op.positional, **dict.fromkeys(op.keywords))
        except TypeError as error:
            problem = f"cannot be called so: {error}"
    if problem:
        raise InputError(f"kernel {op.name}/{name}: {function.__name__}{signature} {problem}; write {op.signature}")


def load_plugin(path: str | Path) -> tuple[KernelSpec, ...]:
    """Execute a plug-in file once in this process and return the kernels it registers.

    Call it in a worker only. Raises InputError, naming file and line, for a file that is missing, does not import,
    or registers nothing.
    """
    return load_once(path, _loaded, _execute)


def load_plugins(paths: Iterable[str | Path]) -> tuple[KernelSpec, ...]:
    """The kernels of several plug-in files, in order."""
    return tuple(spec for path in paths for spec in load_plugin(path))


def describe_kernels(plugins: Sequence[str]) -> list[dict[str, Any]]:
    """What the kernels of plug-in files declare, or, without files, all kernels; with `why_not` by device.

    Call it in a worker only. Raises InputError for a file or an installed package that does not load.
    """
    if not plugins:
        load_entry_points()
    specs = load_plugins(plugins) if plugins else tuple(KERNELS)
    return [_declared(spec) | {"why_not": {device: spec.why_not(device) or "" for device in DEVICES}} for spec in specs]


def _declared(spec: KernelSpec) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in fields(spec) if field.name != "impl"}


def find_kernel(op: str, short_name: str) -> KernelSpec:
    """The kernel `op/short_name`; installed packages are asked only when nothing loaded so far has that name.

    Raises UnknownNameError with the nearest name.
    """
    name = f"{op}/{short_name}"
    if name not in KERNELS:
        load_entry_points()
    return KERNELS.get(name)


def load_entry_points() -> None:
    """Import every entry point of the group `mla_harness.kernels`; the import registers its kernels.

    Raises InputError naming the package whose entry point does not import.
    """
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            point.load()
        except InputError:
            raise
        except Exception as error:
            owner = point.dist.name if point.dist else point.value
            raise InputError(
                f"entry point {point.name!r} of {owner}: {type(error).__name__}: {_one_line(error)}; "
                "mend the package or uninstall it"
            ) from error


def _execute(file: Path) -> tuple[KernelSpec, ...]:
    if not file.is_file():
        raise InputError(f"plug-in {file}: there is no such file; give the path of a Python file")
    module_name = f"mla_harness_plugin_{file.stem}_{len(_loaded)}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise InputError(f"plug-in {file}: not a Python file; its name must end in .py")
    before = set(KERNELS.names())
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except InputError as error:
        raise InputError(f"plug-in {file}:{line_in(file, error)}: {error}") from error
    except (Exception, SystemExit) as error:
        sentence = f"{type(error).__name__}: {_one_line(error)}"
        raise InputError(f"plug-in {file}:{line_in(file, error)}: {sentence}; it must import cleanly") from error
    registered = tuple(entry for entry in KERNELS if entry.name not in before)
    if not registered:
        raise InputError(f"plug-in {file}: registers no kernel; decorate a function with @kernel(op=..., name=...)")
    return registered


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _check_choice(kernel_name: str, field: str, values: tuple[str, ...], known: tuple[str, ...]) -> None:
    for value in values:
        if value not in known:
            raise InputError(f"kernel {kernel_name!r}: {field}={value!r} is unknown; choose from {', '.join(known)}")


def _checked_names(kernel_name: str, field: str, values: Iterable[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """A promise of several names. One string is refused, or its letters would be the names; so is none at all."""
    names = () if isinstance(values, str) else tuple(values)
    if not names:
        mend = f"write a tuple of some of {', '.join(known)}, for example {field}=({known[0]!r},)"
        raise InputError(f"kernel {kernel_name!r}: {field}={values!r} names none; {mend}")
    _check_choice(kernel_name, field, names, known)
    return names
