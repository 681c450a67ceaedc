"""Known bugs of engines, injected: a function of a named range of releases is recompiled from its own text, edited.

A patch names the text that it replaces. Unless that text is there exactly once, the patch refuses to apply: a fault
that does nothing would look like a harness that does not see it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from harness.core.engine_spec import EngineSpec
from harness.core.errors import InputError
from harness.engines.base import release_of


class PatchRefused(InputError):
    """The code is not what the patch expects. The message says what differs."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In "module:Class.function" (or a subclass's override), `old` stands once and becomes `new`."""

    target: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Patch:
    """One bug of `engine`: releases `first <= version < last` have its fix, and the edits remove the fix.

    Releases before `as_released` have the bug themselves.
    """

    engine: EngineSpec
    fault: str
    first: str
    last: str
    edits: tuple[Edit, ...]
    as_released: str = ""

    def why_not(self, version: str) -> str | None:
        """Why the bug cannot be injected into `version`, by its number alone; None when it can be tried."""
        if self.as_released and release_of(version) < release_of(self.as_released):
            return f"{self.engine.title} {version} has this bug as released; its fix came with {self.as_released}"
        if not release_of(self.first) <= release_of(version) < release_of(self.last):
            return f"written for {self.engine.title} {self.first} up to, not including, {self.last}; this is {version}"
        return None

    def apply(self, version: str) -> None:
        """Inject the bug for the life of this process. Raises PatchRefused, and then changes nothing."""
        reason = self.why_not(version)
        if reason:
            raise PatchRefused(f"fault {self.fault}: {reason}")
        targets = dict.fromkeys(edit.target for edit in self.edits)
        ready = [(find_owner(target), self._edited(target)) for target in targets]
        for (owner, name), function in ready:
            setattr(owner, name, function)

    def _edited(self, target: str) -> Callable[..., Any]:
        """The function at `target` with all edits of it made."""
        owner, name = find_owner(target)
        function = inspect.unwrap(owner.__dict__[name])
        source = textwrap.dedent(inspect.getsource(function))
        for edit in self.edits:
            if edit.target == target:
                try:
                    source = edited_text(source, edit)
                except PatchRefused as refusal:
                    raise PatchRefused(f"fault {self.fault}: {refusal}") from None
        return _compiled(function, source)


def edited_text(source: str, edit: Edit) -> str:
    """`source` with the edit made. Raises PatchRefused when what it replaces is not there exactly once."""
    # The text is compared without its margin: the same lines may stand deeper in another release.
    lines, wanted = source.splitlines(), textwrap.dedent(edit.old).strip("\n").splitlines()
    places = [i for i in range(len(lines)) if _matches(lines[i : i + len(wanted)], wanted)]
    if len(places) != 1:
        found = "is not there" if not places else f"is there {len(places)} times"
        raise PatchRefused(f"{edit.target} is not what the patch expects: {wanted[0].strip()!r} {found}")
    start = places[0]
    margin = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
    new = [margin + line if line.strip() else line for line in textwrap.dedent(edit.new).strip("\n").splitlines()]
    return "\n".join([*lines[:start], *new, *lines[start + len(wanted) :]]) + "\n"


def _matches(lines: list[str], wanted: list[str]) -> bool:
    """Equal but for the margin that all lines share."""
    return textwrap.dedent("\n".join(lines)).splitlines() == wanted


def _compiled(function: FunctionType, source: str) -> Callable[..., Any]:
    """The function that `source` defines, in the namespace of the one it replaces."""
    scope: dict[str, Any] = {}
    code = compile(source, f"<{function.__module__}.{function.__qualname__} with a fault>", "exec")
    if function.__closure__ and "__class__" in function.__code__.co_freevars:
        raise PatchRefused(f"{function.__qualname__} uses super() and cannot be recompiled alone")
    exec(code, sys.modules[function.__module__].__dict__, scope)
    made: Callable[..., Any] = scope[function.__name__]
    return made


def find_owner(target: str) -> tuple[Any, str]:
    """The object that holds the function at "module:Class.function", and the function's name. Raises PatchRefused."""
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    try:
        owner: Any = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        owner.__dict__[name]
    except (ImportError, AttributeError, KeyError) as error:
        raise PatchRefused(f"{target} is not there ({error})") from None
    return owner, name
