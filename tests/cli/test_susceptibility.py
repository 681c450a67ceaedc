"""`mla-harness susceptibility`: the table on this machine, its files, and cases that make a cell again."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from harness.cli.main import exit_code_of
from harness.core.cases import Job
from harness.core.catalog import KERNELS
from harness.core.ops import OPS
from harness.judge.run_case import run_case
from harness.report.susceptibility import cell_of
from harness.scenario.susceptibility import case_of, cases, declared


def run_directory(root: Path) -> Path:
    return next(root.glob("*/run.json")).parent


@pytest.mark.nightly
def test_a_kernel_that_multiplies_shows_where_and_says_that_it_declares_so(tmp_path: Path) -> None:
    given = ["--kernel", "mla_decode/tiled-multiply", "-n", "1", "--out", str(tmp_path)]
    assert exit_code_of(["susceptibility", *given]) == 0
    folder = run_directory(tmp_path)
    rows = list(csv.DictReader((folder / "susceptibility.csv").read_text(encoding="utf-8").splitlines()))
    by_cell = {(row["kv"], row["site"], row["pattern"]): row for row in rows}
    assert by_cell["bf16", "kv.tail", "nan"]["outcome"] == "NaN"
    assert by_cell["bf16", "kv.tail", "nan"]["declared"] == "yes"
    assert by_cell["bf16", "kv.tail", "max"]["outcome"] == "clean"
    assert {row["outcome"] for row in rows if row["site"] == "output"} == {"clean"}
    text = (folder / "susceptibility.md").read_text(encoding="utf-8")
    assert "| mla_decode/tiled-multiply | bf16 | kv.tail * | **NaN** |" in text
    assert by_cell["bf16", "kv.tail", "nan"]["case"] in text
    assert 'class="cell NaN"' in (folder / "susceptibility.html").read_text(encoding="utf-8")


def test_the_id_of_a_cell_makes_its_case_again() -> None:
    for case in cases(list(KERNELS)):
        assert case_of(case.id) == case


@pytest.mark.parametrize(
    "identity",
    [
        "susceptibility[kernel=mla_decode/nobody,kv=bf16,site=kv.tail,pattern=nan]",
        "susceptibility[kernel=mla_decode/tiled,kv=bf16,site=router.ids,pattern=nan]",
        "susceptibility[kernel=mla_decode/tiled,kv=bf16,site=kv.tail,pattern=zeros]",
        "susceptibility",
    ],
)
def test_an_id_of_no_cell_names_no_case(identity: str) -> None:
    assert case_of(identity) is None


def test_only_declared_sites_are_marked() -> None:
    spec = KERNELS.get("mla_decode/tiled-multiply")
    assert declared(spec, "kv.tail") and not declared(spec, "output")
    assert not declared(KERNELS.get("mla_decode/tiled"), "kv.tail")


def test_an_unknown_kernel_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(["susceptibility", "--kernel", "tield"]) == 2
    assert "unknown kernel 'tield'" in capsys.readouterr().err


def test_an_unknown_kernel_beside_a_known_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(["susceptibility", "--kernel", "gather", "--kernel", "nosuch"]) == 2
    assert "unknown kernel 'nosuch'" in capsys.readouterr().err


def test_a_kernel_without_a_cell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    planner = next(spec for spec in KERNELS if spec.op == "mla_decode_plan")
    assert exit_code_of(["susceptibility", "--kernel", planner.name]) == 2
    assert "op mla_decode_plan has no site to try" in capsys.readouterr().err


def test_a_plugin_without_a_cell_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from harness import kernel\n"
        "@kernel(op='mla_decode_plan', name='mine')\n"
        "def mine(seq_lens, *, num_heads): ...\n",
        encoding="utf-8",
    )
    assert exit_code_of(["susceptibility", "--plugin", str(path), "-n", "1"]) == 2
    assert "no kernel of it (mine) has a site to try" in capsys.readouterr().err


def test_every_op_but_the_planner_has_cells() -> None:
    assert {case.op for case in cases(list(KERNELS))} == {op.name for op in OPS} - {"mla_decode_plan"}


def test_a_sparse_kernel_that_loads_what_is_not_there_is_seen_and_one_that_does_not_is_clean() -> None:
    case = case_of("susceptibility[kernel=mla_decode_sparse/gather,kv=bf16,site=kv.null,pattern=nan]")
    assert case is not None
    for fault, outcome in ((None, "clean"), ("sparse.invalid-index-clamped", "NaN")):
        assert cell_of(run_case(Job(key="k", case=case, device="cpu", fault=fault)), case).outcome == outcome


def test_decode_is_asked_with_several_query_tokens_too_and_the_id_says_so() -> None:
    found = cases([KERNELS.get("mla_decode/tiled-multiply")])
    several = [case for case in found if "tokens=4" in case.id]
    assert {case.poison.sites for case in several} == {("kv.tail",), ("kv.free",), ("kv.null",)}
    assert all(case.params.query_len == 4 and case_of(case.id) == case for case in several)
    assert case_of("susceptibility[kernel=mla_decode/tiled,kv=bf16,tokens=3,site=kv.tail,pattern=nan]") is None
    assert case_of("susceptibility[kernel=write_kv/torch,kv=bf16,tokens=4,site=kv.free,pattern=nan]") is None


@pytest.mark.parametrize(("kernel", "outcome"), [("tiled-multiply", "NaN"), ("tiled", "clean")])
def test_several_query_tokens_tell_a_multiplying_kernel_from_a_selecting_one(kernel: str, outcome: str) -> None:
    case = case_of(f"susceptibility[kernel=mla_decode/{kernel},kv=bf16,tokens=4,site=kv.tail,pattern=nan]")
    assert case is not None
    cell = cell_of(run_case(Job(key="k", case=case, device="cpu")), case)
    assert (cell.kernel, cell.outcome) == (f"mla_decode/{kernel}, 4 tokens", outcome)
