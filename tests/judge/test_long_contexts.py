"""Bugs past a power of two of pages, columns or requests are caught by the case that is long or
wide enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cases import Job
from harness.core.records import Verdict
from harness.engine import attention, batch
from harness.judge.run_case import run_case
from harness.scenario.expand import expand
from harness.scenario.load import load_scenario, shipped_directory

CASES = {
    case.id: case
    for case in expand(load_scenario(shipped_directory() / "engine" / "long-contexts.yaml"))
}
Patch = pytest.MonkeyPatch


def slots_wrap_at_page_64(patch: Patch) -> None:
    right = batch.slots_of
    patch.setattr(
        batch,
        "slots_of",
        lambda blocks, span: right([blocks[n % 64] for n in range(len(blocks))], span),
    )


def contexts_of_prompts_wrap_at_page_32(patch: Patch) -> None:
    right = attention.gather_context

    def wrapped(cache: Any, requests: Any, *rest: Any) -> Any:
        tables = [tuple(one.blocks[n % 32] for n in range(len(one.blocks))) for one in requests]
        return right(
            cache,
            tuple(replace(one, blocks=table) for one, table in zip(requests, tables, strict=True)),
            *rest,
        )

    patch.setattr(attention, "gather_context", wrapped)


def keeps(patch: Patch, name: str, part: Any) -> None:
    """A part of a static input of graphs is not copied."""
    right = batch.fill_static

    def stale(static: Any, *rest: Any) -> None:
        before = getattr(static.decode, name).clone()
        right(static, *rest)
        getattr(static.decode, name)[part] = before[part]

    patch.setattr(batch, "fill_static", stale)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("load", "plant"),
    [
        ("65_pages", slots_wrap_at_page_64),
        ("65_pages", contexts_of_prompts_wrap_at_page_32),
        ("33_pages", lambda patch: keeps(patch, "block_table", (slice(None), slice(32, None)))),
        (
            "33_pages_each",
            lambda patch: keeps(patch, "window_table", (slice(None), slice(32, None))),
        ),
        ("66_states", lambda patch: keeps(patch, "state_blocks", slice(64, None))),
    ],
    ids=["slots", "contexts", "columns", "window-columns", "states"],
)
def test_a_bug_that_shorter_cases_do_not_reach_is_caught(
    monkeypatch: Patch, load: str, plant: Callable[[Patch], None]
) -> None:
    plant(monkeypatch)
    result = run_case(Job(key="job", case=CASES[f"long-contexts[load={load}]"]))
    assert result.verdict in (Verdict.FAIL, Verdict.CRASH), result.reason
