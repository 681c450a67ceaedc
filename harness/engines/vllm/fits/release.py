"""A release of vLLM as folders of Python files: what a name there stands for, found without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Module:
    """One file: its dotted name, text, and tree."""

    name: str
    is_package: bool
    text: str = field(repr=False)
    tree: ast.Module = field(repr=False)


@dataclass(frozen=True, slots=True)
class Found:
    """What a name stands for. `node` is None where another package has it, which is not looked into."""

    module: Module
    node: ast.FunctionDef | ast.ClassDef | ast.expr | None
    owner: ast.ClassDef | None = None

    @property
    def text(self) -> str:
        """Its lines, decorators and all, with their margin."""
        assert isinstance(self.node, ast.FunctionDef | ast.ClassDef)
        first = min([self.node.lineno, *(one.lineno for one in self.node.decorator_list)])
        return "".join(self.module.text.splitlines(keepends=True)[first - 1 : self.node.end_lineno])


@dataclass
class Release:
    """The packages in `folders`, searched in order as PYTHONPATH is."""

    folders: tuple[Path, ...]
    _modules: dict[str, Module | None] = field(default_factory=dict)

    @classmethod
    def at(cls, text: str) -> Release:
        """`FOLDER` or `FOLDER:FOLDER`. Raises InputError where none of them holds one installed vLLM."""
        release = cls(tuple(Path(part) for part in text.split(":") if part))
        if not release.version:
            raise InputError(
                f"{text}: no vllm-*.dist-info beside a vllm package; make one with tools/vllm_host_sites.py"
            )
        return release

    @property
    def version(self) -> str:
        """vLLM's version by its metadata; empty where there is none."""
        return self.version_of("vllm")

    def version_of(self, distribution: str) -> str:
        """A distribution's version, without what follows a +; empty where it is not in the folders."""
        for folder in self.folders:
            for info in sorted(folder.glob(f"{distribution}-*.dist-info")):
                return info.name.removeprefix(f"{distribution}-").removesuffix(".dist-info").partition("+")[0]
        return ""

    def has(self, package: str) -> bool:
        """Whether a package is in the folders at all."""
        return any((folder / package / "__init__.py").is_file() for folder in self.folders)

    def module(self, name: str) -> Module | None:
        """A module's text and tree; None where it is not there, or is a compiled one. Raises InputError where it is
        written for a newer Python than this one."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def find(self, path: str) -> Found | None:
        """What "module:Name.attribute" stands for, through imports and base classes; None where it is not there."""
        module_name, _, rest = path.partition(":")
        module = self.module(module_name)
        if module is None:
            return None
        first, *others = rest.split(".")
        found = self._name(module, first, frozenset())
        for name in others:
            if found is None or not isinstance(found.node, ast.ClassDef):
                return None
            found = self.member(found, name)
        return found

    def member(self, found: Found, name: str) -> Found | None:
        """A function or class in the body of a class, or of the nearest base that has one."""
        for owner in self.lineage(found):
            assert isinstance(owner.node, ast.ClassDef)
            same = [
                node
                for node in definitions(owner.node.body)
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
            ]
            if same:
                return Found(owner.module, same[-1], owner.node)
        return None

    def lineage(self, found: Found) -> Iterator[Found]:
        """A class and its bases, as far as they are in the folders, nearest first."""
        waiting, seen = [found], set()
        while waiting:
            one = waiting.pop(0)
            if not isinstance(one.node, ast.ClassDef) or id(one.node) in seen:
                continue
            seen.add(id(one.node))
            yield one
            for base in one.node.bases:
                name = base.value if isinstance(base, ast.Subscript) else base
                if isinstance(name, ast.Name) and (known := self._name(one.module, name.id, frozenset())):
                    waiting.append(known)

    def left_to_others(self, found: Found) -> set[str]:
        """Functions of a class that are abstract, its bases' among them."""
        by_name: dict[str, bool] = {}
        for one in self.lineage(found):
            assert isinstance(one.node, ast.ClassDef)
            for node in definitions(one.node.body):
                if isinstance(node, ast.FunctionDef):
                    marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
                    by_name.setdefault(node.name, "abstractmethod" in marks)
        return {name for name, is_abstract in by_name.items() if is_abstract}

    def attributes(self, found: Found) -> set[str]:
        """Names that objects of a class have: its body's, its bases', and whatever a method sets on `self`."""
        names: set[str] = set()
        for one in self.lineage(found):
            assert isinstance(one.node, ast.ClassDef)
            for node in definitions(one.node.body):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    names.add(node.name)
                names |= {target.id for target in targets(node) if isinstance(target, ast.Name)}
            for inner in ast.walk(one.node):
                names |= {
                    target.attr
                    for target in targets(inner)
                    if isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                }
        return names

    def _name(self, module: Module, name: str, seen: frozenset[tuple[str, str]]) -> Found | None:
        """A name of a module: defined there, or imported from where it is; a definition counts before an import."""
        if (module.name, name) in seen:
            return None
        seen |= {(module.name, name)}
        imported: Found | None = None
        assigned: Found | None = None
        defined: Found | None = None
        for node in definitions(module.tree.body):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                defined = Found(module, node)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if alias.name == "*":
                        imported = imported or self._imported(module, node, name, seen)
                    elif (alias.asname or alias.name) == name:
                        imported = self._imported(module, node, alias.name, seen) or imported
            elif any(isinstance(target, ast.Name) and target.id == name for target in targets(node)):
                value = getattr(node, "value", None)
                assigned = Found(module, value if isinstance(value, ast.expr) else None)
        return defined or imported or assigned

    def _imported(
        self, module: Module, node: ast.ImportFrom, name: str, seen: frozenset[tuple[str, str]]
    ) -> Found | None:
        origin = node.module or ""
        if node.level:
            parts = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
            kept = parts[: len(parts) - node.level + 1]
            origin = ".".join([*kept, *filter(None, [origin])])
        source = self.module(origin)
        if source is not None:
            return self._name(source, name, seen)
        # A package that is not in the folders is not looked into: what is imported from it is taken to be there.
        is_elsewhere = name != "*" and not self.has(origin.partition(".")[0])
        return Found(module, None) if is_elsewhere and _names(node, name) else None

    def _read(self, name: str) -> Module | None:
        parts = Path(*name.split("."))
        for folder in self.folders:
            package = folder / parts / "__init__.py"
            for file in (package, folder / parts.with_suffix(".py")):
                if file.is_file():
                    text = file.read_text(encoding="utf-8")
                    try:
                        tree = ast.parse(text)
                    except SyntaxError as error:
                        why = f"this Python cannot read line {error.lineno} ({error.msg}); use a newer one"
                        raise InputError(f"{file}: {why}") from None
                    return Module(name, file == package, text, tree)
        return None


def _names(node: ast.ImportFrom, name: str) -> bool:
    return any(alias.name == name for alias in node.names)


def definitions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module or class, those under `if`, `try` and `with` among them."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from definitions(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from definitions(handler.body)


def targets(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to, or declares."""
    if isinstance(node, ast.Assign):
        return [one for target in node.targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [node.target] if isinstance(node, ast.AnnAssign) else []
