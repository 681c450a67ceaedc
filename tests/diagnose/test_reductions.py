from __future__ import annotations

import pytest

from harness.core.cases import Case, PoisonPlan
from harness.diagnose.shrink import fields_of, reductions
from harness.scenario.draws import draw


def kernel_case(op: str, **params: object) -> Case:
    poison = PoisonPlan(
        patterns=("nan", "zeros"), sites=("output", "lse", "kv.tail", "kv.free"), strict=True
    )
    return Case(id="c", scenario="c", system="kernel", op=op, params=params, poison=poison)


def engine_case(**params: object) -> Case:
    return Case(id="c", scenario="c", system="engine", params=params)


def smaller(case: Case, field: str, blamed: tuple[str, ...] = ()) -> list[object]:
    return [reduction.after for reduction in reductions(case, case, field, blamed)]


def drawn(number: int) -> Case:
    found = draw(f"3:{number}")
    return Case(
        id="fuzz",
        scenario="fuzz",
        system=found.system,
        op=found.op,
        params=found.params,
        poison=found.poison,
    )


def test_the_blamed_sites_are_tried_before_any_other_choice_of_sites():
    found = smaller(kernel_case("mla_decode"), "sites", ("kv.tail",))
    assert found[0] == ("kv.tail",)
    assert found[1] == ()


def test_a_list_loses_halves_then_single_entries_and_then_its_entries_shrink():
    found = smaller(kernel_case("mla_decode", seq_lens=(5, 6, 7)), "seq_lens")
    assert found[0] == [7]
    assert [6, 7] in found and [5, 7] in found and [5, 6] in found
    assert found.index([5, 6]) < found.index([1, 6, 7])


def test_requests_of_parallel_lists_are_taken_out_of_both():
    case = kernel_case("context_attention", query_lens=(5, 3, 4), context_lens=(70, 17, 0))
    first = next(reductions(case, case, "each request"))
    assert first.case.params.query_lens == (5, 3)
    assert first.case.params.context_lens == (70, 17)


def test_counts_that_depend_on_a_reduced_one_follow_it():
    case = kernel_case("merge_attn_states", num_tokens=9, num_with_context=7, empty_prefix_rows=6)
    first = next(reductions(case, case, "num_tokens"))
    assert first.case.params.num_tokens == 1
    assert first.case.params.num_with_context == 1
    assert first.case.params.empty_prefix_rows == 1


def test_the_kernel_that_a_kernel_case_judges_is_not_replaced():
    assert smaller(kernel_case("mla_decode", kernel="tiled-multiply"), "kernel") == []


def test_an_engine_takes_its_plain_kernels_back_where_they_fail_too():
    assert smaller(engine_case(decode_kernel="tiled-multiply"), "decode_kernel") == ["tiled"]


def test_what_means_nothing_without_a_graph_is_left_alone():
    assert smaller(engine_case(graph="none"), "capture_sizes") == []
    assert smaller(engine_case(graph="full"), "capture_sizes")


@pytest.mark.parametrize("number", range(40))
def test_every_smaller_case_of_a_drawn_one_is_legal_and_differs(number):
    case = drawn(number)
    for field in fields_of(case):
        for reduction in reductions(case, case, field):
            smaller = reduction.case.params
            assert type(smaller).model_validate(smaller.model_dump()) == smaller
            assert reduction.case.id != case.id


@pytest.mark.parametrize("number", range(0, 40, 7))
def test_reducing_whatever_is_offered_comes_to_an_end(number):
    first = case = drawn(number)
    for _ in range(500):
        steps = (next(reductions(first, case, field), None) for field in fields_of(case))
        step = next((step for step in steps if step is not None), None)
        if step is None:
            return
        case = step.case
    pytest.fail(f"still reducing after 500 steps: {case.id}")
