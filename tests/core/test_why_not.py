"""One type for the reason why something cannot run here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.cause_codes import Code, WhyNot

HARNESS = Path(__file__).parents[2] / "harness"
OF_CLASSES = "core/conditions/model.py"
"""Its `why_not` is about classes of conditions that no legal call has together."""


def answers_of(source: str) -> Iterator[tuple[str, str]]:
    """The functions called `why_not…` or `_why_not…` in a file, and what they return."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith("why_not"):
            yield node.name, ast.unparse(node.returns) if node.returns else ""


def test_a_reason_has_a_sentence_and_a_cause() -> None:
    reason = WhyNot("no GPU", Code.NO_DEVICE)
    assert (str(reason), f"mine is {reason}", reason.cause) == (
        "no GPU",
        "mine is no GPU",
        Code.NO_DEVICE,
    )
    assert WhyNot("no luck").cause == Code.UNABLE


def test_an_empty_reason_is_refused_because_it_would_skip_a_case_without_a_word() -> None:
    with pytest.raises(ValueError, match="None"):
        WhyNot("")


def test_every_function_that_says_why_not_returns_the_one_type_or_none() -> None:
    found = {
        f"{file.relative_to(HARNESS)}:{name}": returned
        for file in HARNESS.rglob("*.py")
        if file.relative_to(HARNESS).as_posix() != OF_CLASSES
        for name, returned in answers_of(file.read_text(encoding="utf-8"))
    }
    assert len(found) > 15
    assert {place: one for place, one in found.items() if one != "WhyNot | None"} == {}


def test_a_function_that_returns_a_text_is_found() -> None:
    assert dict(answers_of("def why_not(x) -> str:\n    return ''\n")) == {"why_not": "str"}
