"""Injects known bugs into engines: a function of the engine is recompiled from its own text with
edits.

A patch is for a range of releases and names the text that it replaces. It is refused unless the
function has this text exactly once, because a fault without effect would look like a fault that the
harness misses.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from harness.api import Code, EngineSpec, InputError, WhyNot, nearest, read_rows
from mla_harness_adapters.releases import Releases, release_of


class PatchRefused(InputError):
    """The engine's code is not what the patch expects. The message has the difference."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function `target`, "module:Class.function", the lines `old` become `new`."""

    target: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Patch:
    """One bug of `engine`: the edits remove its fix from releases `first <= version < last`.

    Releases before `as_released`, if given, have the bug themselves.
    """

    engine: EngineSpec
    fault: str
    first: str
    last: str
    edits: tuple[Edit, ...]
    as_released: str = ""

    def why_not(self, version: str) -> WhyNot | None:
        """Why the bug cannot be injected into `version`, by its number alone; None if it can be
        tried.
        """
        if self.as_released and version in Releases(last=self.as_released):
            why = (
                f"{self.engine.title} {version} has this bug as released; its fix came with"
                f" {self.as_released}"
            )
            return WhyNot(why, Code.AS_RELEASED)
        if version not in Releases(self.first, self.last):
            why = (
                f"written for {self.engine.title} {self.first} up to, not including, {self.last};"
                f" this is {version}"
            )
            return WhyNot(why, Code.NO_PATCH)
        return None

    def apply(self, version: str) -> None:
        """Inject the bug into this process.

        Raises PatchRefused without changing anything if it does not fit.
        """
        reason = self.why_not(version)
        if reason:
            raise PatchRefused(f"fault {self.fault}: {reason}")
        targets = dict.fromkeys(edit.target for edit in self.edits)
        ready = [(find_owner(target), self._edited(target)) for target in targets]
        for (owner, name), function in ready:
            replace(owner, name, function)

    def _edited(self, target: str) -> Callable[..., Any]:
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


class Patches(dict[str, tuple[Patch, ...]]):
    """The patches of an engine by fault, each in the order of releases."""

    def find(self, fault: str, version: str) -> Patch:
        """The patch that injects a fault into a release.

        If none does, a patch with the reason in its `why_not`.

        Raises InputError for an unknown fault.
        """
        if fault not in self:
            raise InputError(f"unknown fault {fault!r}; {nearest(fault, list(self))}")
        own = self[fault]
        nearest_patch = own[-1] if release_of(version) >= release_of(own[-1].last) else own[0]
        return next((patch for patch in own if not patch.why_not(version)), nearest_patch)

    def why_not(self, fault: str | None, version: str) -> WhyNot | None:
        """Why a fault cannot be injected into a release, by its number alone; None if it can be
        tried, or is None.
        """
        return self.find(fault, version).why_not(version) if fault else None

    def inject(self, fault: str, version: str) -> None:
        """Inject a fault into this process.

        Raises InputError for an unknown one, PatchRefused if it does not fit.
        """
        self.find(fault, version).apply(version)


def read_patches(engine: EngineSpec, file: Path) -> Patches:
    """The patches of a table in YAML.

    The releases of a patch are "0.22.0 to 0.26.0", or "0.26.0 on": up to `read_before`, the first
    release whose code no one has read. So one row follows a new release.
    """
    rows = dict(read_rows(file))
    read_before = rows.pop("read_before", "")

    def patch(fault: str, given: dict[str, Any]) -> Patch:
        first, _, last = given["releases"].partition(" to ")
        if not last:
            first, last = first.removesuffix(" on"), read_before
        edits = tuple(Edit(edit["in"], edit["old"], edit["new"]) for edit in given["edits"])
        return Patch(engine, fault, first, last, edits, given.get("as_released", ""))

    return Patches(
        {fault: tuple(patch(fault, one) for one in patches) for fault, patches in rows.items()}
    )


def edited_text(source: str, edit: Edit) -> str:
    """`source` with the edit made.

    Raises PatchRefused unless the source has the old text exactly once.
    """
    lines = source.splitlines()
    old = textwrap.dedent(edit.old).strip("\n").splitlines()
    # Compared without the common margin, which may differ between releases.
    windows = (
        textwrap.dedent("\n".join(lines[i : i + len(old)])).splitlines() for i in range(len(lines))
    )
    places = [i for i, window in enumerate(windows) if window == old]
    if len(places) != 1:
        found = "is not there" if not places else f"is there {len(places)} times"
        raise PatchRefused(
            f"{edit.target} is not what the patch expects: {old[0].strip()!r} {found}"
        )
    start = places[0]
    margin = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
    new = textwrap.indent(textwrap.dedent(edit.new).strip("\n"), margin)
    return "\n".join([*lines[:start], new, *lines[start + len(old) :]]) + "\n"


def _compiled(function: FunctionType, source: str) -> Callable[..., Any]:
    """The function that `source` defines, in the namespace of `function`."""
    scope: dict[str, Any] = {}
    variables = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    made = function.__name__
    if "__class__" in variables:
        # super() takes its class from the scope around the function.
        source = f"def around(__class__):\n{textwrap.indent(source, '    ')}\n    return {made}"
    code = compile(source, f"<{function.__module__}.{function.__qualname__} with a fault>", "exec")
    exec(code, sys.modules[function.__module__].__dict__, scope)
    found: Callable[..., Any] = (
        scope[made] if made in scope else scope["around"](variables["__class__"].cell_contents)
    )
    return found


def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace `owner.name`, and a module's function also where other modules have imported it by
    name.
    """
    original = owner.__dict__[name]
    setattr(owner, name, function)
    for module in list(sys.modules.values()) if isinstance(owner, ModuleType) else ():
        for key, value in list(getattr(module, "__dict__", {}).items()):
            if value is original:
                setattr(module, key, function)


def find_owner(target: str) -> tuple[Any, str]:
    """The class or module of the function at "module:Class.function", and the function's name.

    Raises PatchRefused.
    """
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
