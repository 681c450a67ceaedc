"""Shards of one plan become one run; whatever is not all of one plan is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.errors import InputError
from harness.core.records import Blame, CaseResult, Verdict
from harness.report.meaning import meaning
from harness.report.page import render
from harness.report.run_view import RunView
from harness.store.merge import merge
from harness.store.run_folder import RunStore, ShardNote
from harness.store.source import Source
from tests.transcripts import Approved, lines_with, page_text

KEYS = ("a", "b", "c")


def job(name: str) -> Job:
    return Job(key=name, case=Case(id=name, scenario="stub", system="kernel", op="write_kv"))


def shard(
    root: Path,
    index: int,
    names: str,
    *,
    count: int = 2,
    keys: tuple[str, ...] = KEYS,
    finish: bool = True,
    seed: int = 0,
    source: Source | None = None,
) -> RunStore:
    """A run directory of the jobs `names`, said to be part `index` of `count`."""
    store = RunStore.create(
        root,
        [job(name) for name in names],
        command="x",
        options={"seed": seed},
        shard=ShardNote(index=index, count=count, keys=keys),
        num_long=4,
        source=source or Source(),
    )
    store.note_environment({"torch": "2.13.0", "cpu": f"machine {index}"})
    for name in names if finish else names[:-1]:
        verdict = Verdict.FAIL if name == "c" else Verdict.PASS
        store.add(CaseResult(key=name, id=name, scenario="stub", verdict=verdict))
    return store


def test_two_shards_become_the_run_of_the_whole_plan_in_its_order(tmp_path: Path) -> None:
    second, first = shard(tmp_path, 2, "b"), shard(tmp_path, 1, "ac")
    first.add_blame("c", Blame(sites=("output",), how="alone"))
    merged = merge([second, first], tmp_path, command="mla-harness merge")
    assert [result.key for result in merged.results()] == ["a", "b", "c"]
    assert [result.verdict.value for result in merged.results()] == ["pass", "pass", "fail"]
    assert merged.blames()["c"].sites == ("output",)
    assert merged.plan.environment == {"torch": "2.13.0", "cpu": "machine 1 / machine 2"}
    assert merged.plan.shard is None
    assert merged.plan.num_long == 4


def test_the_gpus_of_all_machines_are_one_list_and_the_report_names_them(tmp_path: Path) -> None:
    shards = [shard(tmp_path, 1, "ac"), shard(tmp_path, 2, "b")]
    for one, uuids in zip(shards, ("ab", "bc"), strict=True):
        one.note_environment({"gpus": [{"name": "NVIDIA H100", "uuid": uuid} for uuid in uuids]})
    merged = merge(shards, tmp_path, command="x")
    assert [gpu["uuid"] for gpu in merged.plan.environment["gpus"]] == ["a", "b", "c"]
    (place,) = (line.sentence for line in meaning(RunView(merged)) if line.name == "on")
    assert place.startswith("CPU")


def test_machines_with_other_engines_and_variables_are_one_report(
    tmp_path: Path, approved: Approved
) -> None:
    shards = [shard(tmp_path, 1, "ac"), shard(tmp_path, 2, "b")]
    for one, version in zip(shards, ("0.32.0", "0.33.0"), strict=True):
        one.note_environment(
            {"engines": {"vllm": version}, "variables": {f"VLLM_{version[2:4]}": "1"}}
        )
    merged = merge(shards, tmp_path, command="x")
    assert merged.plan.environment["engines"] == {"vllm": "0.32.0 / 0.33.0"}
    assert merged.plan.environment["variables"] == {"VLLM_32": "1 / none", "VLLM_33": "none / 1"}
    approved(lines_with(page_text(render(RunView(RunStore.open(merged.path)))), "0.32.0"))


def test_a_machine_that_is_not_known_does_not_spoil_what_the_others_say(tmp_path: Path) -> None:
    shards = [shard(tmp_path, 1, "ac"), shard(tmp_path, 2, "b")]
    shards[0].note_environment({})
    shards[1].note_environment(
        {"gpus": [{"name": "NVIDIA H100"}], "engines": {"vllm": "0.33.0"}, "torch": None}
    )
    merged = merge(shards, tmp_path, command="x").plan.environment
    assert merged == {
        "gpus": [{"name": "NVIDIA H100"}],
        "engines": {"vllm": "none / 0.33.0"},
        "torch": None,
    }


def test_a_missing_shard_is_refused_by_its_number(tmp_path: Path, approved: Approved) -> None:
    with approved.raises(InputError):
        merge([shard(tmp_path, 1, "abc")], tmp_path, command="x")


def test_a_shard_given_twice_is_refused(tmp_path: Path, approved: Approved) -> None:
    one = shard(tmp_path, 1, "abc")
    with approved.raises(InputError):
        merge([one, one], tmp_path, command="x")


def test_a_case_without_a_result_is_a_gap(tmp_path: Path, approved: Approved) -> None:
    shards = [shard(tmp_path, 1, "ab", finish=False), shard(tmp_path, 2, "c")]
    with approved.raises(InputError):
        merge(shards, tmp_path, command="x")


@pytest.mark.parametrize(
    ("one", "two", "what"), [("a", "b", "c is in no shard"), ("ab", "bc", "b is in two shards")]
)
def test_shards_cut_differently_are_refused(tmp_path: Path, one: str, two: str, what: str) -> None:
    with pytest.raises(InputError, match=f"{what}.*cut differently"):
        merge([shard(tmp_path, 1, one), shard(tmp_path, 2, two)], tmp_path, command="x")


def test_shards_of_other_code_are_refused_by_the_files_that_differ(tmp_path: Path) -> None:
    same = {"notes.txt": "1"}
    first = Source(commit="aaa", changes="x", files=same | {"kernel.py": "2"})
    second = Source(commit="aaa", changes="y", files=same | {"kernel.py": "3", "new.py": "4"})
    shards = [shard(tmp_path, 1, "ac", source=first), shard(tmp_path, 2, "b", source=second)]
    told = r"the code under test differ from .* \(kernel.py, new.py\); merge the shards of one plan"
    with pytest.raises(InputError, match=told):
        merge(shards, tmp_path, command="x")


def test_shards_of_other_plans_are_refused(tmp_path: Path, approved: Approved) -> None:
    first = shard(tmp_path, 1, "ac")
    with approved.raises(InputError):
        merge([first, shard(tmp_path, 2, "b", keys=("a", "b"))], tmp_path, command="x")
    with pytest.raises(InputError, match="the options differ"):
        merge([first, shard(tmp_path, 2, "b", seed=1)], tmp_path, command="x")
    with approved.raises(InputError):
        merge([first, shard(tmp_path, 2, "b", count=3)], tmp_path, command="x")


def test_a_run_that_is_no_shard_is_refused(tmp_path: Path, approved: Approved) -> None:
    whole = RunStore.create(tmp_path, [job("a")], command="x")
    with approved.raises(InputError):
        merge([whole], tmp_path, command="x")
