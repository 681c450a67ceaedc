"""A release of vLLM as folders of Python files, which griffe reads without importing them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import griffe

from harness.core.errors import InputError

DOWNLOAD = "python -m adapters.shared.tests.download vllm"


class Release:
    """The packages in `folders`, which are searched in order like PYTHONPATH."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._modules = _Modules(folders)

    @classmethod
    def at(cls, text: str) -> Release:
        """The release in `FOLDER` or `FOLDER:FOLDER`.

        Raises InputError if no folder has an installed vLLM.
        """
        release = cls([Path(part) for part in text.split(":") if part])
        if not release.version:
            raise InputError(
                f"{text}: no vllm-*.dist-info beside a vllm package; make one with {DOWNLOAD}"
            )
        return release

    @property
    def version(self) -> str:
        """vLLM's version in its metadata; empty without metadata."""
        return self.version_of("vllm")

    def version_of(self, distribution: str) -> str:
        """A distribution's version without its local part (+...); empty if the folders do not have
        it.
        """
        for folder in self._folders:
            for info in sorted(folder.glob(f"{distribution}-*.dist-info")):
                return (
                    info.name.removeprefix(f"{distribution}-")
                    .removesuffix(".dist-info")
                    .partition("+")[0]
                )
        return ""

    def has(self, package: str) -> bool:
        """Whether the folders have a package."""
        return any((folder / package / "__init__.py").is_file() for folder in self._folders)

    def text(self, module: str) -> str:
        """The text of a module; empty if there is none."""
        try:
            return self._modules.module(module).source
        except KeyError:
            return ""

    def find(self, path: str) -> griffe.Object | griffe.Alias | None:
        """The object at "module:Name.attribute", through imports and base classes; None if there is
        none.

        A name imported from a package outside the folders is taken to exist, and returned as an
        Alias. Raises InputError for a file that needs a newer Python.
        """
        module, _, names = path.partition(":")
        try:
            found: griffe.Object | griffe.Alias = self._modules.get_member(module)
            for name in names.split("."):
                found = found[name]
            return found.final_target if isinstance(found, griffe.Alias) else found
        except griffe.AliasResolutionError as error:
            return None if self.has(error.alias.target_path.partition(".")[0]) else error.alias
        except (KeyError, griffe.CyclicAliasError):
            return None


class _Modules(griffe.ModulesCollection):
    """Modules, each read at its first use. griffe's own loader reads all 3,000 files of a
    release.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        super().__init__()
        self._folders = folders
        self._lines = griffe.LinesCollection()
        self._loader = griffe.GriffeLoader(modules_collection=self)
        self._read: dict[str, griffe.Module] = {}

    def get_member(self, key: str | Sequence[str]) -> Any:
        """The object at a dotted path: a name in a package before a module of the package.

        Raises KeyError.
        """
        first, *others = key.split(".") if isinstance(key, str) else key
        found: Any = self.module(first)
        for name in others:
            try:
                found = found.get_member(name)
            except KeyError:
                found = self.module(f"{found.canonical_path}.{name}")
        return found

    def module(self, name: str) -> griffe.Module:
        """A module by its dotted name.

        Raises KeyError if the folders have neither a file nor a folder for it.
        """
        if name not in self._read:
            package, _, own_name = name.rpartition(".")
            parent = self.module(package) if package else None
            self._read[name] = self._visit(own_name, self._file(name), parent)
            self._loader.expand_wildcards(self._read[name], external=False)
        return self._read[name]

    def _file(self, name: str) -> Path:
        for folder in self._folders:
            place = folder.joinpath(*name.split("."))
            for file in (place / "__init__.py", place.with_suffix(".py"), place):
                if file.exists():
                    return file
        raise KeyError(name)

    def _visit(self, name: str, file: Path, parent: griffe.Module | None) -> griffe.Module:
        if file.is_dir():
            return griffe.Module(name, filepath=[file], parent=parent, modules_collection=self)
        text = file.read_text(encoding="utf-8")
        self._lines[file] = text.splitlines()
        try:
            return griffe.visit(
                name,
                file,
                text,
                parent=parent,
                extensions=griffe.Extensions(_AttributesOfMethods()),
                lines_collection=self._lines,
                modules_collection=self,
            )
        except SyntaxError as error:
            why = f"this Python cannot read line {error.lineno} ({error.msg}); use a newer one"
            raise InputError(f"{file}: {why}") from None


class _AttributesOfMethods(griffe.Extension):
    """Gives a class the attributes that its methods set on `self`. griffe reads `__init__` only."""

    def on_class_members(self, *, node: Any, cls: griffe.Class, **_: Any) -> None:
        """Called by griffe for each class."""
        for inner in ast.walk(node):
            match inner:
                case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()) if (
                    inner.attr not in cls.members
                ):
                    cls.set_member(inner.attr, griffe.Attribute(inner.attr))
