"""Three questions about a file without a decorator, asked at a terminal, and the decorator that the
answers come to.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from harness.core.ops import OPS

NO_STYLE = "op"
"""The answer for a function that has the op's own call."""


def functions_of(path: Path) -> list[str]:
    """The functions and classes at the top of a file, in their order; none if it is no Python."""
    return [
        one.name
        for one in _statements(path)
        if isinstance(one, ast.FunctionDef | ast.ClassDef) and not one.name.startswith("_")
    ]


def decorates(path: Path) -> bool:
    """Whether a file calls `kernel`, as a decorator does."""
    return any(
        isinstance(node, ast.Call)
        and (getattr(node.func, "id", "") == "kernel" or getattr(node.func, "attr", "") == "kernel")
        for one in _statements(path)
        for node in ast.walk(one)
    )


def _statements(path: Path) -> list[ast.stmt]:
    try:
        return ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):
        # The error is told with its line where the file is loaded.
        return []


def ask(path: Path, name: str) -> tuple[str, dict[str, Any]]:
    """The function and the words of its decorator, by the user's answers.

    Returns `name` and no words if no one can answer, or if there is nothing to ask.
    """
    # Its folder has torch, which few commands need.
    from harness.kernels.adapters import styles_of

    functions = functions_of(path)
    if not sys.stdin.isatty() or decorates(path) or not functions:
        return name, {}
    typer.echo(f"{path.name} has no @kernel. Three questions:", err=True)
    ops = [op.name for op in OPS]
    op = _choice("its op", ops, max(ops, key=lambda name: len(styles_of(name))))
    styles = [NO_STYLE, *styles_of(op)]
    style = _choice("its call", styles, NO_STYLE) if len(styles) > 1 else NO_STYLE
    name = name or _choice("its function", functions, functions[-1])
    words = {"op": op, "name": kernel_name(name)} | ({} if style == NO_STYLE else {"style": style})
    typer.echo("\nTo be asked no more, write above it:\n", err=True)
    typer.echo(f"from harness import kernel\n\n{decorator(words)}\n", err=True)
    return name, words


def kernel_name(function: str) -> str:
    """The name of a kernel, by that of its function."""
    return function.rpartition(".")[2].replace("_", "-").strip("-")


def decorator(words: dict[str, Any]) -> str:
    """`@kernel(op="OP", name="mine")`."""
    given = ", ".join(f'{word}="{value}"' for word, value in words.items())
    return f"@kernel({given})"


def _choice(what: str, known: Sequence[str], default: str) -> str:
    typer.echo(f"  {', '.join(known)}", err=True)
    while True:
        answer = typer.prompt(what, default=default, err=True)
        if answer in known:
            return str(answer)
        typer.echo(f"{answer} is none of them", err=True)
