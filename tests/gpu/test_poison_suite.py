"""Somebody's suite on a GPU: what the dispatcher hands out there is marked, free memory is swept
before each test.
"""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

PLUGIN = """
    from types import SimpleNamespace
    from torch_poison.suite.hooks import register

    def pytest_configure(config):
        register(config, SimpleNamespace(poison={poison!r}, poison_sites={sites!r}, poison_diff={diff!r}))
"""  # noqa: E501
"""The hooks without the plug-in of scenarios, so that this runs on a machine that has torch and
pytest only.
"""

SUITE = """
    import torch
    from rows import double_rows

    def test_unwritten_row_passes_on_old_memory():
        values = torch.arange(8.0, device="cuda").repeat(4, 1)
        old = values * 2
        del old
        got = double_rows(values)
        bad = ((got - 2 * values).abs() > 1e-3).float().mean()
        if bad > 0.3:
            raise AssertionError(bad)
        assert not (got.sum() == -1)

    def test_written_rows_are_right():
        values = torch.ones(4, 8, device="cuda")
        torch.testing.assert_close(double_rows(values)[:3], 2 * values[:3])

    def test_buffer_is_filled_by_out():
        out = torch.empty(4, 4, device="cuda")
        torch.matmul(torch.ones(4, 4, device="cuda"), torch.eye(4, device="cuda"), out=out)
        assert torch.equal(out, torch.ones(4, 4, device="cuda"))
"""
ROWS = """
    import torch

    def double_rows(values):
        out = torch.empty_like(values)
        out[:-1] = 2 * values[:-1]
        return out
"""


def run(
    pytester: pytest.Pytester, poison: str, sites: str | None = None, diff: bool = False
) -> pytest.RunResult:
    pytester.makeconftest(PLUGIN.format(poison=poison, sites=sites, diff=diff))
    pytester.mkdir("tests")
    pytester.makepyfile(**{"rows": ROWS, "tests/test_rows": SUITE})
    pytester.makeini("[pytest]\npythonpath = .\n")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "tests")


def test_unwritten_row_is_found_and_the_rest_passes(pytester: pytest.Pytester) -> None:
    done = run(pytester, "nan")
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(
        ["*local 'got' of test_unwritten_row*8 of 32 elements, first at [[]3, 0[]]*"]
    )
    done.stdout.fnmatch_lines(["*allocated by the code under test:", "*rows.py:4 in double_rows"])


def test_free_memory_is_swept_before_each_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PLUGIN.format(poison="nan", sites="free", diff=False))
    pytester.makepyfile("""
        import torch

        def test_touches_cuda():
            assert torch.ones(1024, device="cuda").sum() == 1024

        def test_starts_on_filled_memory():
            got = torch.empty(1024, device="cuda")
            assert (got.view(torch.int32) == -1).all()

        def test_examines_it():
            got = torch.empty(1024, device="cuda")
            torch.testing.assert_close(got[:8], got[:8] + 0, equal_nan=True)
    """)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.stdout.fnmatch_lines(["*it was free CUDA memory before the test*"])
    done.assert_outcomes(passed=2, failed=1)


def test_a_captured_graph_is_not_disturbed(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PLUGIN.format(poison="nan", sites=None, diff=False))
    pytester.makepyfile("""
        import torch

        def test_replay():
            x = torch.ones(64, device="cuda")
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                x * 2
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = torch.empty_like(x)
                torch.mul(x, 3, out=out)
            graph.replay()
            torch.testing.assert_close(out, 3 * x)
    """)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_what_autograd_allocates_in_its_own_thread_is_filled(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PLUGIN.format(poison="nan", sites=None, diff=False))
    pytester.makepyfile("""
        import torch

        def test_gradients():
            weight = torch.ones(8, 4, device="cuda", requires_grad=True)
            rows = torch.nn.functional.embedding(torch.tensor([1, 1, 3], device="cuda"), weight)
            (rows.cumsum(0) ** 2).sum().backward()
            assert weight.grad.isfinite().all()
            torch.testing.assert_close(weight.grad[0], torch.zeros(4, device="cuda"))
    """)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_work_of_another_stream_is_waited_for_before_it_is_judged(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(PLUGIN.format(poison="nan", sites=None, diff=False))
    pytester.makepyfile(
        late="""
        import torch

        def late_copy(values, stream):
            out = torch.empty_like(values)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(200_000_000)
                out.copy_(values)
            return out
    """
    )
    pytester.makepyfile("""
        import torch
        from late import late_copy

        def test_late():
            values, stream = torch.ones(64, device="cuda"), torch.cuda.Stream()
            out = late_copy(values, stream)
            assert out is not None and not (out.sum() == -1)
    """)
    pytester.makeini("[pytest]\npythonpath = .\n")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_two_runs_of_the_first_test_on_a_gpu_draw_the_same_numbers(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(PLUGIN.format(poison="nan", sites=None, diff=True))
    pytester.makepyfile("""
        import torch

        drawn = []

        def test_draws():
            drawn.append(torch.rand(8, device="cuda"))
            torch.testing.assert_close(drawn[-1], drawn[-1] + 0)

        def test_drew_the_same():
            assert len(drawn) == 2 and torch.equal(drawn[0], drawn[1])
    """)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_a_lost_device_is_said_once_and_blamed_on_no_later_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PLUGIN.format(poison="nan", sites=None, diff=False))
    pytester.makepyfile("""
        import torch

        def test_reads_an_index_that_nobody_wrote():
            index = torch.empty(4, dtype=torch.int64, device="cuda")
            torch.arange(8, device="cuda")[index].sum().item()

        def test_after_it():
            assert torch.ones(3, device="cuda").sum() == 3
    """)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["*this process cannot use CUDA since this test under pattern nan:*"])
    done.stdout.fnmatch_lines(["*this process cannot use CUDA since *::test_reads_an_index*"])
    done.stdout.no_fnmatch_line("*INTERNALERROR*")
