"""Differences between releases of an engine, as data.

Each adapter has a file `releases.py` with all its differences. A release is asked for what it has,
not for its number: a development version has the number of the release before it. Numbers are for
readers, and for what only the engine itself could tell, such as the cases that it does not serve.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

from packaging.version import InvalidVersion, Version

from harness.api import Refused, WhyNot

ValueT = TypeVar("ValueT")


def release_of(version: str) -> tuple[int, ...]:
    """Three numbers of a version: 0.22.1rc1 -> (0, 22, 1), 0.22 -> (0, 22, 0), and zeros for any
    other text.
    """
    try:
        return (*Version(version).release, 0, 0)[:3]
    except InvalidVersion:
        return (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Releases:
    """The releases `first <= version < last`. An end that is left out is open."""

    first: str = ""
    last: str = ""

    def __contains__(self, version: str) -> bool:
        release = release_of(version)
        return release_of(self.first) <= release and (
            not self.last or release < release_of(self.last)
        )


@dataclass(frozen=True, slots=True)
class NotServed:
    """Cases that some releases do not serve: those whose parameters `applies` is true for.

    `why` completes the sentence that begins with the engine and its version.
    """

    applies: Callable[[Any], bool]
    why: str
    releases: Releases

    @staticmethod
    def why_not(
        limits: Iterable[NotServed], title: str, version: str, params: object
    ) -> WhyNot | None:
        """Why this version does not serve a case with these parameters; None if it does."""
        for limit in limits:
            if version in limit.releases and limit.applies(params):
                return WhyNot(f"{title} {version} {limit.why}")
        return None


def of_release(version: str, table: Mapping[Releases, ValueT]) -> ValueT:
    """The value for a version. Raises KeyError if the table has none."""
    for releases, value in table.items():
        if version in releases:
            return value
    raise KeyError(version)


@dataclass(frozen=True, slots=True)
class Has:
    """Something that some releases have: `name` of a class, a module or an object, or a module.

    `when` says for readers which releases have it, such as "since 0.26".
    """

    name: str
    when: str

    def of(self, owner: object) -> bool:
        """Whether the owner has an attribute of this name."""
        return hasattr(owner, self.name)

    def value(self, owner: object, default: Any = None) -> Any:
        """The attribute of this name, or `default` in other releases."""
        return getattr(owner, self.name, default)

    def is_argument(self, function: Callable[..., Any]) -> bool:
        """Whether the function has a parameter of this name."""
        return self.name in inspect.signature(function).parameters

    def is_module(self) -> bool:
        """Whether there is a module of this name. Imports the packages around it."""
        try:
            return find_spec(self.name) is not None
        except ModuleNotFoundError:
            return False


@dataclass(frozen=True, slots=True)
class HasText:
    """Code that some releases have, told by a piece of its text: what no name shows.

    `when` says for readers which releases have it.
    """

    text: str
    when: str

    def of(self, code: Any) -> bool:
        """Whether the source of a module, a class or a function has the text."""
        return self.text in inspect.getsource(code)


@dataclass(frozen=True, slots=True)
class Renamed:
    """One thing with another name in other releases: `names`, the newest first.

    `when` says for readers since when it has its newest name. `lacks` is what a release without any
    of them lacks, to complete the sentence "this ...".
    """

    names: tuple[str, ...]
    when: str = ""
    lacks: str = ""

    def of(self, owner: object) -> Any:
        """The attribute of the owner under the first of the names that it has.

        Raises Refused if it has none.
        """
        for name in self.names:
            if hasattr(owner, name):
                return getattr(owner, name)
        raise self._refused()

    def value(self, owner: object, default: Any = None) -> Any:
        """As `of`, but `default` if the owner has none of the names, or None under them."""
        for name in self.names:
            found = getattr(owner, name, None)
            if found is not None:
                return found
        return default

    def argument_of(self, function: Callable[..., Any]) -> str:
        """The first of the names that a parameter of the function has.

        Raises Refused if none has.
        """
        named = inspect.signature(function).parameters
        for name in self.names:
            if name in named:
                return name
        raise self._refused()

    def module(self) -> Any:
        """The module of the first of the names that this release has, imported.

        Raises Refused if there is none.
        """
        for name in self.names:
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as error:
                # A package that the module itself needs is another matter.
                if not f"{name}.".startswith(f"{error.name}."):
                    raise
        raise self._refused()

    def _refused(self) -> Refused:
        return Refused(f"this {self.lacks or 'release has none of ' + ', '.join(self.names)}")


def accepted(arguments: Mapping[str, Any], *functions: Callable[..., Any]) -> dict[str, Any]:
    """The `arguments` that at least one of the functions has as a parameter.

    Parameters differ between releases.
    """
    named = {name for function in functions for name in inspect.signature(function).parameters}
    return {name: value for name, value in arguments.items() if name in named}
