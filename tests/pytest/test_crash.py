"""A crash of the worker is one item's failure; the session and the next case go on."""

from __future__ import annotations

from pathlib import Path

import pytest

DYING = """
import os
from harness.core.records import CaseResult, Verdict

def dying(job):
    if "num_tokens=9" in job.key:
        os.abort()
    return CaseResult(key=job.key, id=job.case.id, scenario=job.case.scenario, verdict=Verdict.PASS)
"""


def test_dead_worker_fails_its_item_and_the_next_case_passes(project: pytest.Pytester, merge: Path) -> None:
    project.makepyfile(dying=DYING)
    project.makeconftest("""
        import os
        os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
        import harness.run.runner as runner
        original = runner.WorkerPool.__init__
        runner.WorkerPool.__init__ = lambda self, n: original(self, n, execute="dying:dying")
    """)
    done = project.runpytest_subprocess("scenarios/")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        ["crash: merge?num_tokens=9?", "*reproduce: mla-harness run 'merge?num_tokens=9?' --device cpu"]
    )
