"""What a file knows of one op stands in the folder of the op: others do not name it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from harness.core.ops import OPS

HARNESS = Path(__file__).parents[2] / "harness"
ELSEWHERE = ("ops", "engine", "engines")
"""Folders that call ops by name: the ops, and the engines, which choose their kernels."""

ALLOWED = {
    "cli/solutions.py": "the op that Definitions of flashinfer-ai/flashinfer-bench are of",
    "core/systems.yaml": "the kernels that the reference engine chooses",
    "diagnose/script/recipes.py": "numbers of the scripts of two ops",
    "diagnose/script/recipes.yaml": "the op that the script of a fault of the engine shows",
    "judge/probes/stages.py": "the planner that the reference engine calls",
    "judge/targets/engine.py": "kernels of the reference engine",
    "judge/targets/step_counts.py": "a kernel of the reference engine",
    "kernels/plugins.py": "the example in a message",
}
"""Files outside that name an op, and why."""


def names_in(file: Path) -> Iterator[str]:
    """The ops that a file names: in its texts, docstrings apart, in its attributes, and in its
    rows.
    """
    ops = re.compile(rf"\b({'|'.join(OPS.names())})\b")
    if file.suffix != ".py":
        lines = file.read_text(encoding="utf-8").splitlines()
        yield from ops.findall("\n".join(line.partition("#")[0] for line in lines))
        return
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from ops.findall(node.value)
        elif isinstance(node, ast.Attribute) and ops.fullmatch(node.attr):
            # `stored.read_records` is a function of files, and no op.
            if not isinstance(node.value, ast.Name) or node.value.id != "stored":
                yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ops.findall(node.module or "")


def test_no_file_names_an_op_but_those_that_are_listed() -> None:
    found = {
        file.relative_to(HARNESS).as_posix(): sorted(set(names_in(file)))
        for suffix in ("py", "yaml")
        for file in HARNESS.rglob(f"*.{suffix}")
        if file.relative_to(HARNESS).parts[0] not in ELSEWHERE
    }
    assert {file: ops for file, ops in found.items() if ops and file not in ALLOWED} == {}
    assert {file for file in ALLOWED if not found[file]} == set()


def test_an_op_is_found_in_texts_attributes_imports_and_rows(tmp_path: Path) -> None:
    code, rows = tmp_path / "code.py", tmp_path / "rows.yaml"
    code.write_text(
        '"""Not mla_decode."""\nfrom harness.ops.write_kv import params\nx = f"{1}/select_topk"\n'
        "kernels.map_indices()\n",
        encoding="utf-8",
    )
    rows.write_text("route_experts: 1  # write_kv\n", encoding="utf-8")
    assert set(names_in(code)) == {"write_kv", "select_topk", "map_indices"}
    assert set(names_in(rows)) == {"route_experts"}
