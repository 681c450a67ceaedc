"""What a user may name, and what answers a name that does not exist."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.core.errors import InputError, UnknownNameError
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.selection import select, select_scenarios

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


@pytest.mark.parametrize(
    ("selector", "hint"),
    [
        ("mixed-contxt", "unknown scenario 'mixed-contxt'; did you mean 'mixed-context'?"),
        (
            "mixed-context[kv=bf17]",
            "unknown case 'mixed-context[kv=bf17]'; did you mean 'mixed-context[kv=bf16",
        ),
        (
            "mixed contexts of mine",
            "unknown scenario 'mixed contexts of mine'; the nearest are mixed-context, vllm-mixed",
        ),
        ("nosuch", "unknown scenario 'nosuch'; none of the "),
        ("99999", "no scenario has the reference '99999'; see `mla-harness list` for the "),
        (
            "vllm-project/vllm#1",
            "no scenario has the reference 'vllm-project/vllm#1'; see `mla-harness list` for the ",
        ),
        ("", "unknown scenario ''"),
        (
            "my_kernel.py",
            (
                "my_kernel.py: the kernels of a Python file are judged by: mla-harness judge"
                " my_kernel.py"
            ),
        ),
        (
            "my kernel.py",
            (
                "my kernel.py: the kernels of a Python file are judged by: mla-harness judge 'my"
                " kernel.py'"
            ),
        ),
        ("tiled", "unknown scenario 'tiled'; it is a kernel: --kernel tiled"),
        (
            "mla_decode/tiled",
            "unknown scenario 'mla_decode/tiled'; it is a kernel: --kernel mla_decode/tiled",
        ),
        ("prefill", "unknown scenario 'prefill'; it is a tag: -m prefill"),
        (
            "sparse.ties-by-arrival",
            "unknown scenario 'sparse.ties-by-arrival'; it is a fault: --fault sparse.ties",
        ),
        (
            "decode",
            "unknown scenario 'decode'; it is a tag: -m decode; did you mean 'decode-conditions', ",
        ),
        ("decode-kernl*", "no scenario is like 'decode-kernl*'; did you mean 'decode-kernel'?"),
        ("*[kv=bf17]", "no case is like '*[kv=bf17]'; no id has the parts 'kv=bf17'"),
    ],
)
def test_unknown_selector_is_refused_with_the_nearest_name(selector: str, hint: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        select(LISTED, ["mixed-context", selector])
    assert str(caught.value).startswith(hint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        (
            "decode-kernel[kv=bf16",
            r"no ']' closes its '['; write 'decode-kernel[kv=bf16]', or 'decode-kernel[kv=bf16*]'",
        ),
        ("decode-kernel[kv=bf16,", "write 'decode-kernel[kv=bf16]'"),
        ("decode-kernel[", "no ']' closes its '['; close it"),
        (
            "decode-kernel[kv=bf16@num_heads=[1]",
            "no ']' closes its '['; write 'decode-kernel[kv=bf16]'",
        ),
        ("decode-kernel]", "write a name and its parts as NAME[PART,PART]"),
        ("decode-kernel[kv=bf16]x", "write a name and its parts as NAME[PART,PART]"),
        ("decode-kernel[kv=bf16]]", "write a name and its parts as NAME[PART,PART]"),
        ("decode-kernel[[kv=bf16]", "write a name and its parts as NAME[PART,PART]"),
        ("[kv=bf16]", "no name before the '['; write '*[kv=bf16]' for the cases of all scenarios"),
    ],
)
def test_brackets_that_do_not_match_are_refused_with_what_to_write(
    selector: str, says: str
) -> None:
    with pytest.raises(InputError) as caught:
        select(LISTED, [selector])
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tag", "says"),
    [("prefil", "did you mean 'prefill'"), ("decode-kernel", "a scenario is named without -m")],
)
def test_unknown_tag_is_refused_with_the_nearest_tag(tag: str, says: str) -> None:
    with pytest.raises(UnknownNameError, match=says):
        select(LISTED, tags=[tag])


@pytest.mark.parametrize("expression", ["a and b", "not", "", "not a b"])
def test_tag_expression_is_one_tag_or_its_negation(expression: str) -> None:
    with pytest.raises(InputError):
        select(LISTED, tags=[expression])


def test_selection_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no selected case is left by -m 'control'"):
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
    with pytest.raises(UnknownNameError, match=r"no scenario is like 'nosuch\*'; none of the "):
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


def test_the_start_of_a_name_is_answered_with_the_names_that_begin_so() -> None:
    with pytest.raises(
        UnknownNameError, match=r"did you mean 'decode-conditions', .* or 'decode-lengths' \(1 more"
    ):
        names("decode")
    with pytest.raises(UnknownNameError, match=r"did you mean 'warm-context'\?"):
        names("warm")
