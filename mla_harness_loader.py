"""Loads this harness from its own folder, also where the user's project has a package or a folder
called `harness`.

vLLM reads its entry points in processes of any project. So ours is a module with a unique name,
which imports no `harness` until it is asked for it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

PACKAGE = "harness"
FOLDER = Path(__file__).resolve().parent / PACKAGE

_ours: dict[str, ModuleType] = {}
"""The modules of this harness while a `harness` of the project has their names."""


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
