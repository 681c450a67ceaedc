"""What a user may name, and what answers a name that does not exist."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.core.errors import InputError, UnknownNameError
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.selection import select, select_scenarios
from tests.transcripts import Approved

SCENARIOS = load_scenarios(shipped_directory())
LISTED = [scenario for scenario in SCENARIOS if scenario.fuzz is None]


def names(*selectors: str, tags: Sequence[str] = ()) -> set[str]:
    return {case.scenario for case in select(LISTED, selectors, tags=tags)}


def test_nothing_named_means_everything() -> None:
    assert names() == {scenario.name for scenario in LISTED if "nightly" not in scenario.tags}


def test_scenario_is_named_by_its_name() -> None:
    assert names("mixed-context") == {"mixed-context"}


@pytest.mark.parametrize("selector", ["36540", "#36540", "vllm-project/vllm#36540"])
def test_scenarios_are_named_by_their_pull_request(selector: str) -> None:
    assert "mixed-context" in names(selector)
    assert "kv-cache-full" not in names(selector)


def test_case_is_named_by_its_id() -> None:
    wanted = select(LISTED, ["mixed-context"])[3].id
    assert [case.id for case in select(LISTED, [wanted])] == [wanted]


def test_case_named_twice_runs_once() -> None:
    cases = select(LISTED, ["mixed-context", "36540", "mixed-context"])
    assert len(cases) == len({case.id for case in cases})


def test_tag_keeps_the_cases_that_have_it_and_not_leaves_them_out() -> None:
    assert names(tags=["control"]) == {"batch-order-noise", "wrong-accusations"}
    assert "batch-order-noise" not in names(tags=["not control"])
    assert all(case.system == "kernel" for case in select(LISTED, tags=["kernel"]))


def test_unknown_selector_is_refused_with_the_nearest_name(approved: Approved) -> None:
    for selector in [
        "mixed-contxt",
        "mixed-context[kv=bf17]",
        "mixed contexts of mine",
        "nosuch",
        "99999",
        "vllm-project/vllm#1",
        "",
        "my_kernel.py",
        "my kernel.py",
        "tiled",
        "mla_decode/tiled",
        "prefill",
        "sparse.ties-by-arrival",
        "decode",
        "decode-kernl*",
        "*[kv=bf17]",
    ]:
        with pytest.raises(UnknownNameError) as caught:
            select(LISTED, ["mixed-context", selector])
        approved(str(caught.value), f"{selector!r}")
        assert "\n" not in str(caught.value)


def test_brackets_that_do_not_match_are_refused_with_what_to_write(approved: Approved) -> None:
    for selector in [
        "decode-kernel[kv=bf16",
        "decode-kernel[kv=bf16,",
        "decode-kernel[",
        "decode-kernel[kv=bf16@num_heads=[1]",
        "decode-kernel]",
        "decode-kernel[kv=bf16]x",
        "decode-kernel[kv=bf16]]",
        "decode-kernel[[kv=bf16]",
        "[kv=bf16]",
    ]:
        with pytest.raises(InputError) as caught:
            select(LISTED, [selector])
        assert "\n" not in str(caught.value)
        approved(str(caught.value), selector)


def test_unknown_tag_is_refused_with_the_nearest_tag(approved: Approved) -> None:
    for tag in [
        "prefil",
        "decode-kernel",
    ]:
        with approved.raises(UnknownNameError, tag):
            select(LISTED, tags=[tag])


@pytest.mark.parametrize("expression", ["a and b", "not", "", "not a b"])
def test_tag_expression_is_one_tag_or_its_negation(expression: str) -> None:
    with pytest.raises(InputError):
        select(LISTED, tags=[expression])


def test_selection_that_leaves_nothing_is_refused(approved: Approved) -> None:
    with approved.raises(InputError):
        select(LISTED, ["mixed-context"], tags=["control"])


def test_whole_scenarios_are_selected_for_their_faults() -> None:
    selected = [scenario.name for scenario in select_scenarios(LISTED, ["43961"])]
    assert selected == [
        scenario.name for scenario in LISTED if "vllm-project/vllm#43961" in scenario.refs
    ]
    assert "kv-cache-full" in selected


@pytest.mark.parametrize("kind", ["pull", "issues"])
def test_a_pull_request_may_be_named_by_its_address(kind: str) -> None:
    address = f"https://github.com/vllm-project/vllm/{kind}/36540"
    assert names(address) == names(f"{address}/files") == names("36540")
    with pytest.raises(UnknownNameError, match="reference 'vllm-project/vllm#1'"):
        names("https://github.com/vllm-project/vllm/pull/1")


def test_a_pattern_names_scenarios() -> None:
    assert names("*-layouts") == {name for name in names() if name.endswith("-layouts")} != set()
    assert names("decode-kerne?") == {"decode-kernel"}
    with pytest.raises(UnknownNameError, match="is like 'nosuch"):
        names("nosuch*")


@pytest.mark.parametrize(
    "selector", ["decode-kernel[kv=bf16]", "decode-kernel[kv=bf*]", "decode-k*[kv=bf*]"]
)
def test_part_of_an_id_names_the_cases_that_have_it(selector: str) -> None:
    every = [case.id for case in select(LISTED, ["decode-kernel"])]
    found = [case.id for case in select(LISTED, [selector])]
    assert found == [one for one in every if "kv=bf16" in one] and 0 < len(found) < len(every)


def test_two_parts_of_an_id_must_both_be_there() -> None:
    (found,) = select(LISTED, ["decode-kernel[planned=unplanned,kv=bf16]"])
    assert found.id == "decode-kernel[kernel=tiled,kv=bf16,planned=unplanned]"
    with pytest.raises(UnknownNameError, match="unknown case"):
        select(LISTED, ["decode-kernel[kernel=til]"])


def test_a_pattern_of_parts_names_cases_of_all_scenarios() -> None:
    found = select(LISTED, ["*[kernel=tiled,kv=bf16]"])
    assert len({case.scenario for case in found}) > 2
    assert all("kernel=tiled," in case.id and "kv=bf16" in case.id for case in found)


def test_nightly_cases_are_not_named_by_a_part() -> None:
    assert not any(
        "nightly" in case.tags for case in select(LISTED, ["kv-cache-full[accuracy=gsm*]"])
    )
    with pytest.raises(InputError, match="add -m nightly"):
        select(LISTED, ["kv-cache-full[limit=full]"])


def test_the_start_of_a_name_is_answered_with_the_names_that_begin_so(approved: Approved) -> None:
    with approved.raises(UnknownNameError):
        names("decode")
    with approved.raises(UnknownNameError):
        names("warm")


@pytest.mark.nightly
def test_a_gpu_runs_all_cells_of_the_matrix_only_where_they_are_asked_for() -> None:
    matrix = [scenario for scenario in LISTED if scenario.name.startswith("kernel-matrix-")]

    def num_cells(*selectors: str, tags: Sequence[str] = ()) -> int:
        return len(select(matrix, selectors, tags=tags, has_gpu=True))

    assert num_cells() == num_cells(tags=["gpu"]) == len(matrix)
    assert num_cells(tags=["kernel-matrix"]) > 5_000
    assert num_cells(tags=["matrix-conditions"]) > 5_000
    assert num_cells("kernel-matrix-merge") > 1
