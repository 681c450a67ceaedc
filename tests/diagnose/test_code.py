"""What gets into a script: literals and comments, never code out of a file of somebody's."""

from __future__ import annotations

import ast

import pytest

from harness.core.errors import HarnessError
from harness.diagnose.script.code import (
    MARKER,
    comment,
    identifier,
    literal,
    name,
    only_code,
    tidy,
    without_bug,
)

from .cases import declared, script_of  # type: ignore[import-not-found]

HOSTILE = [
    "\nimport os; os.system('true')\n",
    '"""\nraise SystemExit(0)\n"""',
    "{{ 7 * 7 }} {% raw %}",
    "a\u2028import os\u2029\x85\x0bimport sys\r\nimport re",
    "# BUG: remove this line and it passes\nassert False",
    "\u202eright to left\u202c",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_comment_stays_a_comment_whatever_it_says(text: str) -> None:
    lines = comment(text)
    assert all(line.startswith("#") and line.isascii() and line.isprintable() for line in lines)
    assert not ast.parse("\n".join(lines)).body


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_scenario_changes_comments_of_a_script_only(text: str) -> None:
    fault, case = declared()[0]
    expected = ast.dump(ast.parse(script_of(fault, case)))
    hostile = case.model_copy(update={"id": f"case[{text}]"})
    found = script_of(fault, hostile, title=text)
    assert ast.dump(ast.parse(found)) == expected
    assert (
        sum(line.endswith(MARKER) and not line.startswith("#") for line in found.splitlines()) == 1
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_a_literal_of_text_is_that_text(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text


@pytest.mark.parametrize("value", [1, -2.5, True, None, [1, [2, 3]], {"a": [1]}, "x"])
def test_a_literal_is_its_value(value: object) -> None:
    assert ast.literal_eval(literal(value)) == value


def test_a_literal_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError):
        literal(object())


def test_a_template_that_prints_raw_text_is_refused() -> None:
    with pytest.raises(HarnessError, match="as it is"):
        only_code("import os")


@pytest.mark.parametrize("text", ["a b", "1a", "class", "x;y", "", "\u00e9"])
def test_a_name_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(HarnessError):
        name(text)


def test_a_name_of_a_test_has_letters_and_digits_only() -> None:
    assert identifier("a[b=1]; import os") == "a_b_1_import_os"
    assert identifier("\u00e9") == "case"


def test_a_long_case_id_is_cut_after_commas() -> None:
    lines = comment(
        "Found as decode[" + ",".join(f"parameter_{i}={i}" for i in range(20)) + "] here"
    )
    assert len(lines) > 2 and all(line.endswith(",") for line in lines[1:-1])


def test_a_script_with_two_marked_lines_or_none_is_refused() -> None:
    assert without_bug(f"a = 1\na = 2{MARKER}\n") == "a = 1\n"
    for text in ("a = 1\n", f"a = 1{MARKER}\na = 2{MARKER}\n"):
        with pytest.raises(HarnessError, match="one line"):
            without_bug(text)


def test_empty_lines_are_as_pep_8_wants_them() -> None:
    assert (
        tidy("\nx = 1  \n\n\n\n\ny = 2\ndef f():\n    pass\n\n\n\n")
        == "x = 1\n\n\ny = 2\n\n\ndef f():\n    pass\n"
    )
