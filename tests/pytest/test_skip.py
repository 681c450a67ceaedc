"""A case that this machine cannot run is skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_case_for_a_missing_gpu_is_skipped_with_the_reason(project: pytest.Pytester, merge: Path) -> None:
    done = project.runpytest_subprocess("-rs", "--mla-device=cuda", "scenarios/")
    done.assert_outcomes(skipped=2)
    done.stdout.fnmatch_lines(["SKIPPED*no CUDA device*"])
