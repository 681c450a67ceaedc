"""The grid of llama.cpp's options tells a dead server, a wrong answer and a bug that is gone."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("httpx")
from benchmarks import llamacpp_grid as grid

DIES = [sys.executable, "-c", "import sys; print('ops.cpp:321: not implemented'); sys.exit(3)"]


def test_a_server_that_dies_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid.gguf_file, "write", lambda checkpoint, file: file.touch())
    for known in ("", "#1"):
        row = grid.Row("dies", ("{folder}",), lambda served: ["never asked"], known=known)
        found = grid.tried(DIES, row)
        assert not found.is_right and found.said.endswith("ops.cpp:321: not implemented")
        # A server that does not start shows no bug, known or not.
        assert (found.verdict, found.is_expected) == ("**fail**", False)


def test_a_known_bug_is_expected_to_fail_and_not_to_pass() -> None:
    plain, known = (grid.Row("row", (), lambda served: [], known=bug) for bug in ("", "#1"))
    assert [
        grid.Result(row, is_right, "").is_expected
        for row in (plain, known)
        for is_right in (True, False)
    ] == [True, False, False, True]
    assert grid.Result(known, True, "").verdict == "no longer fails"


def test_drafts_are_counted_between_two_readings() -> None:
    before = {"spec_decode_num_draft_tokens": 2.0, "spec_decode_num_accepted_tokens": 2.0}
    after = {"spec_decode_num_draft_tokens": 10.0, "spec_decode_num_accepted_tokens": 7.0}
    assert grid.drafted(before, after) == ["5 of 8 drafts"]
    assert grid.drafted(before, before) == []


def test_every_row_has_a_name_of_its_own_and_a_canary_that_can_be_written() -> None:
    assert len({row.name for row in grid.ROWS}) == len(grid.ROWS)
    for row in grid.ROWS:
        assert (grid.FIXTURES / f"canary-{row.canary}" / "config.json").is_file()
