"""An engine that another package brings: installed, it is listed and judged; broken, it is one line
and a skip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.transcripts import Approved, lines_with

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "engine-from-outside"


def harness(site: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A command of the harness, with the packages of the folder `site`."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT)))}
    command = [sys.executable, "-m", "harness.cli.main", *map(str, words)]
    return subprocess.run(
        command, env=environ, cwd=site, capture_output=True, text=True, check=False
    )


def installed(site: Path, name: str, tables: str | None) -> None:
    """An installed package with an entry point `name`, and these tables; None: without the
    module.
    """
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mla_harness.engines]\n{name} = {name}_tables\n")
    if tables is not None:
        (site / f"{name}_tables.py").write_text(tables)


def verdicts(site: Path, *words: object) -> dict[str, tuple[str, str]]:
    """Case -> verdict and reason, of a run."""
    done = harness(site, "run", *words, "--json", "--out", site / "runs")
    results = json.loads(done.stdout)["cases"]
    return {case["id"]: (case["verdict"], case["reason"]) for case in results}


def test_an_installed_engine_is_listed_and_judged_and_its_bug_is_caught(tmp_path: Path) -> None:
    how = [
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-compile",
        "--target",
        str(tmp_path),
    ]
    subprocess.run([sys.executable, "-m", "pip", "install", *how, str(EXAMPLE)], check=True)
    listed = json.loads(harness(tmp_path, "list", "--json").stdout)
    assert "quantize_fp8/rowquant" in [kernel["name"] for kernel in listed["kernels"]]
    assert "rowquant.padding-in-amax" in [fault["name"] for fault in listed["faults"]]
    scenarios = ("--scenarios", EXAMPLE / "scenarios")
    clean = verdicts(tmp_path, *scenarios)
    assert {case: verdict for case, (verdict, _) in clean.items()} == {
        "rowquant[rows=padded]": "pass",
        "rowquant[rows=full]": "pass",
    }
    done = harness(tmp_path, "selftest", *scenarios, "--json", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    (fault,) = json.loads(done.stdout)["faults"]
    assert fault["caught"] and fault["blamed"] == ["scale.pad"]


ORACLE = """
from harness.core.findings import Finding
from harness.evidence.observed import Observed
from harness.evidence.records import Judgement

def nonzero(evidence):
    seen = [observed for observed, _ in evidence.all(Observed)]
    wrong = [one for one in seen if not bool(one.tensor[one.live].count_nonzero())]
    findings = [Finding(oracle="rowquant.nonzero", message=f"{one.name} is 0") for one in wrong]
    return Judgement(findings, looked_at=len(seen))
"""


@pytest.mark.nightly
def test_an_engine_brings_an_oracle_as_module_and_function(tmp_path: Path) -> None:
    tables = (
        "from harness.core.oracles import OracleSpec\n"
        "from harness.core.systems import EngineSpec\n"
        "ENGINE = EngineSpec('rowquant', 'R', 'r', 'r')\n"
        "ORACLES = (OracleSpec('rowquant.nonzero', 'no result is 0', 'rowquant_oracle:nonzero'),)"
    )
    installed(tmp_path, "rowquant", tables)
    (tmp_path / "rowquant_oracle.py").write_text(ORACLE)
    (tmp_path / "nonzero.yaml").write_text(
        "name: nonzero\nsummary: a result is not 0\nsystem: kernel\nop: mla_decode\n"
        "params: {kv: fp32}\noracles: [rowquant.nonzero]\n"
        "matrix: {lengths: {some: {seq_lens: [3, 7]}, none: {seq_lens: [0, 0]}}}\n"
    )
    found = verdicts(tmp_path, tmp_path / "nonzero.yaml")
    assert [verdict for verdict, _ in found.values()] == ["pass", "fail"], found
    assert "out is 0" in found["nonzero[lengths=none]"][1]


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "tables",
    [
        "raise RuntimeError('no table today')",
        None,
        "x = 1",
        (
            "from harness.core.sites import Site\n"
            "from harness.core.systems import EngineSpec\n"
            "ENGINE = EngineSpec('rowquant', 'R', 'r', 'r')\n"
            "SITES = (Site('rowquant.x', 1, 'a tag of ours'),)"
        ),
        (
            "from harness.core.oracles import OracleSpec\n"
            "from harness.core.systems import EngineSpec\n"
            "ENGINE = EngineSpec('rowquant', 'R', 'r', 'r')\n"
            "ORACLES = (OracleSpec('finite', 'a name of ours', 'rowquant:finite'),)"
        ),
    ],
    ids=["raises", "missing", "no-engine", "taken-tag", "taken-oracle"],
)
def test_tables_that_do_not_load_break_no_list(
    tmp_path: Path, tables: str | None, approved: Approved
) -> None:
    installed(tmp_path, "rowquant", tables)
    code = (
        "from harness.core.catalog import BROKEN, ENGINES; print(*ENGINES.names());"
        " print(BROKEN['rowquant'])"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    engines, broken = done.stdout.split("\n", 1)
    assert "vllm" in engines.split() and "rowquant" not in engines.split()
    approved(broken)


@pytest.mark.nightly
def test_a_broken_engine_is_a_line_in_doctor_and_a_skip_of_its_cases(
    tmp_path: Path, approved: Approved
) -> None:
    installed(tmp_path, "rowquant", "raise RuntimeError('no table today')")
    scenarios = tmp_path / "scenarios"
    scenarios.mkdir()
    (scenarios / "rowquant.yaml").write_text((EXAMPLE / "scenarios" / "rowquant.yaml").read_text())
    (scenarios / "served.yaml").write_text(
        "name: served\nsummary: a system of the broken engine\nsystem: rowquant-served\n"
        "params: {batch: 3}\nmatrix: {kv: [bf16, fp8], prompts: {two: {num_prompts: 2}}}\n"
        "known: [{issue: a/b#1, engine: rowquant, versions: '>=1'}]\n"
    )
    (scenarios / "merge-kernel.yaml").write_text(
        (ROOT / "scenarios" / "kernels" / "merge-kernel.yaml").read_text()
    )
    found = verdicts(
        tmp_path,
        "rowquant",
        "served",
        "merge-kernel[with_context=all,empty_rows=none,strides=equal]",
        "--scenarios",
        scenarios,
    )
    assert found.pop("merge-kernel[with_context=all,empty_rows=none,strides=equal]")[0] == "pass"
    assert list(found) == [
        "rowquant[rows=padded]",
        "rowquant[rows=full]",
        "served[kv=bf16,prompts=two]",
        "served[kv=fp8,prompts=two]",
    ]
    assert {verdict for verdict, _ in found.values()} == {"skip"}
    approved({reason for _, reason in found.values()}, "reasons of its cases")
    approved(lines_with(harness(tmp_path, "doctor").stdout, "no table today"), "doctor")


def test_a_checkout_that_is_not_installed_finds_its_adapters(tmp_path: Path) -> None:
    """The path has the harness and the poison alone."""
    code = (
        "from harness.core.catalog import BROKEN, ENGINES; import mla_harness_vllm;"
        "print(*ENGINES.names(), *BROKEN.values(), mla_harness_vllm.__file__)"
    )
    path = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(ROOT), str(ROOT / "poison")]
    packages = [folder for folder in sys.path if folder.endswith("site-packages")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, *packages])}
    # Without site no .pth file is read, so nothing of an editable installation is on the path.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    *engines, file = done.stdout.split()
    assert {"vllm", "sglang", "flashinfer"} <= set(engines)
    assert Path(file).is_relative_to(ROOT / "adapters" / "vllm")


@pytest.mark.nightly
def test_an_adapter_that_is_installed_beside_its_copy_in_the_harness_loads_once(
    tmp_path: Path,
) -> None:
    tables = (EXAMPLE / "rowquant" / "tables.py").read_text(encoding="utf-8")
    for name in ("first", "second"):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[mla_harness.engines]\nrowquant = own_tables\n")
    (tmp_path / "own_tables.py").write_text(tables, encoding="utf-8")
    found = json.loads(harness(tmp_path, "doctor", "--json").stdout)
    assert found["broken_engines"] == {}
