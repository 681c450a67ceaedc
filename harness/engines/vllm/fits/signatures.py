"""Parameters of a function by its text, and whether a call, or a declaration of ours, suits them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.engines.vllm.fits.release import Found, Release, definitions


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a function takes, without `self`."""

    positional: tuple[str, ...]
    by_name_only: tuple[str, ...]
    required: frozenset[str]
    takes_more: bool = False
    """*args."""
    takes_any_name: bool = False
    """**kwargs."""


@dataclass(frozen=True, slots=True)
class Call:
    """How the harness calls something: so many arguments by position, and these by name; `line` is ours."""

    path: str
    num_positional: int
    names: tuple[str, ...]
    line: int
    is_open: bool = False
    """With *arguments or **arguments, so that more may be given than stands here."""


def parameters(release: Release, found: Found) -> Parameters | None:
    """What a function, or the constructor of a class, takes; None where its text does not say."""
    if isinstance(found.node, ast.FunctionDef):
        return _of_function(found.node, is_method=found.owner is not None)
    if not isinstance(found.node, ast.ClassDef):
        return None
    made = release.member(found, "__init__")
    if made is not None and isinstance(made.node, ast.FunctionDef):
        return _of_function(made.node, is_method=True)
    fields: dict[str, bool] = {}
    for owner in reversed(list(release.lineage(found))):
        assert isinstance(owner.node, ast.ClassDef)
        for node in definitions(owner.node.body):
            is_field = isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
            if is_field and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                fields[node.target.id] = node.value is None
    return Parameters(tuple(fields), (), frozenset(name for name, needed in fields.items() if needed))


def _of_function(node: ast.FunctionDef, is_method: bool) -> Parameters:
    arguments = node.args
    positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    num_required = len(positional) - len(arguments.defaults)
    required = positional[:num_required] + [
        one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    is_static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in node.decorator_list)
    if is_method and not is_static:
        required = [name for name in required if name != positional[0]]
        positional = positional[1:]
    return Parameters(
        tuple(positional),
        tuple(one.arg for one in arguments.kwonlyargs),
        frozenset(required),
        arguments.vararg is not None,
        arguments.kwarg is not None,
    )


def unsuited(call: Call, theirs: Parameters) -> list[str]:
    """What is wrong with a call, one clause each; empty where it suits."""
    wrong = []
    if call.num_positional > len(theirs.positional) and not theirs.takes_more:
        wrong.append(f"takes {len(theirs.positional)} arguments by position, and is given {call.num_positional}")
    given = {*theirs.positional[: call.num_positional], *call.names}
    known = {*theirs.positional, *theirs.by_name_only}
    if not theirs.takes_any_name:
        wrong += [f"takes no `{name}`" for name in call.names if name not in known]
    if not call.is_open:
        wrong += [f"needs `{name}`, which is not given" for name in sorted(theirs.required - given)]
    return wrong


def unlike(ours: Callable[..., Any], theirs: Parameters) -> list[str]:
    """Where a function declared by us differs from theirs: a parameter by position, one by name, one that they need."""
    wrong, given, is_open = [], set(), False
    declared = [one for one in inspect.signature(ours).parameters.values() if one.name != "self"]
    for place, one in enumerate(declared):
        given.add(one.name)
        if one.kind is one.POSITIONAL_OR_KEYWORD:
            if place >= len(theirs.positional):
                if not theirs.takes_more:
                    wrong.append(f"has no parameter {place + 1}, where `{one.name}` was")
            elif theirs.positional[place] != one.name:
                wrong.append(f"has `{theirs.positional[place]}` where `{one.name}` was")
        elif one.kind is one.KEYWORD_ONLY:
            if one.name not in (*theirs.positional, *theirs.by_name_only) and not theirs.takes_any_name:
                wrong.append(f"takes no `{one.name}`")
        else:
            is_open = True
    if not is_open:
        wrong += [f"needs `{name}`, which is not given" for name in sorted(theirs.required - given)]
    return wrong
