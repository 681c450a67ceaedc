"""`list` and `show` print the cases that a run plans, also for a plug-in's kernel."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios
from tests.transcripts import Approved, lines_with

from .conftest import GOOD_BODY  # type: ignore[import-not-found]

Cli = Callable[..., tuple[int, str, str]]
OTHER = (
    '\n@kernel(op="write_kv", name="other")\ndef other(kv_c, k_pe, kv_cache, slot_mapping, *,'
    " kv_scale=None): ...\n"
)
CELL = "susceptibility[kernel=mla_decode/tiled,kv=bf16,site=kv.tail,pattern=nan]"


def test_the_list_counts_the_cases_that_a_plan_has(cli: Cli) -> None:
    shipped = Path(__file__).parents[2] / "scenarios"
    code, out, _ = cli("list", "--json", "--scenarios", shipped)
    counted = {row["name"]: row["cases"] for row in json.loads(out)["scenarios"]}
    assert code == 0
    assert counted == {scenario.name: len(expand(scenario)) for scenario in load_scenarios(shipped)}


def test_cases_are_listed_as_json_too(cli: Cli, scenarios: Path) -> None:
    code, out, _ = cli("list", "--cases", "--json", "--scenarios", scenarios)
    _, text, _ = cli("list", "--cases", "--scenarios", scenarios)
    assert code == 0 and json.loads(out) == {"cases": text.splitlines()}
    assert "merge[num_with_context=7]" in text.splitlines()


@pytest.mark.parametrize("more", ["", OTHER], ids=["one kernel", "two kernels"])
def test_a_case_of_somebodys_own_kernel_is_shown(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path], more: str, approved: Approved
) -> None:
    path = plugin(GOOD_BODY)
    path.write_text(path.read_text() + more)
    case_id = "quantize[kernel=mine,num_live=8]"
    code, out, err = cli("show", case_id, "--plugin", path, "--scenarios", scenarios)
    assert (code, err) == (0, "")
    approved(lines_with(out, "run: mla-harness run"))


def test_a_case_that_no_kernel_of_a_plugin_has_is_refused(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path], approved: Approved
) -> None:
    case_id = "quantize[kernel=theirs,num_live=8]"
    code, _, err = cli("show", case_id, "--plugin", plugin(GOOD_BODY), "--scenarios", scenarios)
    assert code == 2
    approved(err)


def test_a_cell_of_the_matrix_is_shown_although_it_is_of_no_scenario(
    cli: Cli, approved: Approved
) -> None:
    code, out, err = cli("show", CELL)
    assert (code, err) == (0, "")
    assert "mla-harness run susceptibility" in out
    approved(lines_with(out, "run: mla-harness run"))
    assert json.loads(cli("show", CELL, "--json")[1])["scenario"] is None


def test_the_kernels_of_a_plugin_are_listed_beside_ours(
    cli: Cli, plugin: Callable[[str], Path]
) -> None:
    code, out, err = cli("list", "--plugin", plugin(GOOD_BODY), "--json")
    assert code == 0, err
    assert {"quantize_fp8/mine", "quantize_fp8/per-token"} <= {
        row["name"] for row in json.loads(out)["kernels"]
    }
