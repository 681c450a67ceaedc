"""A malformed scenario is one clear collection error."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_malformed_file_is_one_line_without_traceback(project: pytest.Pytester, merge: Path) -> None:
    (project.path / "scenarios" / "wrong.yaml").write_text("name: x\nsumary: y\n", encoding="utf-8")
    done = project.runpytest_subprocess("scenarios/")
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*wrong.yaml:2:1: unknown key 'sumary'; did you mean 'summary'?"])
    done.stdout.no_fnmatch_line("*Traceback*")
    done.stdout.no_fnmatch_line("*load.py*")
