"""A generic table of named things, such as kernels, oracles, faults and sites, and the code that
its rows name.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import operator
import re
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from harness.core.errors import InputError, UnknownNameError


class RegistryEntry(Protocol):
    """An entry of a registry: a unique name and one sentence about it."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...


EntryT = TypeVar("EntryT", bound=RegistryEntry)

MAX_NAMES = 5
"""Names in an error message at most, if they are the nearest of many."""
MAX_LISTED = 20
"""A kind of things with so many names is listed whole."""
LIST = "mla-harness list"
_WORDS = re.compile(r"[a-z0-9]+")


def nearest(name: str, known: Collection[str], *, see: str = LIST) -> str:
    """A hint such as ``did you mean 'kv.tail'?``, or the names that share a word with `name`, the
    most alike first.

    If none does, all names of a short list, or how many there are. `see` is the command that shows
    all names, or empty.
    """
    every = sorted(known)
    begun = [known_name for known_name in every if len(name) > 1 and known_name.startswith(name)]
    typo = difflib.get_close_matches(name, every, n=1, cutoff=0.85)
    # The start of a name is more telling than likeness, unless a letter or two are missing.
    found = typo or begun or difflib.get_close_matches(name, every, n=1, cutoff=0.7)
    if found:
        *others, last = map(repr, found[:MAX_NAMES])
        more = f" ({len(found) - MAX_NAMES} more begin so)" if len(found) > MAX_NAMES else ""
        return f"did you mean {', '.join(others) + ' or ' if others else ''}{last}{more}?"
    if not every:
        return "there are none"
    if len(every) <= MAX_LISTED:
        return f"known: {', '.join(every)}"
    where = f"; see `{see}` for all {len(every)}" if see else ""
    if related := _related(name, every):
        return f"the nearest are {', '.join(related)}{where}"
    return f"none of the {len(every)} known is like it" + (f"; see `{see}`" if see else "")


def _related(name: str, known: list[str]) -> list[str]:
    """The names that share words with `name`: the most words first, then the most alike."""
    words = set(_WORDS.findall(name.lower()))
    shared = {other: len(words & set(_WORDS.findall(other.lower()))) for other in known}

    def rank(other: str) -> tuple[float, ...]:
        return -shared[other], -difflib.SequenceMatcher(None, other, name).ratio()

    return sorted((other for other in known if shared[other]), key=rank)[:MAX_NAMES]


class Registry(Generic[EntryT]):
    """Named entries of one kind.

    An entry is never replaced. `family` makes the entries that a name stands for.
    """

    num_added: ClassVar[int] = 0
    """Entries that plug-ins added to any registry of this process."""

    def __init__(
        self,
        kind: str,
        entries: tuple[EntryT, ...] = (),
        family: Callable[[str], tuple[EntryT, ...]] = lambda name: (),
    ) -> None:
        self.kind = kind
        self._family = family
        self._entries: dict[str, EntryT] = {}
        for entry in entries:
            self._add(entry)

    def add(self, entry: EntryT) -> None:
        """Register `entry`. Raises InputError when its name is taken."""
        self._add(entry)
        Registry.num_added += 1

    def _add(self, entry: EntryT) -> None:
        # A second entry of one name would take the place of the first without a word.
        if entry.name in self._entries:
            raise InputError(
                f"{self.kind} {entry.name!r} is registered already; choose another name"
            )
        self._entries[entry.name] = entry

    def add_family(self, name: str) -> None:
        """Register the entries that `name` stands for, if it is of a family and they are not there
        yet.
        """
        for entry in self._family(name):
            # A family is made anew each time. What is registered stays.
            self._entries.setdefault(entry.name, entry)

    def get(self, name: str) -> EntryT:
        """The entry called `name`. Raises UnknownNameError with the nearest name."""
        if name not in self:
            raise UnknownNameError(f"unknown {self.kind} {name!r}: {nearest(name, self.names())}")
        return self._entries[name]

    def remove(self, name: str) -> None:
        """Forget the entry called `name`, which nothing uses any more."""
        del self._entries[name]

    @contextlib.contextmanager
    def scoped(self, *entries: EntryT) -> Iterator[None]:
        """Within the block, `entries` stand beside the others or replace entries of the same name.

        After the block the registry is as it was before.
        """
        before = dict(self._entries)
        self._entries.update((entry.name, entry) for entry in entries)
        try:
            yield
        finally:
            self._entries = before

    def names(self) -> list[str]:
        """All names in the order of registration."""
        return list(self._entries)

    def __contains__(self, name: str) -> bool:
        if name not in self._entries:
            self.add_family(name)
        return name in self._entries

    def __iter__(self) -> Iterator[EntryT]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


def attribute_at(path: str) -> Any:
    """The object at "module:name" or "module:Class.name". Imports the module."""
    module, _, name = path.partition(":")
    # Looked up for each point of a matrix: import_module takes ten times as long.
    return operator.attrgetter(name)(sys.modules.get(module) or importlib.import_module(module))
