"""`mla-harness susceptibility`: the table on this machine, its files, and cases that make a cell again."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from harness.catalog import KERNELS
from harness.cli.main import exit_code_of
from harness.plan.probe import case_of, cases, declared
from harness.records import Job
from harness.report.susceptibility import cell_of
from harness.run.execute import execute


def run_directory(root: Path) -> Path:
    return next(root.glob("*/run.json")).parent


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
    assert 'class="NaN"' in (folder / "susceptibility.html").read_text(encoding="utf-8")


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


def test_decode_is_asked_with_several_query_tokens_too_and_the_id_says_so() -> None:
    found = cases([KERNELS.get("mla_decode/tiled-multiply")])
    several = [case for case in found if "tokens=4" in case.id]
    assert {case.poison.sites for case in several} == {("kv.tail",), ("kv.free",), ("kv.null",)}
    assert all(case.params["query_len"] == 4 and case_of(case.id) == case for case in several)
    assert case_of("susceptibility[kernel=mla_decode/tiled,kv=bf16,tokens=3,site=kv.tail,pattern=nan]") is None
    assert case_of("susceptibility[kernel=write_kv/torch,kv=bf16,tokens=4,site=kv.free,pattern=nan]") is None


@pytest.mark.parametrize(("kernel", "outcome"), [("tiled-multiply", "NaN"), ("tiled", "clean")])
def test_several_query_tokens_tell_a_multiplying_kernel_from_a_selecting_one(kernel: str, outcome: str) -> None:
    case = case_of(f"susceptibility[kernel=mla_decode/{kernel},kv=bf16,tokens=4,site=kv.tail,pattern=nan]")
    assert case is not None
    cell = cell_of(execute(Job(key="k", case=case, device="cpu")), case)
    assert (cell.kernel, cell.outcome) == (f"mla_decode/{kernel}, 4 tokens", outcome)
