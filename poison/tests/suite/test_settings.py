"""The options of a poisoned run; without an option, nothing is poisoned."""

from __future__ import annotations

import pytest
from torch_poison.errors import SettingError
from torch_poison.suite.settings import Settings, TestFiles, read

ALL = frozenset({"code", "tests", "free"})


def test_without_an_option_there_is_nothing() -> None:
    assert read(None, None, False) is None


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (("nan", None, False), Settings(("nan",), ALL, False)),
        (("nan, max,nan", "code", False), Settings(("nan", "max"), frozenset({"code"}), False)),
        ((None, None, True), Settings(("nan", "max"), ALL, True)),
        (("max", None, True), Settings(("max", "nan"), ALL, True)),
        (("inf,random", None, True), Settings(("inf", "random"), ALL, True)),
    ],
)
def test_options_name_patterns_and_sites(
    given: tuple[str | None, str | None, bool], want: Settings
) -> None:
    assert read(*given) == want


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("naan", None, False), "--poison: unknown word 'naan'; did you mean 'nan'"),
        (("nan", "fre", False), "--poison-sites: unknown word 'fre'; did you mean 'free'"),
        ((",", None, False), "--poison: no word given"),
        ((None, "code", False), "--poison-sites: needs --poison"),
    ],
)
def test_a_wrong_word_is_refused_in_one_line(
    given: tuple[str | None, str | None, bool], says: str
) -> None:
    with pytest.raises(SettingError) as caught:
        read(*given)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_word_on_the_command_line_is_no_traceback(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest_subprocess("-p", "torch_poison.pytest_plugin", "--poison", "naan")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --poison: unknown word 'naan'; did you mean 'nan'*"])
    done.stderr.no_fnmatch_line("*Traceback*")


def test_without_an_option_torch_is_not_loaded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys
        def test_light():
            assert "torch" not in sys.modules
            assert not any(name.startswith("torch_poison.suite") for name in sys.modules)
    """)
    pytester.runpytest_subprocess("-p", "torch_poison.pytest_plugin").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("path", "is_test"),
    [
        ("/home/tests/project/tests/kernels/checks.py", True),
        ("/home/tests/project/pkg/test_rows.py", True),
        ("/home/tests/project/pkg/conftest.py", True),
        ("/home/tests/project/pkg/rows.py", False),
        ("/venv/tests/lib/site-packages/pkg/rows.py", False),
        ("/venv/lib/site-packages/pkg/tests/helpers.py", True),
        ("/elsewhere/tests/rows.py", False),
    ],
)
def test_files_of_tests_are_told_from_code(path: str, is_test: bool) -> None:
    from pathlib import Path

    assert TestFiles(Path("/home/tests/project"))(path) is is_test
