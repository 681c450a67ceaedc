"""CONTRIBUTING.md names files that are there and every room; a new op is a folder alone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import yaml

from harness.core.ops import OPS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATH = re.compile(r"`((?:[\w.<>*-]+/)+[\w.<>*-]*|[\w-]+\.(?:md|py|txt|toml|ini|yml))`")


def tables_of(names: list[str], root: Path) -> set[str]:
    """Files below `root` in which at least half of the `names` stand as strings:
    their tables.
    """
    found = set()
    for file in root.rglob("*.yaml"):
        rows = yaml.safe_load(file.read_text(encoding="utf-8"))
        # The rows of bounds are a list.
        keys = {key.partition("/")[0] for key in rows if isinstance(rows, dict)}
        if 2 * len(keys & set(names)) >= len(names):
            found.add(file.relative_to(root).as_posix())
    for file in root.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        strings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if 2 * len(strings & set(names)) >= len(names):
            found.add(file.relative_to(root).as_posix())
    return found


def test_every_path_that_contributing_names_is_there() -> None:
    named = PATH.findall(TEXT)
    assert len(named) > 40
    for path in named:
        there = path.partition("<")[0].rpartition("/")[0] if "<" in path else path
        assert (ROOT / there).exists(), f"CONTRIBUTING.md names {path}"


def test_no_file_of_the_product_has_a_row_for_each_op() -> None:
    assert tables_of(OPS.names(), ROOT / "harness") == set()


def test_a_table_of_ops_is_found(tmp_path: Path) -> None:
    rows = "".join(f"{op}: 1\n" for op in OPS.names())
    (tmp_path / "rows.yaml").write_text(rows, encoding="utf-8")
    (tmp_path / "code.py").write_text(f"TABLE = {OPS.names()!r}\n", encoding="utf-8")
    (tmp_path / "one.py").write_text("TABLE = ['mla_decode']\n", encoding="utf-8")
    assert tables_of(OPS.names(), tmp_path) == {"rows.yaml", "code.py"}


def test_the_rooms_are_the_folders_of_the_package() -> None:
    table = TEXT.partition("| floor | room |")[2].partition("\n\n")[0]
    rooms = {
        room
        for line in table.splitlines()[2:]
        for room in re.findall(r"`(\w+)`", line.split("|")[2])
    }
    assert rooms == {
        path.parent.name for path in (ROOT / "harness").glob("*/") for path in path.glob("*.py")
    }
