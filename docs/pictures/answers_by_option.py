"""Draw answers-by-option.svg from answers-by-option.json: python
docs/pictures/answers_by_option.py
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
WIDTH, LEFT, ROW, TOP = 760, 250, 40, 74
RIGHT = WIDTH - 24
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
GOOD, BAD = "#14703f", "#b91f24"


def text(
    x: float, y: float, words: str, *, size: int = 14, fill: str = "#1a222d", more: str = ""
) -> str:
    """One line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}"{more}>{escape(words)}</text>'
    )


def draw(data: dict[str, Any]) -> str:
    """The picture: a bar for each option, green when every answer is right."""
    options = data["options"]
    height = TOP + ROW * len(options) + 34
    said = "; ".join(f"{one['backend']}, {one['detail']}: {one['accuracy']:.4f}" for one in options)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            f' width="{WIDTH}" height="{height}" font-family="{FONT}" role="img"'
            ' aria-labelledby="t d">'
        ),
        f'<title id="t">{escape(data["title"])}</title><desc id="d">{escape(said)}</desc>',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#dde2e9"/>',
        text(24, 34, data["title"], size=18, more=' font-weight="650"'),
        text(24, 56, data["what"], size=12, fill="#566271"),
    ]
    for number, one in enumerate(options):
        y = TOP + ROW * number
        colour = GOOD if one["accuracy"] == 1 else BAD
        end = LEFT + (RIGHT - LEFT) * one["accuracy"]
        lines.append(text(24, y + 17, one["backend"], more=' font-weight="600"'))
        lines.append(text(24, y + 32, one["detail"], size=12, fill="#566271"))
        lines.append(
            f'<rect x="{LEFT}" y="{y + 6}" width="{RIGHT - LEFT}" height="24" rx="3"'
            ' fill="#eff2f6"/>'
        )
        lines.append(
            f'<rect x="{LEFT}" y="{y + 6}" width="{end - LEFT:.1f}" height="24" rx="3"'
            f' fill="{colour}"/>'
        )
        value = f"{one['accuracy']:.4f}" + (f": {one['note']}" if one["note"] else "")
        is_inside = one["accuracy"] > 0.8
        place = (end - 10, ' text-anchor="end"', "#ffffff") if is_inside else (end + 10, "", colour)
        lines.append(
            text(place[0], y + 23, value, fill=place[2], more=f'{place[1]} font-weight="600"')
        )
    lines.append(text(24, height - 14, data["machine"], size=12, fill="#566271"))
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    found = json.loads((FOLDER / "answers-by-option.json").read_text(encoding="utf-8"))
    (FOLDER / "answers-by-option.svg").write_text(draw(found), encoding="utf-8")
