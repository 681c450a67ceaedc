"""The page of what changes of tolerances did counts what the words of findings say."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from harness.evidence import compare

from .tolerance_effects import BEFORE, BOUNDS, SHARE, kills  # type: ignore[import-not-found]


def test_a_kill_is_counted_by_its_bound_and_how_far_beyond_it_was(tmp_path: Path) -> None:
    words = (
        "1 of 2 live rows and 7 of 256 elements are beyond {}, worst {} times it ({}) (pattern nan)"
    )
    rows = [
        {
            "status": "killed",
            "reason": words.format("engine.logits.bf16", "1.47", "relative L2 of the row"),
        },
        {"status": "killed", "reason": words.format("read_records", "6.6e+08", "element")},
        {"status": "killed", "reason": "a block is free twice"},
        {"status": "survived", "reason": words.format("read_records", "9", "element")},
    ]
    (tmp_path / "mutants.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert kills(tmp_path) == {
        "engine.logits.bf16": [("relative L2 of the row", 1.47)],
        "read_records": [("element", 6.6e8)],
    }


def test_the_words_are_those_of_the_comparator_and_the_bounds_are_there() -> None:

    bound = BOUNDS.get("engine.logits.fp32")
    want = torch.ones(1, 8, dtype=torch.float64)
    found = compare.compare(torch.ones(1, 8) * 2, want, torch.tensor([True]), bound)
    match = SHARE.search(str(found.mismatch and found.mismatch.message))
    assert match and match[1] == "engine.logits.fp32"
    assert all(BOUNDS.get(name) for names in BEFORE for name in names.split())
