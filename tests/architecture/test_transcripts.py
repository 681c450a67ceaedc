"""Approved transcripts: a difference is a failure that says how to approve it, and no approved
text is left behind without its test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transcripts import lines_with, sections, written

ROOT = Path(__file__).parents[2]
TESTS = ("tests", "poison/tests", "adapters/*/tests", "trust/tests")
TOPIC = """
from pathlib import Path
import pytest

def test_greeting(approved, tmp_path):
    approved(f"hello {tmp_path}/x.yaml at 0x7f00aa00bb10 in 3.25 s, process 4711")

@pytest.mark.parametrize("key", ["a", "b"])
def test_refusal(approved, key):
    with approved.raises(KeyError, case="first"):
        {}[key]
    with approved.raises(ValueError, case="second"):
        int(key)
"""
APPROVED = """\
test_greeting
    hello TMP/x.yaml at ADDRESS in SECONDS s, process PID

test_refusal[a]
    first:
        KeyError: 'a'
    second:
        ValueError: invalid literal for int() with base 10: 'a'

test_refusal[b]
    first:
        KeyError: 'b'
    second:
        ValueError: invalid literal for int() with base 10: 'b'
"""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run the tests of a folder that has approved transcripts and no other plug-in of ours."""
    return pytester.runpytest_inprocess("-p", "tests.transcripts", *options)


def left_behind(approved: Path, test_file: Path) -> Iterator[str]:
    """The sections of an approved file that no test of the test file writes."""
    text = test_file.read_text(encoding="utf-8") if test_file.exists() else ""
    approving: set[str] = set()
    parametrised: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            if "approved" in {argument.arg for argument in node.args.args}:
                approving.add(node.name)
            if any("parametrize" in ast.unparse(mark) for mark in node.decorator_list):
                parametrised.add(node.name)
    for section in sections(approved):
        test, bracket, _ = section.partition("[")
        if test not in approving or bool(bracket) != (test in parametrised):
            yield section


def test_every_approved_text_is_that_of_a_test() -> None:
    files = [path for tests in TESTS for path in ROOT.glob(f"{tests}/**/approved/*.txt")]
    roots = {path.relative_to(ROOT).parts[0] for path in files}
    assert roots >= {"tests", "adapters", "trust"}, "the folders of tests have moved"
    for path in files:
        stale = list(left_behind(path, path.parents[1] / f"test_{path.stem}.py"))
        assert not stale, f"{path}: no test has the section {stale[0]!r}; delete it"


def test_a_text_whose_test_is_gone_is_found(tmp_path: Path) -> None:
    (tmp_path / "topic.txt").write_text(APPROVED)
    test_file = tmp_path / "test_topic.py"
    assert len(list(left_behind(tmp_path / "topic.txt", test_file))) == 3
    test_file.write_text(TOPIC)
    assert not list(left_behind(tmp_path / "topic.txt", test_file))
    for now in (
        TOPIC.replace("test_refusal(approved, ", "test_refusal("),
        TOPIC.replace("@pytest.mark.parametrize", "#"),
    ):
        test_file.write_text(now)
        assert list(left_behind(tmp_path / "topic.txt", test_file)) == [
            "test_refusal[a]",
            "test_refusal[b]",
        ]


def test_a_transcript_is_written_when_it_is_approved_and_read_afterwards(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_topic=TOPIC)
    written = pytester.path / "approved" / "topic.txt"
    assert run(pytester).ret == pytest.ExitCode.TESTS_FAILED
    assert not written.exists(), "nothing is approved unasked"
    assert run(pytester, "--approve", "-n2").ret == pytest.ExitCode.OK
    assert written.read_text() == APPROVED
    assert run(pytester).ret == pytest.ExitCode.OK
    written.write_text(APPROVED.replace("hello TMP", "good day TMP"))
    result = run(pytester)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*-good day TMP/x.yaml at ADDRESS in SECONDS s, process PID",
            "*+hello TMP/x.yaml at ADDRESS in SECONDS s, process PID",
            "*pytest 'test_topic.py::test_greeting' --approve",
        ]
    )


def test_a_test_that_collects_nothing_no_error_or_too_much_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_topic="""
        def test_nothing(approved):
            pass

        def test_no_error(approved):
            with approved.raises(KeyError):
                pass

        def test_too_much_to_review(approved):
            approved("a line\\n" * 2000)
        """
    )
    run(pytester, "--approve").assert_outcomes(failed=3)


def test_parameters_that_say_the_same_share_one_text(tmp_path: Path) -> None:
    by_test = {"test_a[1]": "same\n\n  more", "test_a[2]": "same\n\n  more", "test_b": "other"}
    path = tmp_path / "topic.txt"
    path.write_text(written(by_test))
    assert path.read_text().startswith("test_a[1]\ntest_a[2]\n    same\n\n      more\n\ntest_b\n")
    assert sections(path) == by_test


def test_lines_are_chosen_by_words_that_must_be_there() -> None:
    assert lines_with("a 1\nb 2\nc 3", "a", "3") == "a 1\nc 3"
    with pytest.raises(AssertionError, match="no line has"):
        lines_with("a 1", "a", "gone")
