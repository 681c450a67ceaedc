"""The only things that a template may print: literals, comments, and code of this project.

So a name or a sentence of a YAML file never becomes code.
"""

from __future__ import annotations

import keyword
import math
import re
import textwrap
from typing import Any

from harness.core.errors import HarnessError

WIDTH = 120
ROOM = WIDTH - 4
MARKER = "  # BUG: remove this line and it passes"
"""The end of the script's one line that is the bug."""
DROPPED = "\x00dropped\x00"
"""Printed at a hook of another bug."""

_TOP_LEVEL = re.compile(r"def |class |if __name__")


class Code(str):
    """Python code from a function of this module or from a table of the project."""

    __slots__ = ()


def literal(value: Any) -> Code:
    """`value` as a Python literal: numbers, text, and lists and dicts of them. Raises TypeError for anything else."""
    if isinstance(value, (list, tuple)):
        return Code("[" + ", ".join(literal(item) for item in value) + "]")
    if isinstance(value, dict):
        return Code("{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}")
    if isinstance(value, float) and not math.isfinite(value):
        return Code(f'float("{value}")')
    if isinstance(value, (bool, int, float)) or value is None:
        return Code(repr(value))
    if isinstance(value, str):
        return Code(_quoted(value))
    raise TypeError(f"{type(value).__name__} has no literal in a script")


def long_text(text: str) -> Code:
    """A text as a literal, in several pieces if it is too long for one line."""
    if len(literal(text)) <= ROOM // 2:
        return literal(text)
    pieces = [text[i : i + ROOM // 2] for i in range(0, len(text), ROOM // 2)]
    return Code("(\n" + "".join(f"    {literal(piece)}\n" for piece in pieces) + ")")


def _quoted(text: str) -> str:
    """`text` in double quotes, as ruff writes it. ASCII only, so no character is hidden or changes the direction."""
    escaped = ascii(text)
    if '"' in text or "'" in text or "\\" in escaped:
        return escaped
    return f'"{escaped[1:-1]}"'


def comment(text: str) -> list[str]:
    """`text` as comment lines: one paragraph of printable ASCII, so that nothing in it can end a comment."""
    plain = " ".join(ascii(" ".join(text.split()))[1:-1].replace("\\'", "'").split())
    breakable = " ".join(piece for word in plain.split() for piece in _pieces(word))
    lines = textwrap.wrap(breakable, ROOM, break_on_hyphens=False)
    return [f"# {line}" for line in lines] or ["#"]


def _pieces(word: str) -> list[str]:
    """A word too long for a line, such as a case id, cut after commas; any other word as it is."""
    pieces = [""]
    for part in re.findall(r"[^,]*,|[^,]+", word) if len(word) > ROOM else [word]:
        if len(pieces[-1]) + len(part) > ROOM:
            pieces.append("")
        pieces[-1] += part
    return [piece for piece in pieces if piece]


def identifier(text: str, fallback: str = "case") -> Code:
    """`text` as part of a Python name: letters, digits and underscores."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower().encode("ascii", "ignore").decode()).strip("_")
    return Code(name[:80] or fallback)


def name(text: str) -> Code:
    """`text` as code. Raises HarnessError unless it is a Python name."""
    if not text.isidentifier() or keyword.iskeyword(text) or not text.isascii():
        raise HarnessError(f"{text!r} is no name that a script can use")
    return Code(text)


def only_code(value: Any) -> Any:
    """`value`, if a template may print it. Raises HarnessError for other text (a mistake in a template)."""
    if isinstance(value, (Code, int, float)):
        return value
    raise HarnessError(f"a template of a script prints {type(value).__name__} {value!r} as it is; pass it through `py`")


def without_bug(text: str) -> str:
    """A script without its marked line. Raises HarnessError unless there is exactly one."""
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if not line.rstrip("\n").endswith(MARKER)]
    if len(kept) != len(lines) - 1:
        raise HarnessError(f"a script must have one line that is the bug, this one has {len(lines) - len(kept)}")
    return "".join(kept)


def tidy(text: str) -> str:
    """A rendered script without hooks of other bugs and trailing blanks, with the empty lines of PEP 8."""
    found: list[str] = []
    for line in (line.rstrip() for line in text.splitlines() if DROPPED not in line):
        if not line and (not found or found[-2:] == ["", ""]):
            continue
        follows_block = found and found[-1].startswith(" ") and line and line[0] not in " )]}"
        if follows_block or _TOP_LEVEL.match(line):
            while found and not found[-1]:
                found.pop()
            found += ["", ""]
        found.append(line)
    return "\n".join(found).strip("\n") + "\n"
