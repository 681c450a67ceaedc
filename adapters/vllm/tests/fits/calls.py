"""Calls of our adapters into packages that they import inside functions, and whether a release's
functions fit them.

Calls are read from text. In `ops = importlib.import_module(_OPS)` and `ops.decode(q=q, ...)`, names
are followed through assignments, attributes, objects made of classes, and functions of the same
file.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import griffe
from griffe import ParameterKind


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the harness, or a declaration of ours: its positional arguments, and its keyword
    arguments.

    A positional argument has its name in a declaration, and "" in a call. With `is_open`,
    *arguments or **arguments may add more.
    """

    path: str
    positions: tuple[str, ...]
    names: tuple[str, ...]
    is_open: bool = False


def calls_of(function: str) -> list[Call]:
    """Every call into an imported package from our "module:function" and the functions of its file
    that it calls.

    The path of a called method is "module:Class.method". Raises LookupError if there is no such
    function.
    """
    module, _, name = function.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"no module {module}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=given)],
                value=ast.Call(func=made, args=[ast.Name(id=called), *_]),
            ):
                if given == name and ast.unparse(made) == "functools.partial":
                    name = called
    if name not in functions:
        raise LookupError(f"no function {name} in {module}")
    reader = _Reader(functions)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            reader.visit(node)
    reader.read(functions[name], {})
    return list(reader.calls)


class _Imported(str):
    """The path of something imported, "module:Name.attribute"; "module:" is the module itself."""

    __slots__ = ()


class _Reader(ast.NodeVisitor):
    """Reads statements in the order of the text.

    `_known` maps names to a string or to something imported.
    """

    def __init__(self, functions: dict[str, ast.FunctionDef]) -> None:
        self.calls: dict[Call, None] = {}
        self._functions = functions
        self._known: dict[str, str] = {}

    def read(self, function: ast.FunctionDef, arguments: dict[str, str]) -> None:
        """Read a function with these known arguments."""
        before = self._known
        self._known = {**before, **arguments}
        self.generic_visit(function)
        self._known = before

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        self.generic_visit(node)
        value = self._value(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and value is not None:
                self._known[target.id] = value

    visit_AnnAssign = visit_Assign

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        by_name = {word.arg: word.value for word in node.keywords if word.arg}
        by_position = [one for one in node.args if not isinstance(one, ast.Starred)]
        if isinstance(node.func, ast.Name) and (ours := self._functions.get(node.func.id)):
            given = {
                **dict(zip((one.arg for one in ours.args.args), node.args, strict=False)),
                **by_name,
            }
            values = {name: self._value(value) for name, value in given.items()}
            self.read(ours, {name: value for name, value in values.items() if value is not None})
        called = self._value(node.func)
        if isinstance(called, _Imported) and not called.endswith(":"):
            is_open = len(by_position) + len(by_name) < len(node.args) + len(node.keywords)
            self.calls[Call(str(called), ("",) * len(by_position), tuple(by_name), is_open)] = None

    def _value(self, node: ast.expr | None) -> str | None:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id=name):
                return self._known.get(name)
            case ast.Attribute(value=inner, attr=name):
                owner = self._value(inner)
                return (
                    _Imported(f"{owner}.{name}".replace(":.", ":"))
                    if isinstance(owner, _Imported)
                    else None
                )
            case ast.Call(func=func, args=[argument, *_]) if (
                ast.unparse(func) == "importlib.import_module"
            ):
                module = self._value(argument)
                return None if module is None else _Imported(module + ":")
            case ast.Call(func=func):
                made = self._value(func)
                # The result of a call is known only for a class, by the capital of its name.
                return (
                    made
                    if isinstance(made, _Imported) and re.search(r"[:.][A-Z]\w*$", made)
                    else None
                )
        return None


def declared(ours: griffe.Object | griffe.Alias) -> Call:
    """A function of one of our Protocols, as a call with all of its arguments."""
    taken = parameters(ours) or []
    return Call(
        ours.path,
        tuple(one.name for one in taken if one.kind is ParameterKind.positional_or_keyword),
        tuple(one.name for one in taken if one.kind is ParameterKind.keyword_only),
        any(one.kind in (ParameterKind.var_positional, ParameterKind.var_keyword) for one in taken),
    )


def parameters(found: griffe.Object | griffe.Alias) -> list[griffe.Parameter] | None:
    """The parameters of a function or of a class's constructor, without `self`; None if the text
    does not have them.
    """
    if isinstance(found, griffe.Class):
        if "__init__" not in found.all_members:
            return _fields(found)
        found = found.all_members["__init__"]
    if isinstance(found, griffe.Alias) and found.resolved:
        found = found.final_target
    if not isinstance(found, griffe.Function):
        return None
    is_method = isinstance(found.parent, griffe.Class) and "staticmethod" not in found.labels
    return list(found.parameters)[1 if is_method else 0 :]


def _fields(found: griffe.Class) -> list[griffe.Parameter]:
    """The parameters of a dataclass or a similar class: the annotated attributes of its bases and
    its own.
    """
    fields = {}
    for owner in (*reversed(found.mro()), found):
        for one in owner.members.values():
            if (
                isinstance(one, griffe.Attribute)
                and one.annotation
                and one.has_labels("instance-attribute")
            ):
                kind = ParameterKind.positional_or_keyword
                fields[one.name] = griffe.Parameter(one.name, kind=kind, default=one.value)
    return list(fields.values())


def mismatches(call: Call, theirs: list[griffe.Parameter] | None) -> list[str]:
    """Why a call does not fit a function with these parameters, one clause each.

    Unknown parameters fit.
    """
    if theirs is None:
        return []
    places = [
        one.name
        for one in theirs
        if one.kind in (ParameterKind.positional_only, ParameterKind.positional_or_keyword)
    ]
    kinds = {one.kind for one in theirs}
    num_given = len(call.positions)
    wrong = []
    if num_given > len(places) and ParameterKind.var_positional not in kinds:
        wrong.append(f"takes {len(places)} arguments by position, and is given {num_given}")
    for our_name, name in zip(call.positions, places, strict=False):
        if our_name not in ("", name):
            wrong.append(f"has `{name}` where `{our_name}` was")
    if ParameterKind.var_keyword not in kinds:
        known = {one.name for one in theirs}
        wrong += [f"takes no `{name}`" for name in call.names if name not in known]
    if not call.is_open:
        given = {*places[:num_given], *call.names}
        wrong += [
            f"needs `{one.name}`, which is not given"
            for one in theirs
            if one.required and one.name not in given
        ]
    return wrong
