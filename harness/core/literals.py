"""Values as Python literals, for scripts that run without this project."""

from __future__ import annotations

import math
from typing import Any


class PythonCode(str):
    """Python code that this project wrote. Only such text enters a script as it is."""

    __slots__ = ()


def literal(value: Any) -> PythonCode:
    """`value` as a Python literal: numbers, text, and lists and dicts of them.

    Raises TypeError for anything else.
    """
    if isinstance(value, (list, tuple)):
        return PythonCode("[" + ", ".join(literal(item) for item in value) + "]")
    if isinstance(value, dict):
        return PythonCode(
            "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return PythonCode(f'float("{value}")')
    if isinstance(value, (bool, int, float)) or value is None:
        return PythonCode(repr(value))
    if isinstance(value, str):
        return PythonCode(_quoted(value))
    raise TypeError(f"{type(value).__name__} has no literal in a script")


def _quoted(text: str) -> str:
    """`text` in double quotes, as ruff writes it.

    ASCII only, so no character is hidden or changes the direction.
    """
    escaped = ascii(text)
    if '"' in text or "'" in text or "\\" in escaped:
        return escaped
    return f'"{escaped[1:-1]}"'
