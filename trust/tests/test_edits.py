"""The edits of the engine: each can be made and taken back, and their judge tells wrong from right."""

from __future__ import annotations

import pytest

from harness.core.cases import Case
from trust.edits.__main__ import cases, changes_no_schedule, function_of, made, summary, tried, word
from trust.edits.edit import Edit
from trust.edits.engine import RIGHT, WRONG
from trust.edits.unseen import UNSEEN_RIGHT, UNSEEN_WRONG

EDITS = {edit.name: edit for edit in (*WRONG, *RIGHT, *UNSEEN_WRONG, *UNSEEN_RIGHT)}
SMALL = Case(
    id="case",
    scenario="s",
    system="engine",
    params={"layers": ("mla",), "requests": ((5, 3), (9, 2)), "speculative_tokens": 1},
    oracles=("finite", "reference", "tokens", "conserved"),
)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_is_made_and_taken_back(edit: Edit) -> None:
    before = function_of(edit.place).__code__
    with made(edit):
        assert function_of(edit.place).__code__ is not before
    assert function_of(edit.place).__code__ is before


def test_there_are_twenty_wrong_edits_and_ten_right_ones() -> None:
    assert len(WRONG) >= 20 and len(RIGHT) >= 10
    assert len(UNSEEN_WRONG) >= 19 and len(UNSEEN_RIGHT) >= 6


def test_an_edit_of_a_text_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="0 times"), made(Edit("gone", WRONG[0].place, "gone", "")):
        pass


def test_a_wrong_edit_is_caught_without_memory_to_blame_and_a_right_one_passes() -> None:
    wrong = EDITS["token-of-the-wrong-draft"]
    oracles, case, sites = tried(wrong, [SMALL], to_the_end=False)
    assert "reference" in oracles and case == "case"
    assert word(wrong, oracles, sites) == "none, rightly"
    assert tried(EDITS["largest-by-max"], [SMALL], to_the_end=True) == ("", "", "")


@pytest.mark.nightly
def test_a_wrong_count_is_caught_beside_a_kernel_that_marks_no_row() -> None:
    """A kernel that gives rows without keys an lse of -inf hides the count."""
    wrong = EDITS["all-prompts-have-context"]
    chosen = [case for case in cases()[0] if case.scenario == "unmarked-context"]
    oracles, _, sites = tried(wrong, chosen, to_the_end=False)
    assert "finite" in oracles and word(wrong, oracles, sites) == "right"


def test_drafts_in_another_order_are_caught_where_a_later_prompt_comes_first_in_the_batch() -> None:
    wrong = EDITS["drafts-copied-in-the-order-of-the-batch"]
    firsts, others = cases()
    chosen = [case for case in (*firsts, *others) if case.scenario == "drafter-prefixes"]
    oracles, case, sites = tried(wrong, chosen, to_the_end=False)
    assert (oracles, case) == ("acceptance, reference", "drafter-prefixes[beside=other-order]")
    assert word(wrong, oracles, sites) == "none, rightly"


@pytest.mark.nightly
def test_an_edit_that_decides_as_before_in_random_schedules_is_equivalent() -> None:
    """A block has one prefix as long as it has its tokens, so the pool need not look."""
    same = EDITS["block-with-two-prefixes"]
    assert changes_no_schedule(same) and word(same, "", "") == "equivalent"


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["page-in-part-behind-the-window", "drafts-verified-in-part"])
def test_an_edit_that_changes_a_schedule_is_not_equivalent(name: str) -> None:
    assert word(EDITS[name], "", "") == "not caught"


def test_an_error_of_ours_catches_no_edit() -> None:
    rows = [
        ("wrong", "`a`", "reference", "`case`", "", "none, rightly"),
        ("wrong", "`b`", "error", "`case`", "", "none, rightly"),
        ("wrong", "`c`", "-", "`-`", "", "equivalent"),
        ("right", "`d`", "-", "`-`", "", "not blamed"),
    ]
    assert summary(rows) == (
        "1 of 2 wrong edits caught, 1 equivalent, 0 with wrong blame; 0 of 1 right ones red"
    )
