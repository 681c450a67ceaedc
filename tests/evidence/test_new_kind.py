"""A new oracle is one file, with one scenario that uses it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.transcripts import Approved, lines_with

ROOT = Path(__file__).parents[2]

KIND = '''
"""Oracle `moderate`: no live value of a result is larger than 100."""

from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.observed import Observed
from harness.evidence.records import Evidence, Judgement


def moderate(evidence: Evidence) -> Judgement:
    return Judgement.of(
        (observed.num_live_elements, _above(observed, pattern))
        for observed, pattern in evidence.all(Observed)
    )


def _above(observed, pattern):
    # A NaN fails the comparison as well.
    if not bool((observed.tensor[observed.live] <= 100).all()):
        message = f"{observed.name} has a value above 100 (pattern {pattern})"
        site = observed.site
        yield Finding(oracle="moderate", site=site, tensor=observed.name, message=message)


ORACLES = (
    OracleSpec("moderate", "no live value is above 100", moderate, needs="floats", rank=15),
)
'''

SCENARIO = """
name: moderate-values
summary: no value of a decode is large
system: kernel
op: mla_decode
params: {seq_lens: [0, 65, 0, 1, 0], kv: bf16, kernel: tiled-identity}
oracles: [finite, moderate]
faults:
  - {name: decode.zero-length-row-nan, caught_by: moderate, blames: [graph.pad_rows]}
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one more file, and one scenario beside it."""
    tmp_path = tmp_path_factory.mktemp("copy")
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "harness", tmp_path / "harness", ignore=unwanted)
    (tmp_path / "harness" / "evidence" / "moderate.py").write_text(KIND)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "moderate-values.yaml").write_text(SCENARIO)
    return tmp_path


def command(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.cli.main", *words],
        env={**os.environ, "PYTHONPATH": str(copy)},
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.nightly
def test_an_oracle_in_a_new_file_is_listed_judges_and_explains_by_its_rank(copy: Path) -> None:
    listed = json.loads(command(copy, "list", "--json", "--scenarios", "own").stdout)["oracles"]
    names = [oracle["name"] for oracle in listed]
    assert names[names.index("crash") + 1] == "moderate"
    clean, injected = (
        json.loads(
            command(
                copy, "run", "own/moderate-values.yaml", *fault, "--json", "--out", "runs"
            ).stdout
        )["cases"][0]
        for fault in ((), ("--fault", "decode.zero-length-row-nan"))
    )
    # A case in which an oracle looks at nothing is an error.
    assert clean["verdict"] == "pass"
    assert injected["verdict"] == "fail"
    # `finite` sees the NaN as well, but tells less by its rank.
    assert injected["findings"][0]["oracle"] == "moderate"
    assert "finite" in {one["oracle"] for one in injected["findings"]}


def test_the_scenario_of_a_new_oracle_declares_the_fault_that_it_catches(
    copy: Path, approved: Approved
) -> None:
    done = command(copy, "selftest", "own/moderate-values.yaml", "--out", "runs")
    approved(lines_with(done.stdout, "faults caught: 1"))
