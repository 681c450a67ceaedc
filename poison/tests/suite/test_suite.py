"""A user's suite under poison: planted bugs are found, and correct uses of uninitialised memory
pass.
"""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "rowkernels"
BUGS = ["test_means_of_many_segments", "test_means_within_a_share_of_mismatches"]
ROWS = """
    import torch

    def double_rows(values):
        out = torch.empty_like(values)
        out[:-1] = 2 * values[:-1]
        return out

    def padded(values):
        out = torch.empty(8, values.shape[1])
        out[: len(values)] = values
        return out

    def same_sign(values):
        # Reads uninitialised memory, which changes only the sign of the result.
        scratch = torch.empty(1)
        return torch.where(scratch > 1e30, -values, values)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a package, a folder for tests, and pytest's own settings."""
    pytester.makeini(
        "[pytest]\npythonpath = .\naddopts = -p torch_poison.pytest_plugin -p no:cacheprovider\n"
    )
    pytester.makepyfile(rows=ROWS)
    pytester.mkdir("tests")
    return pytester


def write(suite: pytest.Pytester, text: str) -> None:
    suite.makepyfile(**{"tests/test_rows": text})


@pytest.mark.skipif(
    not EXAMPLE.is_dir(), reason="the examples are not part of an installed harness"
)
@pytest.mark.parametrize(
    ("options", "failed"),
    [
        pytest.param((), [], id="without"),
        pytest.param(("--poison", "nan"), BUGS, id="nan"),
        pytest.param(("--poison", "nan", "-n", "2"), BUGS, id="xdist", marks=pytest.mark.nightly),
        pytest.param(("--poison-diff",), BUGS, id="diff", marks=pytest.mark.nightly),
    ],
)
def test_shipped_suite_passes_without_and_shows_its_bugs_with_poison(
    pytester: pytest.Pytester, options: tuple[str, ...], failed: list[str]
) -> None:
    shutil.copytree(EXAMPLE, pytester.path / "project")
    pytester.makeini(
        "[pytest]\npythonpath = project\n"
        "addopts = -p torch_poison.pytest_plugin -p no:cacheprovider\n"
    )
    done = pytester.runpytest_subprocess(*options, "project/tests")
    done.assert_outcomes(passed=13 - len(failed), failed=len(failed))
    for name in failed:
        done.stdout.fnmatch_lines([f"FAILED*::{name}*"])
        done.stdout.fnmatch_lines(
            ["*allocated by the code under test:", "*segments.py:* in segment_mean"]
        )


@pytest.mark.nightly
def test_right_uses_of_unwritten_memory_do_not_alarm(suite: pytest.Pytester) -> None:
    write(
        suite,
        """
        import unittest
        import numpy
        import pytest
        import torch
        from rows import double_rows, padded

        def check_rows(got, want, n):
            if (got[:n] - want).abs().max() > 1e-3:
                raise AssertionError

        @pytest.fixture
        def cache():
            return padded(torch.ones(2, 3))

        def test_padding_that_nobody_reads(cache):
            got = padded(torch.ones(5, 3))
            check_rows(got, torch.ones(5, 3), 5)
            assert (got[:5] == 1).all()
            assert got.shape == (8, 3) and cache.dtype is torch.float32

        def test_live_rows_by_a_mask():
            got = double_rows(torch.ones(4, 2))
            live = torch.tensor([True, True, True, False])
            torch.testing.assert_close(got[live], torch.full((3, 2), 2.0))

        def test_filled_later():
            out = torch.empty(3)
            out.copy_(torch.ones(3))
            numpy.testing.assert_allclose(out.numpy(), numpy.ones(3))
            torch.add(out, 1, out=out)
            assert torch.allclose(out, torch.full((3,), 2.0))

        def test_shapes_only():
            assert padded(torch.empty(2, 2)).shape == (8, 2)

        def test_own_buffer_comes_back():
            buffer = torch.empty(64)
            torch.testing.assert_close(buffer.clone(), buffer, equal_nan=True)

        def test_nan_that_is_meant():
            got = torch.tensor([1.0, 0.0]) / torch.tensor([1.0, 0.0])
            torch.testing.assert_close(got, torch.tensor([1.0, float("nan")]), equal_nan=True)

        def test_random_numbers():
            assert not torch.equal(torch.rand(4), torch.rand(4))

        class Buffers(unittest.TestCase):
            def setUp(self):
                self.out = torch.empty(4)

            def test_ones(self):
                torch.ones(4, out=self.out)
                self.assertTrue(torch.equal(self.out, torch.ones(4)))
    """,
    )
    for options in (("--poison", "nan,max,inf,random"), ("--poison-diff",)):
        suite.runpytest_subprocess(*options, "tests").assert_outcomes(passed=8)


@pytest.mark.nightly
def test_each_way_to_assert_is_seen(suite: pytest.Pytester) -> None:
    write(
        suite,
        """
        import unittest
        import numpy
        import torch
        from rows import double_rows

        ONES = torch.ones(3, 4)

        def test_equal():
            assert not torch.equal(double_rows(ONES), ONES)

        def test_allclose():
            assert not double_rows(ONES).allclose(ONES)

        def test_numpy():
            got = double_rows(ONES).numpy()
            numpy.testing.assert_array_equal(got, got)

        def test_assert_close():
            got = double_rows(ONES)
            torch.testing.assert_close(got, got, equal_nan=True)

        def test_end():
            got = double_rows(ONES)
            off = ((got - 2).abs() > 1).sum()
            assert off == 0

        class Cases(unittest.TestCase):
            def test_method(self):
                self.assertFalse(double_rows(ONES).equal(ONES))
    """,
    )
    suite.runpytest_subprocess("tests").assert_outcomes(
        passed=5, failed=1
    )  # test_end meets what memory held
    done = suite.runpytest_subprocess("--poison", "nan", "tests")
    done.assert_outcomes(failed=6)
    done.stdout.fnmatch_lines(["6 tests under nan: *, 6 found on uninitialised memory"])


@pytest.mark.nightly
def test_two_poisons_tell_what_no_sentinel_shows(suite: pytest.Pytester) -> None:
    write(
        suite,
        """
        import torch
        from rows import same_sign

        def test_magnitude():
            got = same_sign(torch.ones(3))
            assert not torch.equal(got, torch.zeros(3))

        def test_noise():
            import time
            assert not torch.equal(torch.tensor([time.perf_counter()]), torch.zeros(1))
    """,
    )
    suite.runpytest_subprocess("--poison", "nan,max", "tests").assert_outcomes(passed=2)
    done = suite.runpytest_subprocess("--poison-diff", "tests")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        ["*argument 1 of torch.equal at tests/test_rows.py:6: 3 of 3 elements differ*"]
    )


@pytest.mark.nightly
def test_a_default_device_that_a_suite_sets_is_not_the_harness_s(suite: pytest.Pytester) -> None:
    write(
        suite,
        """
        import torch
        from rows import same_sign

        def test_sets_it():
            torch.set_default_device(None)
            got = same_sign(torch.ones(3))
            assert not torch.equal(got, torch.zeros(3))
            torch.set_default_device("meta")
    """,
    )
    done = suite.runpytest_subprocess("--poison-diff", "tests")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        ["*argument 1 of torch.equal at tests/test_rows.py:7: 3 of 3 elements differ*"]
    )


@pytest.mark.nightly
def test_a_failure_says_whether_poison_is_behind_it(suite: pytest.Pytester) -> None:
    write(
        suite,
        """
        import torch
        from rows import double_rows

        def test_broken():
            assert torch.ones(1) == 2

        def test_sum():
            got = double_rows(torch.zeros(3, 4))
            assert not got.isnan().any()
    """,
    )
    done = suite.runpytest_subprocess("--poison", "nan", "tests")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(
        ["this test fails without poison too: no finding of the poison (pattern nan)"]
    )
    done.stdout.fnmatch_lines(
        ["local 'got' of test_sum at *", "this test passes without poison (pattern nan)"]
    )


LIMITS = """
    import torch
    from rows import double_rows, padded

    ONES = torch.ones(4, 2)
"""
BLIND = {
    "any": "assert not (got > 3).any()",
    "function": "assert not torch.any(torch.gt(got, 3))",
    "sum": "assert (got > 3).sum() == 0",
    "slice": "assert not (got[1:] > 3).any()",
    "one element": "assert not got[3, 0] > 3",
    "method": "assert not got[2:].gt(3).any().item()",
    "negated": "assert (~(got[1:] > 3)).all()",
    "not close": "assert not torch.isclose(got[2:], torch.full((2, 2), 9.0)).any()",
    "raise": "if (got[3] > 3).any():\n        raise AssertionError",
    "local": "bad = got[1:] > 3\n    assert not bad.any()",
}
SIGHTED = {
    "live part of the operand": "assert not (got[:3] > 3).any()",
    "live part of the result": "assert (got == 2)[:3].all()",
    "beside a mask": (
        "live = torch.tensor([[True], [True], [True], [False]])\n    assert ((got == 2) |"
        " ~live).all()"
    ),
    "only its shape": "assert (got > 3).shape == (4, 2)",
    "filled": "got.fill_(2)\n    assert not (got > 3).any()",
}


def one_a_test(bodies: dict[str, str]) -> str:
    tests = [
        f"\ndef test_{n}():\n    got = double_rows(ONES)\n    {body}\n"
        for n, body in enumerate(bodies.values())
    ]
    return textwrap.dedent(LIMITS) + "".join(tests)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("bodies", "found"),
    [(BLIND, len(BLIND)), (SIGHTED, 0)],
    ids=["blind", "sighted"],
)
def test_a_comparison_that_nan_passes_is_seen_with_its_slices(
    suite: pytest.Pytester, bodies: dict[str, str], found: int
) -> None:
    write(suite, one_a_test(bodies))
    suite.runpytest_subprocess("--poison", "zeros", "tests").assert_outcomes(passed=len(bodies))
    done = suite.runpytest_subprocess("--poison", "nan", "tests")
    done.assert_outcomes(passed=len(bodies) - found, failed=found)
    if found:
        done.stdout.fnmatch_lines(
            ["side 1 of operator gt at tests/test_rows.py:* holds uninitialised memory*"]
        )


@pytest.mark.nightly
def test_results_of_operators_are_as_without_the_plug_in(suite: pytest.Pytester) -> None:
    write(
        suite,
        """
        import torch

        @torch.jit.script
        def scripted(x):
            return torch.any(torch.eq(x, 1.0)) and torch.isclose(x, x).all()

        class Own(torch.Tensor):
            pass

        def test_operators():
            a, b = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 2.0])
            assert (a < b).tolist() == [True, False] and (0 < b).all() and not (a == None)
            assert bool(scripted(a)) and hash(a) == hash(a) and a in {a}
            assert type(a.as_subclass(Own) == b) is Own
            compiled = torch.compile(lambda x: (x > 1).any(), backend="eager")
            assert compiled(a) and int((a != b).sum()) == 1
    """,
    )
    suite.runpytest_subprocess("-W", "ignore", "--poison", "nan,max", "tests").assert_outcomes(
        passed=1
    )


def test_no_function_of_torch_is_replaced_and_modes_of_the_suite_stay_on_the_stack(
    suite: pytest.Pytester,
) -> None:
    suite.makepyfile(
        overriding="""
        import torch
        from torch.overrides import TorchFunctionMode

        TABLE = {torch.isclose: "isclose", torch.lt: "lt", torch.Tensor.eq: "eq", torch.allclose: "allclose"}

        class Keyed:
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return TABLE[func]

        class Counting(TorchFunctionMode):
            calls = 0

            def __torch_function__(self, func, types, args=(), kwargs=None):
                self.calls += 1
                return func(*args, **(kwargs or {}))
    """  # noqa: E501
    )
    write(
        suite,
        """
        import pytest
        import torch
        from overriding import Counting, Keyed
        from rows import double_rows

        @pytest.fixture(scope="module")
        def counting():
            with Counting() as mode:
                yield mode

        def test_a_table_keyed_by_functions():
            one = torch.ones(1)
            assert torch.isclose(Keyed(), one) == "isclose" and torch.lt(Keyed(), one) == "lt"
            assert torch.Tensor.eq(one, Keyed()) == "eq" and torch.allclose(one, Keyed()) == "allclose"

        def test_a_mode_of_a_fixture(counting):
            assert torch.get_default_dtype() is torch.float32 and (torch.ones(2) == 1).all()

        def test_of_the_same_module(counting):
            before = counting.calls
            assert torch.ones(2).sum() == 2 and counting.calls > before

        def test_behind_a_mode():
            with Counting():
                assert not (double_rows(torch.ones(4, 2)) > 3).any()
    """,  # noqa: E501
    )
    suite.makepyfile(
        **{
            "tests/test_zz_after": (
                """
        from torch.overrides import _len_torch_function_stack

        def test_no_mode_is_left():
            assert _len_torch_function_stack() == 1  # the watching one
    """
            )
        }
    )
    done = suite.runpytest_subprocess("--poison", "nan", "tests")
    done.assert_outcomes(passed=4, failed=1)
    done.stdout.fnmatch_lines(["FAILED*::test_behind_a_mode*"])


@pytest.mark.nightly
def test_a_test_that_fails_only_while_it_is_watched_passes_with_a_note(
    suite: pytest.Pytester,
) -> None:
    write(
        suite,
        """
        import torch

        def test_fast_path_is_open():
            assert not torch.overrides.has_torch_function((torch.ones(1),))
    """,
    )
    done = suite.runpytest_subprocess("--poison", "nan", "tests")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(
        ["1 fail only while their comparisons are watched, and were not watched"]
    )


@pytest.mark.nightly
def test_a_failure_is_acquitted_only_after_zeros_and_two_plain_runs(suite: pytest.Pytester) -> None:
    write(
        suite,
        """
        import torch

        RUNS = []

        def test_zeros_fail_and_one_plain_run_passes():
            got = torch.empty(8)
            RUNS.append(1)
            # Poison, zeros and the first plain run fail.
            assert len(RUNS) == 4

        def test_broken():
            assert torch.ones(1) == 2
    """,
    )
    done = suite.runpytest_subprocess("--poison", "max", "tests")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(
        ["this test passes without the plug-in in one run, and fails over zeros (pattern max)"]
    )
    done.stdout.fnmatch_lines(
        ["this test fails without poison too: no finding of the poison (pattern max)"]
    )
    done.stdout.fnmatch_lines(["1 failed without poison too"])


@pytest.mark.nightly
def test_a_test_can_be_excepted_with_a_reason(suite: pytest.Pytester) -> None:
    text = """
        import pytest, torch
        from rows import double_rows

        @pytest.mark.poison_ok({reason})
        def test_garbage_is_meant():
            got = double_rows(torch.ones(3, 4))
            assert not torch.equal(got, torch.zeros(3, 4))
    """
    write(suite, text.format(reason='"the last row is the caller\'s"'))
    done = suite.runpytest_subprocess("--strict-markers", "--poison", "nan", "tests")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["1 ran without poison: marked poison_ok"])
    suite.runpytest_subprocess("--strict-markers", "tests").assert_outcomes(passed=1)
    write(suite, text.format(reason=""))
    done = suite.runpytest_subprocess("--poison", "nan", "tests")
    done.stderr.fnmatch_lines(
        ["ERROR: tests/test_rows.py::test_garbage_is_meant: say why: *poison_ok('reason')"]
    )


@pytest.mark.nightly
def test_ini_options_stand_for_the_command_line_and_allow_lines_of_code(
    suite: pytest.Pytester,
) -> None:
    write(
        suite,
        """
        import torch
        from rows import double_rows

        def test_rows():
            got = double_rows(torch.ones(3, 4))
            assert not torch.equal(got, torch.zeros(3, 4))
    """,
    )
    ini = (suite.path / "tox.ini").read_text()
    for more, passed in (
        ("poison = nan", 0),
        ("poison = nan\npoison_sites = tests", 1),
        (
            "poison = nan\npoison_allow =\n    rows.py:double_rows  # its last row is the caller's",
            1,
        ),
        ("poison = nan\npoison_allow =\n    rows.py:padded", 0),
        ("poison_diff = true", 0),
    ):
        suite.makeini(f"{ini}\n{more}\n")
        suite.runpytest_subprocess("tests").assert_outcomes(passed=passed, failed=1 - passed)
    suite.runpytest_subprocess("--poison", "off", "tests").assert_outcomes(passed=1)
