"""The recorder of decisions and the small bugs of `benchmarks/`, on classes of vLLM 0.33, on a
CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
from adapters.vllm.tests.host.test_serving_poison import ROOT, told_by
from canaries.recorded import Decider, unpacked

SCRIPT = Path(__file__).with_name("recorded_decisions.py")
INDEX, EXPERTS = Decider(1, "index"), Decider(1, "experts")
UNKNOWN = [-2, -2, -2, -2]


def told(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    code = (
        f"import sys, runpy; sys.path.insert(0, {str(ROOT / 'benchmarks')!r}); sys.argv = [''] +"
        f" {list(words)!r}"
    )
    return told_by("0.33.0", "-c", f"{code}; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')")


def test_each_row_goes_to_its_request_and_position(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch)
    first, second = (unpacked(found["requests"][name]) for name in ("7", "8"))
    assert first[INDEX].tolist() == [UNKNOWN] * 4 + [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]
    # Row 0 of its step: the second runner puts the shorter request first.
    assert second[INDEX].tolist() == [UNKNOWN] * 5 + [[2, 3, 4, 5]]
    assert first[EXPERTS].tolist() == [[-2, -2]] * 4 + [[1, 2], [0, 1], [0, 3]]
    assert second[EXPERTS][5].tolist() == [0, 3]
    assert found["problems"] == ["request 9 has 0 records"] and found["requests"]["9"] == {}


def test_bugs_are_in_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, "wrong-index")
    first = unpacked(found["requests"]["7"])
    # The choice that gives way is the first in vLLM's buffer.
    assert first[INDEX].tolist() == [UNKNOWN] * 4 + [[0, 2, 3, 4], [0, 3, 4, 5], [0, 4, 5, 6]]
    assert told(monkeypatch, "wrong-scale")["scales"] == [1.05, 1.05]
    assert told(monkeypatch, "wrong-rope")["rope"] == [199.0, 201.0, 201.0]
    assert told(monkeypatch, "wrong-epsilon")["epsilon"] == 1e-6
