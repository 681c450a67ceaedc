"""The parameters of a function in a text, and whether a call, or our declaration, fits them."""

from __future__ import annotations

from dataclasses import dataclass

import griffe
from griffe import ParameterKind


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the harness, or a declaration of ours: its positional arguments, and its keyword arguments.

    A positional argument has its name in a declaration, and "" in a call. With `is_open`, *arguments or **arguments
    may add more.
    """

    path: str
    positions: tuple[str, ...]
    names: tuple[str, ...]
    is_open: bool = False


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
    """The parameters of a function or of a class's constructor, without `self`; None if the text does not have them."""
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
    """The parameters of a dataclass or a similar class: the annotated attributes of its bases and its own."""
    fields = {}
    for owner in (*reversed(found.mro()), found):
        for one in owner.members.values():
            if isinstance(one, griffe.Attribute) and one.annotation and one.has_labels("instance-attribute"):
                kind = ParameterKind.positional_or_keyword
                fields[one.name] = griffe.Parameter(one.name, kind=kind, default=one.value)
    return list(fields.values())


def mismatches(call: Call, theirs: list[griffe.Parameter] | None) -> list[str]:
    """Why a call does not fit a function with these parameters, one clause each. Unknown parameters fit."""
    if theirs is None:
        return []
    places = [
        one.name for one in theirs if one.kind in (ParameterKind.positional_only, ParameterKind.positional_or_keyword)
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
        wrong += [f"needs `{one.name}`, which is not given" for one in theirs if one.required and one.name not in given]
    return wrong
