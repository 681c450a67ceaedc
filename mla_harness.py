"""This harness under a name that no other package has: `from mla_harness import kernel`.

The package itself is called `harness`, as its folder is. A project may have a package or a folder
of that name, and vLLM reads its entry points in processes of any project. So this module finds the
harness beside it, whatever else is called `harness`, and imports none of it until it is asked.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Finding, Refused, first_nan, kernel
    from harness.loop import judge_kernel as judge

__all__ = ["Finding", "Refused", "first_nan", "judge", "kernel", "own_names"]

PACKAGE = "harness"
FOLDER = Path(__file__).resolve().parent / PACKAGE

_ours: dict[str, ModuleType] = {}
"""The modules of this harness while a `harness` of the project has their names."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "judge":
        # `harness.judge` is a package.
        return _judge
    is_alone = PACKAGE not in sys.modules or _is_ours(sys.modules[PACKAGE])
    with own_names():
        found = getattr(importlib.import_module(PACKAGE), name)
    # The decorator imports the contract of its op when it is used: under our names.
    return found if is_alone or name != "kernel" else _kernel


def _kernel(*positional: object, **promises: Any) -> Callable[[Any], Any]:
    """:func:`harness.kernel` in a project with a `harness` of its own."""
    with own_names():
        register = importlib.import_module(PACKAGE).kernel(*positional, **promises)

    def registered(function: Any) -> Any:
        with own_names():
            return register(function)

    return registered


def _judge(*positional: Any, **named: Any) -> Any:
    """:func:`harness.loop.judge_kernel`, in a project with a `harness` of its own too."""
    with own_names():
        return importlib.import_module(f"{PACKAGE}.loop").judge_kernel(*positional, **named)


@contextlib.contextmanager
def own_names() -> Iterator[None]:
    """Within the block, `harness` is this one.

    Afterwards the project's own `harness` is back if it was imported before.
    """
    if _is_ours(sys.modules.get(PACKAGE)):
        yield
        return
    theirs = _taken_out()
    sys.modules.update(_ours)
    if PACKAGE not in sys.modules:
        _import_package()
    try:
        yield
    finally:
        if theirs:
            _ours.update(_taken_out())
            sys.modules.update(theirs)


def _is_ours(module: ModuleType | None) -> bool:
    return any(Path(path).resolve() == FOLDER for path in getattr(module, "__path__", ()))


def _taken_out() -> dict[str, ModuleType]:
    """Remove every module called `harness` or `harness.…`, and return them."""
    names = [name for name in sys.modules if name == PACKAGE or name.startswith(PACKAGE + ".")]
    return {name: sys.modules.pop(name) for name in names}


def _import_package() -> None:
    file = FOLDER / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        PACKAGE, file, submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])
