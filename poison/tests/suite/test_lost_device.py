"""CUDA after a fault, played on a CPU: what fails because of it is said to, and is no finding of
the poison.
"""

from __future__ import annotations

import pytest
import torch

pytest_plugins = ["pytester"]

DEVICE = """
    import torch

    class Device:
        is_lost = False

        def wait(self, index=None):
            if self.is_lost:
                raise RuntimeError("CUDA error: an illegal memory access was encountered\\nCompile with …")

    device = Device()
    torch.cuda.is_initialized = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.memory_reserved = lambda index: 1
    torch.cuda.synchronize = device.wait
    torch.cuda.get_rng_state_all = lambda: [device.wait()]
    torch.cuda.set_rng_state_all = lambda states: device.wait()
    torch.cuda.default_generators = ()
"""  # noqa: E501


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(
        "[pytest]\npythonpath = .\naddopts = -p device -p torch_poison.pytest_plugin -p"
        " no:cacheprovider\n"
    )
    pytester.makepyfile(device=DEVICE)
    return pytester


@pytest.mark.nightly
def test_a_fault_under_poison_is_not_tried_again_in_the_same_process(
    suite: pytest.Pytester,
) -> None:
    suite.makepyfile("""
        import torch
        from device import device

        runs = []

        def test_faults():
            runs.append(torch.empty(3)[0].item())
            device.is_lost = True
            device.wait()

        def test_after_it():
            assert len(runs) == 1
            device.wait()

        def test_that_needs_no_device():
            assert torch.empty(3).shape == (3,)
    """)
    done = suite.runpytest_subprocess("--poison", "nan", "--poison-sites", "code,tests")
    done.assert_outcomes(failed=3)
    done.stdout.fnmatch_lines(
        ["*this process cannot use CUDA since this test under pattern nan: CUDA error: an illegal*"]
    )
    done.stdout.fnmatch_lines(["*this process cannot use CUDA since *::test_faults: CUDA error*"])
    done.stdout.fnmatch_lines(["3 failed because the process could not use CUDA any more*"])
    done.stdout.no_fnmatch_line("*fails without poison too*")
    done.stdout.no_fnmatch_line("*INTERNALERROR*")


@pytest.mark.nightly
def test_a_fault_that_shows_after_the_test_is_the_fault_of_that_test(
    suite: pytest.Pytester,
) -> None:
    suite.makepyfile("""
        from device import device

        def test_right():
            pass

        def test_queues_a_fault():
            device.is_lost = True
    """)
    done = suite.runpytest_subprocess("--poison", "nan", "--poison-sites", "code,tests")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        ["*this test left CUDA unusable, and ended before that showed: CUDA error*"]
    )


@pytest.mark.nightly
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="a sweep asks for the properties of a real GPU"
)
def test_a_sweep_that_fails_is_said_and_the_tests_go_on(suite: pytest.Pytester) -> None:
    suite.makepyfile("def test_right():\n    pass\n")
    done = suite.runpytest_subprocess("--poison", "nan")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["free CUDA memory was not filled: *"])
