"""The list of public kernels, their adapters, and the record of their verdicts."""

from __future__ import annotations

import ast
import csv
from pathlib import Path

from harness.core.ops import OPS
from tools.records import cells as in_a_file
from trust.public.__main__ import (
    PublicKernel,
    causes,
    fetching,
    judged,
    lines_of_adapter,
    public_kernels,
    selectors,
)

RECORD = Path(__file__).parents[2] / "docs/data/public-kernels/public-kernels.csv"
KERNELS = public_kernels()


def test_every_kernel_has_an_adapter_for_its_op() -> None:
    for one in KERNELS:
        function = one.where.partition(":")[2]
        (found,) = (
            part
            for part in ast.parse(one.file.read_text(encoding="utf-8")).body
            if isinstance(part, ast.FunctionDef) and part.name == function
        )
        words = {
            word.arg: ast.unparse(word.value)
            for decorator in found.decorator_list
            if isinstance(decorator, ast.Call)
            for word in decorator.keywords
        }
        assert words["op"] == repr(OPS.get(one.op).name), one.name


def test_every_kernel_has_a_row_in_the_record() -> None:
    _, *rows = csv.reader(RECORD.read_text(encoding="utf-8").splitlines())
    found = {(cells[0], cells[2]): cells for cells in rows}
    for one in KERNELS:
        # The file has no marks of Markdown.
        what, source, reading = in_a_file(f"| {one.what} | {one.source} | {one.reading} |")
        cells = found[what, source]
        assert (cells[1], cells[7]) == (one.op, reading), one.name
        own, shared = lines_of_adapter(one)
        assert cells[3] == f"{own} + {shared}", one.name


def test_an_adapter_is_counted_without_the_text_above_it() -> None:
    atom = next(one for one in KERNELS if one.name == "atom")
    lines = atom.file.read_text(encoding="utf-8").splitlines()
    own, shared = lines_of_adapter(atom)
    assert own == len(lines) - lines.index('@kernel(op="merge_attn_states", name="atom")')
    assert 0 < shared < 10


def test_each_source_is_fetched_by_its_name_and_version() -> None:
    by_name = {one.name: fetching(one) for one in KERNELS}
    assert "flag-gems==5.0.2" in by_name["flaggems"] and "unzip" in by_name["flaggems"]
    assert by_name["atom"].endswith("git -C ATOM checkout ffdf3bb")
    assert by_name["transformers-sdpa"].startswith("pip install transformers==")


def test_the_interpreter_is_spared_the_calls_of_thousands_of_tokens() -> None:
    atom, *_ = (one for one in KERNELS if one.name == "atom")
    assert "merge-conditions" in selectors(atom, "cpu")
    assert "limits-merge" not in selectors(atom, "cpu")
    gems = next(one for one in KERNELS if one.name == "flaggems")
    assert "decode-lengths" in selectors(gems, "cpu")
    assert "decode-conditions" not in selectors(gems, "cpu")
    assert selectors(atom, "cuda") == []


def test_a_kernel_for_a_gpu_is_not_judged_on_a_cpu() -> None:
    one = PublicKernel("a", "atom_kernels.py:merge", "merge_attn_states", "a", "b 1", "", "gpu")
    assert judged(one, "cpu") == ("not run", "needs a GPU")


def test_a_cause_is_told_once_with_the_memory_to_blame() -> None:
    finding = {"oracle": "finite", "cause": "nan"}
    case = {"findings": [finding, finding], "blamed": ["kv.tail"]}
    summary = {"cases": [case, case, {"findings": [], "blamed": []}]}
    assert causes(summary) == "finite: nan (kv.tail)"
