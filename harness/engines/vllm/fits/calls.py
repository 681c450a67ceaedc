"""What our own code calls in packages that it imports by name, read off its text: there is no list of it to keep.

Adapters import inside their functions: `ops = importlib.import_module(_OPS)`, then `ops.decode(q=q, ...)`. This follows
such names through assignments, attributes, objects made of classes, and functions of the same file.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.engines.vllm.fits.signatures import Call


@dataclass(frozen=True, slots=True)
class Text:
    """A string that is known: a module's name."""

    value: str


@dataclass(frozen=True, slots=True)
class Thing:
    """Something of an imported module: "module:Name.attribute"; with nothing after the colon, the module itself."""

    path: str

    def attribute(self, name: str) -> Thing:
        """An attribute of it."""
        return Thing(self.path + ("" if self.path.endswith(":") else ".") + name)


Known = dict[str, Text | Thing]


def calls_of(function: str) -> list[Call]:
    """Every call into an imported package from "module:function" of ours, and from the functions of that file it calls.

    A path's attributes after a class are those of an object of it. Raises LookupError where there is no such function.
    """
    module, _, name = function.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"no module {module}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        raise LookupError(f"no function {name} in {module}")
    constants: Known = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            constants |= {one.id: Text(node.value.value) for one in node.targets if isinstance(one, ast.Name)}
    found: dict[tuple[str, int], Call] = {}
    for call in _Reader(functions, constants).read(functions[name], {}):
        found[call.path, call.line] = call
    return list(found.values())


class _Reader:
    def __init__(self, functions: dict[str, ast.FunctionDef], constants: Known) -> None:
        self._functions = functions
        self._constants = constants
        self._inside: list[str] = []

    def read(self, function: ast.FunctionDef, given: Known) -> Iterator[Call]:
        """Calls in a function whose parameters are known as far as `given` says."""
        if function.name in self._inside:
            return
        self._inside.append(function.name)
        known = {**self._constants, **given}
        # Statements in order: a name means what was assigned to it before.
        for node in sorted(_inner(function), key=lambda one: (one.lineno, one.col_offset)):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                self._assign(node, known)
        for inner in ast.walk(function):
            if isinstance(inner, ast.Call):
                yield from self._call(inner, known)
        self._inside.pop()

    def _assign(self, node: ast.Assign | ast.AnnAssign, known: Known) -> None:
        value = self._value(node.value, known) if node.value is not None else None
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and value is not None:
                known[target.id] = value

    def _call(self, node: ast.Call, known: Known) -> Iterator[Call]:
        if isinstance(node.func, ast.Name) and node.func.id in self._functions:
            callee = self._functions[node.func.id]
            given = zip([one.arg for one in callee.args.args], node.args, strict=False)
            values = {name: self._value(value, known) for name, value in given}
            values |= {word.arg: self._value(word.value, known) for word in node.keywords if word.arg}
            yield from self.read(callee, {name: value for name, value in values.items() if value is not None})
        thing = self._value(node.func, known)
        if isinstance(thing, Thing) and not thing.path.endswith(":"):
            names = tuple(word.arg for word in node.keywords if word.arg)
            by_position = [one for one in node.args if not isinstance(one, ast.Starred)]
            is_open = len(by_position) < len(node.args) or len(names) < len(node.keywords)
            yield Call(thing.path, len(by_position), names, node.lineno, is_open)

    def _value(self, node: ast.expr, known: Known) -> Text | Thing | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return Text(node.value)
        if isinstance(node, ast.Name):
            return known.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value, known)
            return owner.attribute(node.attr) if isinstance(owner, Thing) else None
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) == "importlib.import_module":
                name = self._value(node.args[0], known)
                return Thing(name.value + ":") if isinstance(name, Text) else None
            made = self._value(node.func, known)
            # An object of a class, by its capital; what a function returns is not known.
            return made if isinstance(made, Thing) and re.split("[.:]", made.path)[-1][:1].isupper() else None
        return None


def _inner(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function)
