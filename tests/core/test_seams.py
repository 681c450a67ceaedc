"""Seams: marks that agree with the table of faults, and replacements that end with their block."""

from __future__ import annotations

import importlib
import inspect
import subprocess
from pathlib import Path

import pytest

from harness.core.catalog import FAULTS as ALL_FAULTS
from harness.core.errors import InputError, UnknownNameError
from harness.core.faults import FAULTS
from harness.core.seams import find_seam, inject, seam
from tests.transcripts import Approved

ROOT = Path(__file__).parents[2]
MERGE = ALL_FAULTS.get("merge.assume-minus-inf")


@seam()
def answer() -> str:
    """The correct code."""
    return "right"


def here() -> str:
    return f"{answer.__module__}:answer"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_its_seam_and_a_replacement_that_takes_the_same_arguments(fault) -> None:
    module, _, name = fault.replacement.partition(":")
    ours = inspect.signature(find_seam(fault.target).current)
    if not name:
        assert not isinstance(fault.gives, str) or fault.gives in ours.parameters
        return
    theirs = inspect.signature(getattr(importlib.import_module(module), name))
    assert [item.kind for item in ours.parameters.values()] == [
        item.kind for item in theirs.parameters.values()
    ]


def test_a_search_for_the_mark_finds_every_fault() -> None:
    done = subprocess.run(
        ["grep", "-rh", "@seam(", "harness"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not [fault.name for fault in FAULTS if f'"{fault.name}"' not in done.stdout]


def test_a_mark_that_the_table_does_not_know_is_refused(approved: Approved) -> None:
    with approved.raises(UnknownNameError):
        seam("merge.assume-minus-in")(answer)
    with pytest.raises(
        ValueError,
        match=r"says harness\.ops\.merge_attn_states\.kernels\.dense:has_no_keys",
    ):
        seam(MERGE.name)(answer)


def test_a_replacement_ends_with_its_block_and_the_first_stays_innermost() -> None:
    place = find_seam(here())
    with pytest.raises(KeyError), place.replaced(lambda: "wrong"):
        inner = place.current
        with place.replaced(lambda: f"not {inner()}"):
            assert answer() == "not wrong"
        assert answer() == "wrong"
        raise KeyError("from within")
    assert answer() == "right"


def test_a_place_that_is_not_marked_is_refused_with_the_nearest(approved: Approved) -> None:
    with approved.raises(InputError):
        find_seam("harness.engine.experts:hand_over_id")
    with pytest.raises(InputError, match="No module named"):
        find_seam("harness.engine.nothing:at_all")


def test_a_fault_of_a_real_engine_replaces_nothing_here() -> None:
    with inject(ALL_FAULTS.get("vllm.router-int64-ids")) as injection:
        pass
    assert not injection.was_reached
