"""Collecting cases is light: torch belongs to the worker."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_neither_collection_nor_a_run_imports_torch(project: pytest.Pytester, merge: Path) -> None:
    project.makeconftest("""
        import sys
        def pytest_unconfigure(config):
            print("torch imported:", "torch" in sys.modules)
    """)
    done = project.runpytest_subprocess("-s", "scenarios/")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["*torch imported: False"])
