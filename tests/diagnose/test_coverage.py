"""Of which known bugs there is a script: what the tables tell, the page says, and the scripts themselves show."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from harness.core.catalog import FAULTS
from harness.core.errors import InputError
from harness.diagnose.script import recipes
from harness.diagnose.script.export import NOT_SHOWN, check, refusal, refused, scripted, tried
from harness.diagnose.script.render import why_not

from .cases import declared, script_of  # type: ignore[import-not-found]

ROOT = Path(__file__).parents[2]


def test_every_known_bug_has_a_script_or_a_reason_why_not() -> None:
    assert {*scripted(), *refused()} == {fault.name for fault in FAULTS}
    assert not {*scripted()} & {*refused()} and all(refused().values())


def test_a_bug_that_loses_its_row_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(scripted()) >= 45 and "pad.shared-trash-slot" in scripted()
    monkeypatch.delitem(recipes.RECIPES, "pad.shared-trash-slot")
    assert refused()["pad.shared-trash-slot"] == "in a serving run, without a scene"


def test_a_case_with_other_memory_between_its_pages_has_no_script() -> None:
    for case in tried()["layout.manager-block-stride"]:
        assert refusal("layout.manager-block-stride", case) == "in a cache that is not contiguous"
        said = "the cache of a script is contiguous" if case.op == "mla_decode" else "there are no scripts for op"
        assert said in why_not(case, None)
    for case in tried()["layout.packed-pages"]:
        assert refusal("layout.packed-pages", case) == "", "its scene makes such a cache"


def test_a_tag_of_the_user_makes_no_case_a_measurement_of_accuracy() -> None:
    case = scripted()["pad.shared-trash-slot"][0]
    tagged = case.model_copy(update={"tags": (*case.tags, "accuracy")})
    assert refusal("pad.shared-trash-slot", tagged) == ""


def test_the_page_names_the_bugs_without_a_script_as_the_tool_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec = importlib.util.spec_from_file_location("export_report", ROOT / "tools" / "export_report.py")
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    assert f"{tool.refused_table()}\n" in text
    assert f"has a row for each of {len(recipes.RECIPES) - len(recipes.SMALL)} known bugs" in text
    assert f"{len(recipes.SMALL)} more bugs have a scene of their own" in text
    pairs = sorted({(name, case.scenario) for name, case in declared()})
    assert sorted(tool.pairs([])) == pairs
    for fault, scenario in pairs:
        assert f"\n| `{fault}` | `{scenario}` |" in text


def test_a_bug_without_a_script_is_refused_with_the_commands_that_show_it() -> None:
    for fault, scenario, words in (
        ("sparse.padding-overwrites-prefill", "sparse-decode", ("mla-harness repro ", "mla-harness shrink 'sparse-")),
        ("records.shuffled-written-flat", "record-formats", ("op write_records", "--fault records.shuffled-written")),
        (
            "vllm.router-int64-ids",
            "vllm-expert-ids",
            ("system vllm", f"repro {FAULTS.get('vllm.router-int64-ids').ref}"),
        ),
    ):
        case = next(case for case in tried()[fault] if case.scenario == scenario)
        with pytest.raises(InputError) as told:
            script_of(fault, case)
        assert all(word in str(told.value) for word in words) and "recipes.py" not in str(told.value)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", sorted(NOT_SHOWN))
def test_a_bug_that_its_script_does_not_show_is_known_as_such(fault: str) -> None:
    (case,) = tried()[fault]
    assert "fails with the bug: no" in check(script_of(fault, case)).sentence, "it shows now: take it from NOT_SHOWN"
