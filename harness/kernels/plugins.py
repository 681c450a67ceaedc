"""Kernels of users: the `@kernel` decorator, plug-in files, and the entry points of installed
packages.

A plug-in is foreign code, so only a worker process executes it, never the parent that plans and
reports. What its import changes in the process is restored. This module imports no torch; a plug-in
imports what it needs.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from pydantic import ValidationError

from harness.core.call_words import RecordFormat
from harness.core.catalog import KERNELS
from harness.core.contract import Op
from harness.core.engine_tables import DOORS
from harness.core.errors import InputError, named
from harness.core.files import execute_file, load_once
from harness.core.kernels import Bf16Step, Checks, EmptyLse, EmptyRows, Fp8Products, KernelSpec
from harness.core.ops import OPS
from harness.core.registry import Registry, attribute_at, nearest
from harness.core.shapes import NAMED, Shapes, shapes_of
from harness.kernels import adapters
from harness.memory.triton_interpreter import repair_when_imported

if TYPE_CHECKING:
    from harness.kernels.process_state import ProcessChange

ENTRY_POINT_GROUP = f"{DOORS}.kernels"
"""An entry point of this group names a module, or an object in it.

The import of the module registers kernels.
"""

NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
"""A kernel's name stands in ids of cases, on command lines and in YAML."""

KV_TYPES = ("fp32", "bf16", "fp8_e4m3")
KV_NAMES = tuple(dict.fromkeys((*KV_TYPES, *get_args(RecordFormat))))
"""What `kv` may name: types of a cache, and formats of a record."""
DEVICES = ("cpu", "cuda")

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

# A worker runs many jobs that name the same files.
_loaded: dict[Path, tuple[KernelSpec, ...] | InputError] = {}
_changes: dict[str, list[ProcessChange]] = {}
"""Name of a kernel -> what the import of its file changed in this process."""


def kernel(
    *positional: object,
    op: str = "",
    name: str = "",
    summary: str = "",
    devices: Iterable[str] = ("cpu",),
    kv: Iterable[str] | None = None,
    shapes: str | Mapping[str, Any] | None = None,
    empty_rows: EmptyRows = "undefined",
    empty_lse: EmptyLse = "undefined",
    gives_lse: bool = True,
    checks: Checks = "nothing",
    needs_finite_tail: bool = False,
    needs_valid_table: bool = False,
    capturable: bool = True,
    fp8_products: Fp8Products = "float32",
    bf16_steps: Iterable[Bf16Step] = (),
    style: str = "",
    lse_base: str = "e",
    lse_order: str = "",
    origin: str = "",
    **unknown: object,
) -> Callable[[FunctionT], FunctionT]:
    """Register the decorated function as a kernel called `name` for `op`.

    Returns the function unchanged.

    The function's arguments are the op's, as :mod:`harness.core.ops` lists them. It allocates its
    outputs with torch, so that the poison reaches them. `shapes` are the sizes that it accepts:
    "deepseek", "kimi-linear", "any", or a dict such as `{"like": "deepseek", "num_heads": 16}` (see
    :class:`harness.core.shapes.Shapes`). `style` is the call of a public library that the function
    has in place of the op's, see `styles.py` of the op. `lse_base` is "2" for a logarithm to base
    2, and `lse_order` names the axes of its lse where they have another order than the op's, such
    as "B S H". `kv` are the caches that it reads; without it, the ones that a kernel of its op has
    mostly. `origin` is the file of a function that
    runs in another process. The other arguments of the decorator are promises: see
    :class:`harness.core.kernels.KernelSpec`. Raises InputError for an unknown op, an unknown
    promise or value of one, a name that is taken, or a signature that the harness cannot call.
    """
    _check_names(positional, op, name, unknown)
    promised = KernelSpec(
        op=OPS.get(op).name,
        short_name=name,
        summary=summary,
        impl="",
        devices=_checked_names(name, "devices", devices, DEVICES),
        kv=_checked_names(name, "kv", default_kv(op) if kv is None else kv, KV_NAMES),
        empty_rows=empty_rows,
        empty_lse=empty_lse,
        gives_lse=gives_lse,
        checks=checks,
        needs_finite_tail=needs_finite_tail,
        needs_valid_table=needs_valid_table,
        capturable=capturable,
        fp8_products=fp8_products,
        bf16_steps=_checked_steps(name, bf16_steps),
        origin=origin,
        is_plugin=True,
    )
    _check_promises(promised)
    words = {"style": style, "lse_base": lse_base, "lse_order": lse_order}
    adapters.check(op, name, words)

    def register(function: FunctionT) -> FunctionT:
        called = adapters.adapted(op, words, function)
        KERNELS.add(_with_function(promised, function, called, shapes))
        return function

    return register


def _with_function(
    promised: KernelSpec,
    function: Callable[..., Any],
    adapted: Callable[..., Any],
    shapes: str | Mapping[str, Any] | None,
) -> KernelSpec:
    """The kernel that keeps what is `promised` by calls of `adapted`, which calls `function` with
    the arguments of the op.
    """
    contract = OPS.get(promised.op)
    name = promised.short_name
    check_signature(contract, name, adapted)
    doc = inspect.getdoc(function) or ""
    return replace(
        promised,
        summary=promised.summary or doc.partition("\n")[0] or "a plug-in",
        impl=adapted,
        shapes=None if shapes is None else declared_shapes(name, shapes),
        takes=_taken(contract, adapted),
        origin=promised.origin or inspect.getfile(function),
    )


def default_kv(op: str) -> tuple[str, ...]:
    """The caches that a kernel of `op` reads if it does not declare `kv`.

    A kernel that is told the format of a record knows all of them.
    """
    return get_args(RecordFormat) if "record_format" in OPS.get(op).keywords else KV_TYPES


def _check_names(
    positional: tuple[object, ...], op: str, name: str, unknown: Mapping[str, object]
) -> None:
    """Raise InputError unless @kernel got op and a name by keyword, and no argument that it does
    not have.
    """
    if unknown:
        word = next(iter(unknown))
        # The first parameter takes positional arguments, the last one unknown words.
        (_, *known, _) = inspect.signature(kernel).parameters
        near = nearest(word, known)
        meant = f" ({near})" if near.endswith("?") else ""
        raise InputError(f"@kernel has no argument {word!r}{meant}; it takes {', '.join(known)}")
    if positional or not op or not name:
        raise InputError(
            '@kernel needs op and name, by keyword: @kernel(op="mla_decode", name="mine")'
        )
    if not NAME.fullmatch(name):
        raise InputError(
            f"kernel name {name!r}: use letters, digits, '-', '_' and '.', a letter or digit first"
        )


def _taken(op: Op, function: Callable[..., Any]) -> tuple[str, ...]:
    """The optional arguments of `op` that the function has."""
    parameters = inspect.signature(function).parameters
    return tuple(word for word in op.optional if word in parameters)


def check_signature(op: Op, name: str, function: Callable[..., Any]) -> None:
    """Raise InputError unless `function` takes the positional tensors of `op`, and its other
    arguments by keyword.
    """
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
        raise InputError(
            f"kernel {op.name}/{name}: {function.__name__}{signature} {problem}; write"
            f" {op.signature}"
        )


def load_plugin(path: str | Path) -> tuple[KernelSpec, ...]:
    """Execute a plug-in file once in this process. Returns the kernels it registers.

    Call it in a worker only. Raises InputError with file and line for a file that is missing, does
    not import, or registers nothing.
    """
    return load_once(path, _loaded, _execute)


def load_plugins(paths: Iterable[str | Path]) -> tuple[KernelSpec, ...]:
    return tuple(spec for path in paths for spec in load_plugin(path))


def declared_shapes(kernel_name: str, given: str | Mapping[str, Any]) -> Shapes:
    """The shapes that a kernel declares. Raises InputError for an unknown name, size or value."""
    if not isinstance(given, str | Mapping):
        raise InputError(
            f'kernel {kernel_name!r}: shapes={given!r}; write "deepseek" or a dict of sizes'
        )
    values = {"like": given} if isinstance(given, str) else given
    _check_choice(kernel_name, "shapes", (values.get("like", "any"),), tuple(NAMED))
    try:
        return shapes_of(values)
    except ValidationError as error:
        problem = error.errors()[0]
        at = str(problem["loc"][0])
        known = ", ".join(size for size in Shapes.model_fields if size != "name")
        mend = (
            f"the sizes are {known}"
            if problem["type"] == "extra_forbidden"
            else problem["msg"].lower()
        )
        raise InputError(
            f"kernel {kernel_name!r}: shapes[{at!r}]={values.get(at)!r}: {mend}"
        ) from None


def describe_kernels(plugins: Sequence[str]) -> list[dict[str, Any]]:
    """The declarations of the kernels of plug-in files, of all kernels without files, and `why_not`
    by device.

    `import_seconds` is the time of a processor that the files took. Call it in a worker only.
    Raises InputError for a file or an installed package that does not load.
    """
    started = time.process_time()
    if not plugins:
        load_entry_points()
    specs = load_plugins(plugins) if plugins else tuple(KERNELS)
    return described(specs, time.process_time() - started)


def described(specs: Iterable[KernelSpec], seconds: float) -> list[dict[str, Any]]:
    """What kernels declare, as plain values; `seconds` is the time that their import took."""
    # A function does not cross to the parent, which executes no plug-in.
    names = [field.name for field in fields(KernelSpec) if field.name != "impl"]
    return [
        {name: getattr(spec, name) for name in names}
        | {"shapes": None if spec.shapes is None else spec.shapes.model_dump(mode="json")}
        | {
            "why_not": {device: str(spec.why_not(device) or "") for device in DEVICES},
            "import_seconds": seconds,
        }
        for spec in specs
    ]


def find_kernel(op: str, short_name: str) -> KernelSpec:
    """The kernel `op/short_name`.

    Imports the kernels of installed packages only for a name that is not registered yet.

    Raises UnknownNameError with the nearest name.
    """
    name = f"{op}/{short_name}"
    if name not in KERNELS:
        load_entry_points()
    return KERNELS.get(name)


def kernel_function(op: str, short_name: str) -> Callable[..., Any]:
    """The function of the kernel `op/short_name`, to be called with the arguments of the op.

    Imports the kernel's module. Raises UnknownNameError with the nearest name.
    """
    impl = find_kernel(op, short_name).impl
    function: Callable[..., Any] = attribute_at(impl) if isinstance(impl, str) else impl
    return function


def load_entry_points() -> None:
    """Import every entry point of the group `mla_harness.kernels`, which registers its kernels.

    Raises InputError with the name of the package if an entry point does not import.
    """
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            with _importing(point.value):
                point.load()
        except InputError:
            raise
        except Exception as error:
            owner = point.dist.name if point.dist else point.value
            raise InputError(
                f"entry point {point.name!r} of {owner}: {named(error)}; fix the package or"
                " uninstall it"
            ) from error


def changes_of_imports(kernels: Iterable[str]) -> list[ProcessChange]:
    """What the imports of the files of `kernels`, such as "mla_decode/mine", changed in this
    process.
    """
    return list(dict.fromkeys(change for name in kernels for change in _changes.get(name, ())))


@contextlib.contextmanager
def _importing(what: str) -> Iterator[None]:
    """Import foreign code within the block.

    What it changes is restored, and kept for the kernels that it registers.

    Triton's interpreter is repaired when the code imports it.
    """
    # Whoever imports a plug-in has torch.
    from harness.kernels.process_state import PROCESS_CHANGES, watching

    repair_when_imported()
    before = set(KERNELS.names())
    with PROCESS_CHANGES.noting() as changes, watching(f"the import of {what}"):
        yield
    _changes.update((name, changes) for name in KERNELS.names() if name not in before)


def _execute(file: Path) -> tuple[KernelSpec, ...]:
    before = set(KERNELS.names())
    num_before = Registry.num_added
    with _importing(file.name):
        execute_file(file, "plug-in", f"mla_harness_plugin_{file.stem}_{len(_loaded)}")
    registered = tuple(entry for entry in KERNELS if entry.name not in before)
    # Whatever was registered counts: a file may bring a connector and no kernel.
    if Registry.num_added == num_before:
        raise InputError(
            f"plug-in {file}: registers no kernel; decorate a function with @kernel(op=...,"
            " name=...)"
        )
    return registered


def _check_choice(
    kernel_name: str, field: str, values: tuple[str, ...], known: tuple[str, ...]
) -> None:
    for value in values:
        if value not in known:
            raise InputError(
                f"kernel {kernel_name!r}: {field}={value!r} is unknown; choose from"
                f" {', '.join(known)}"
            )


def _check_promises(promised: KernelSpec) -> None:
    """Raise InputError for a promise with a value that it cannot have."""
    name = promised.short_name
    _check_choice(name, "empty_rows", (promised.empty_rows,), get_args(EmptyRows))
    _check_choice(name, "empty_lse", (promised.empty_lse,), get_args(EmptyLse))
    _check_choice(name, "checks", (promised.checks,), get_args(Checks))
    _check_choice(name, "fp8_products", (promised.fp8_products,), get_args(Fp8Products))
    for field in ("gives_lse", "capturable", "needs_finite_tail", "needs_valid_table"):
        value = getattr(promised, field)
        if not isinstance(value, bool):
            raise InputError(f"kernel {name!r}: {field}={value!r} is neither True nor False")
    if not promised.gives_lse:
        _check_without_lse(OPS.get(promised.op), name, promised.empty_lse)


def _check_without_lse(op: Op, kernel_name: str, empty_lse: EmptyLse) -> None:
    """Refuse `gives_lse=False` of a kernel whose op has no lse, or that says what its lse holds."""
    if not op.gives_lse:
        raise InputError(
            f"kernel {kernel_name!r}: gives_lse=False, but {op.name} has no lse; leave it out"
        )
    if empty_lse != "undefined":
        raise InputError(
            f"kernel {kernel_name!r}: gives_lse=False and empty_lse={empty_lse!r}; leave one out"
        )


def _checked_names(
    kernel_name: str, field: str, values: Iterable[str], known: tuple[str, ...]
) -> tuple[str, ...]:
    """A promise of several names. Refuses none, and a string: its letters would be the names."""
    names = () if isinstance(values, str) else tuple(values)
    if not names:
        mend = f"write a tuple of some of {', '.join(known)}, for example {field}=({known[0]!r},)"
        raise InputError(f"kernel {kernel_name!r}: {field}={values!r} names none; {mend}")
    _check_choice(kernel_name, field, names, known)
    return names


def _checked_steps(kernel_name: str, steps: Iterable[Bf16Step]) -> tuple[Bf16Step, ...]:
    """The steps in bfloat16. The default is none at all, which a list of a user may not be."""
    if steps == ():
        return ()
    names = _checked_names(kernel_name, "bf16_steps", steps, get_args(Bf16Step))
    return cast("tuple[Bf16Step, ...]", names)
