"""CONTRIBUTING.md names files that are there, every room, and every place of a new op."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import yaml

from harness.core.ops import OPS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATH = re.compile(r"`((?:[\w.<>*-]+/)+[\w.<>*-]*|[\w-]+\.(?:md|py|txt|toml|ini|yml))`")


def places(names: list[str]) -> set[str]:
    """Files of the package, engines apart, in which at least half of the `names` stand as strings:
    their tables.
    """
    found = set()
    for file in (ROOT / "harness").rglob("*.yaml"):
        rows = yaml.safe_load(file.read_text(encoding="utf-8"))
        # The rows of bounds are a list.
        keys = {key.partition("/")[0] for key in rows if isinstance(rows, dict)}
        if 2 * len(keys & set(names)) >= len(names):
            found.add(file.relative_to(ROOT).as_posix())
    for file in (ROOT / "harness").rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        strings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if "engines" not in file.parts and 2 * len(strings & set(names)) >= len(names):
            found.add(file.relative_to(ROOT).as_posix())
    return found


def unnamed(text: str, files: set[str]) -> set[str]:
    """The files that `text` names neither themselves nor by a folder that ends with a slash."""
    named = [path for path in PATH.findall(text)]
    return {
        file
        for file in files
        if not any(file == path or (path.endswith("/") and file.startswith(path)) for path in named)
    }


def test_every_path_that_contributing_names_is_there() -> None:
    named = PATH.findall(TEXT)
    assert len(named) > 40
    for path in named:
        there = path.partition("<")[0].rpartition("/")[0] if "<" in path else path
        assert (ROOT / there).exists(), f"CONTRIBUTING.md names {path}"


def test_add_an_op_names_every_table_that_has_a_row_for_each_op() -> None:
    (row,) = re.findall(r"^\| add an op \|.*$", TEXT, re.MULTILINE)
    tables = places(list(OPS.names()))
    assert unnamed(row, tables) == set()
    left_out = row.replace("`harness/scenario/calls.yaml`", "")
    assert unnamed(left_out, tables) == {"harness/scenario/calls.yaml"}


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
