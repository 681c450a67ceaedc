"""Patches of source: they change what they name, and refuse code that is not what they expect."""

from __future__ import annotations

import itertools
import sys
import textwrap
from pathlib import Path

import pytest

from harness.core.cause_codes import Code
from mla_harness_adapters.patches import Edit, Patch, PatchRefused
from mla_harness_vllm.faults import PATCHES
from mla_harness_vllm.tables import ENGINE
from tests.transcripts import Approved

SOURCE = """
LIMIT = 3

class Engine:
    def step(self, x):
        if x > LIMIT:
            # Guarded.
            x = LIMIT
        return x
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "patched_engine.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "patched_engine", raising=False)
    return "patched_engine:Engine.step"


def patch(*edits: Edit) -> Patch:
    return Patch(ENGINE, "vllm.test", "0.20.0", "0.25.0", edits)


def test_a_function_is_recompiled_with_all_its_edits_in_its_own_namespace(module: str) -> None:
    import importlib

    patch(
        Edit(module, "if x > LIMIT:", "if False:"), Edit(module, "return x", "return x + LIMIT")
    ).apply("0.22.1")
    assert importlib.import_module("patched_engine").Engine().step(10) == 13


@pytest.mark.parametrize("old", ["if x > OTHER:", "LIMIT", "x = LIMIT\nreturn y"])
def test_text_that_is_not_there_is_refused_and_changes_nothing(
    old: str, module: str, approved: Approved
) -> None:
    import importlib

    with approved.raises(PatchRefused):
        patch(Edit(module, "return x", "return 0"), Edit(module, old, "pass")).apply("0.22.1")
    assert importlib.import_module("patched_engine").Engine().step(10) == 3


def test_a_function_that_calls_super_keeps_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    (tmp_path / "patched_base.py").write_text(
        textwrap.dedent("""
        class Base:
            def step(self, x):
                return x + 1

        class Engine(Base):
            def step(self, x):
                return super().step(x) * 2
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    patch(
        Edit("patched_base:Engine.step", "return super().step(x) * 2", "return super().step(x) * 3")
    ).apply("0.22.1")
    assert importlib.import_module("patched_base").Engine().step(1) == 6


def test_a_release_outside_the_range_is_refused(module: str, approved: Approved) -> None:
    for version in ("0.19.0", "0.25.0", "0.25.1rc1"):
        with approved.raises(PatchRefused):
            patch(Edit(module, "return x", "return 0")).apply(version)


def test_a_release_with_the_bug_says_so(approved: Approved) -> None:
    for name, version in (
        ("vllm.plan-in-warmup-only", "0.21.0"),
        ("vllm.skip-zero-new-blocks", "0.22.1"),
        ("vllm.context-for-first-rows", "0.27.1"),
    ):
        why = PATCHES.why_not(name, version)
        assert why is not None and why.cause == Code.AS_RELEASED
        approved(why.sentence, name)
    assert PATCHES.why_not("vllm.skip-zero-new-blocks", "0.24.0") is None
    assert not any(PATCHES.why_not(name, "0.33.0") for name in PATCHES)


@pytest.mark.parametrize("fault", PATCHES)
def test_of_several_patches_the_one_for_the_release_is_taken_and_there_is_no_gap_between_them(
    fault: str,
) -> None:
    patches = PATCHES[fault]
    for before, after in itertools.pairwise(patches):
        assert before.last == after.first
    for patch in patches:
        assert PATCHES.find(fault, patch.first) is patch
    assert PATCHES.why_not(fault, "0.33.0") is None


def test_a_release_newer_than_all_that_were_examined_is_refused_by_the_newest_range() -> None:
    reason = PATCHES.why_not("vllm.plan-in-warmup-only", "99.0.0")
    assert reason.cause == Code.NO_PATCH
    last = PATCHES["vllm.plan-in-warmup-only"][-1].last
    assert "0.26.0" in reason.sentence and last in reason.sentence


def test_a_replaced_function_of_a_module_is_replaced_where_it_was_imported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A forked process has imported the importers before the bug is injected.
    import importlib

    (tmp_path / "made_here.py").write_text("def length(x):\n    return len(x)\n")
    (tmp_path / "used_there.py").write_text("from made_here import length as measure\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    used = importlib.import_module("used_there")
    patch(Edit("made_here:length", "return len(x)", "return 0")).apply("0.22.1")
    assert used.measure([1, 2]) == importlib.import_module("made_here").length([1, 2]) == 0
