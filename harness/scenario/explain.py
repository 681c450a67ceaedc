"""Errors of pydantic in plain words: one clause that says what is wrong and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.core.params import ILLEGAL
from harness.core.registry import nearest

Location = tuple[str | int, ...]

SCHEMA = "mla-harness schema"
"""The command that shows all keys of a scenario file."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem at one place of a document: of the key there if `at_key`, else of its value."""

    location: Location
    message: str
    at_key: bool = False
    kind: str = ""
    """The type of pydantic's error, if it comes from one."""


_TYPES = {
    "int_type": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}

_BOUNDS = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}


def problems(error: ValidationError, model: type[BaseModel], at: Location = ()) -> list[Problem]:
    """The problems of a failed validation of `model`, located under `at`."""
    return [_problem(item, model, at) for item in error.errors(include_url=False)]


def _problem(item: Any, model: type[BaseModel], at: Location) -> Problem:
    location = at + tuple(part for part in item["loc"] if part != "[key]")
    kind, given, context = item["type"], item.get("input"), item.get("ctx", {})
    if kind == "extra_forbidden":
        known = _keys_beside(model, item["loc"])
        name = str(item["loc"][-1])
        return Problem(location, f"unknown key {name!r}; {nearest(name, known, see=SCHEMA)}", at_key=True)
    if kind == "missing":
        name = item["loc"][-1]
        what = f"value {name + 1} of this list" if isinstance(name, int) else repr(name)
        return Problem(location[:-1], f"{what} is missing; add it", at_key=not isinstance(name, int))
    return Problem(location, _sentence(kind, given, context, item["msg"]), "[key]" in item["loc"], kind)


def _sentence(kind: str, given: Any, context: dict[str, Any], message: str) -> str:
    if kind in ("unknown_name", ILLEGAL):
        return message
    if kind in _TYPES:
        return f"expected {_TYPES[kind]}, not {_show(given)}"
    if kind == "literal_error":
        return f"unknown value {given!r}; expected {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"{given!r} has the wrong form; {_FORMS.get(context['pattern'], 'it must match ' + context['pattern'])}"
    if kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        return f"expected {word} {context[key]}, not {given}"
    if kind in ("too_short", "string_too_short"):
        return f"expected {'some text' if kind.startswith('string') else 'at least one value'}, not none; add it"
    if kind == "string_too_long":
        return f"the text has {len(given)} characters; at most {context['max_length']} fit in a table"
    return f"{message[:1].lower()}{message[1:]}, not {_show(given)}"


_FORMS = {
    r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+#[0-9]+$": "write owner/repository#number, such as flashinfer-ai/flashinfer#941",
    r"^[a-z0-9][a-z0-9-]*$": "use small letters, digits and hyphens",
    r"^[a-z][a-z0-9_-]*$": "use small letters, digits, hyphens and underscores",
    r"^[a-z][a-z0-9_]*$": "an axis is named like a parameter: small letters, digits and underscores",
}


def _show(value: Any) -> str:
    kinds = {dict: "a mapping", list: "a list", tuple: "a list", type(None): "nothing"}
    return kinds.get(type(value)) or (str(value).lower() if isinstance(value, bool) else repr(value))


def _keys_beside(model: type[BaseModel], location: Location) -> list[str]:
    """The names that are allowed at the place of an unknown key."""
    current: Any = model
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = next((f for name, f in current.model_fields.items() if (f.alias or name) == part), None)
        current = _model_within(field.annotation) if field is not None else None
        if current is None:
            return []
    return [field.alias or name for name, field in current.model_fields.items()]


def _model_within(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_within(argument)
        if found is not None:
            return found
    return None
