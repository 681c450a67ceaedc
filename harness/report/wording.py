"""Text of kernels and findings made safe to print: a terminal, XML and HTML each refuse other characters."""

from __future__ import annotations

import re

# XML 1.0 has no way to write these, not even escaped; a terminal would obey some of them.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """`text` with control characters, lone surrogates and direction overrides escaped; tabs and newlines stay."""
    return _UNPRINTABLE.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def one_line(text: str, limit: int = 400) -> str:
    """`text` on one printable line, cut at `limit` characters."""
    joined = " ".join(printable(text).split())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def num(count: int, noun: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
