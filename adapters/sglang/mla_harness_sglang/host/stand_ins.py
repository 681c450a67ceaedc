"""Modules that SGLang's Python imports and that a CPU cannot have: stand-ins that import, and that
refuse to be used.

A stand-in may be imported, subclassed, named in an annotation, and called while a module is
imported. Any later use for a value raises StandInUsed: a part never takes an answer from it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_core import core_schema

from harness.api import read_rows

STAND_INS: dict[str, str] = read_rows(Path(__file__).with_suffix(".yaml"))
"""Each module, with the reason for its stand-in. Modules below it are stand-ins too."""
REGISTRY = "sglang.srt.configs"
"""A package that imports the configuration of every model.

It is a stand-in; modules below it are SGLang's own.
"""
_IMPORTING = "<frozen importlib._bootstrap>"


class StandInUsed(RuntimeError):
    """Code under test asked a stand-in for a value."""


def _refuse(name: str) -> None:
    """Raise StandInUsed unless a module is being imported."""
    # Frames of importlib below the call mean that a module is being imported.
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return
        frame = frame.f_back
    raise StandInUsed(f"{name} is a stand-in: SGLang's code asked it for a value")


class _Name(type):
    """The type of all names of a stand-in module.

    Each is a class, so that SGLang can derive from it.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _named(f"{cls.__qualname__}.{name}")
        setattr(cls, name, made)  # a member of an enumeration is itself again
        return made

    def __eq__(cls, other: object) -> bool:
        if isinstance(other, type):
            return cls is other
        _refuse(cls.__qualname__)
        return False

    # A class that defines `__eq__` loses its hash, unless it names one.
    __hash__ = type.__hash__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        _refuse(cls.__qualname__)
        if cls.__dict__.get("_is_stand_in") and len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]  # a decorator
        return super().__call__(*args, **kwargs)

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """A field of this type accepts no value but a stand-in."""
        return core_schema.is_instance_schema(cls)


class _Base(metaclass=_Name):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _named(f"{type(self).__qualname__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _refuse(type(self).__qualname__)
        return args[0] if args and callable(args[0]) else self

    def __eq__(self, other: object) -> bool:
        if self is not other:
            _refuse(type(self).__qualname__)
        return self is other

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise StandInUsed(f"{type(self).__qualname__} is a stand-in: it is neither true nor false")


def _named(name: str) -> _Name:
    return _Name(name.rpartition(".")[2], (_Base,), {"_is_stand_in": True, "__qualname__": name})


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _named(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != REGISTRY and not any(
            name == known or name.startswith(known + ".") for known in STAND_INS
        ):
            return None
        # As a package, so that modules below it can be imported too.
        spec = importlib.machinery.ModuleSpec(name, self, is_package=True)
        if name == REGISTRY:
            spec.submodule_search_locations = [
                str(Path(folder, "configs")) for folder in path or ()
            ]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__version__"] = "0"


def install() -> None:
    """Have this process import the stand-ins before any other module of these names."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
