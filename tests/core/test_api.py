"""The names that plug-ins and adapters may import: few, described, and loaded when asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from harness import api
from harness.core.registry import attribute_at

MOST_NAMES = 60


def imported_for_types() -> dict[str, str]:
    """Name -> "module:attribute", as the block for type checkers imports them."""
    tree = ast.parse(Path(api.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def purposes() -> dict[str, str]:
    """Name -> what it is for, in the order of the table."""
    tree = ast.parse(Path(api.__file__).read_text(encoding="utf-8"))
    tables = (node for node in tree.body if isinstance(node, ast.Assign))
    table = next(node.value for node in tables if isinstance(node.value, ast.Dict))
    return {
        ast.literal_eval(name): ast.literal_eval(row.args[1])
        for name, row in zip(table.keys, table.values, strict=True)
        if name is not None and isinstance(row, ast.Call)
    }


def test_what_a_type_checker_sees_is_what_is_loaded() -> None:
    places = imported_for_types()
    assert places.keys() == set(api.__all__)
    assert [name for name in places if getattr(api, name) is not attribute_at(places[name])] == []


def test_there_are_few_names_and_each_says_what_it_is_for() -> None:
    assert len(api.__all__) <= MOST_NAMES
    assert list(purposes()) == api.__all__ and all(map(str.strip, purposes().values()))


@pytest.mark.parametrize("name", api.__all__)
def test_each_name_is_there_and_is_no_module(name: str) -> None:
    assert type(getattr(api, name)).__name__ != "module"


def test_another_name_is_no_name_of_the_api() -> None:
    with pytest.raises(AttributeError, match="no attribute 'attribute_at'"):
        _ = api.attribute_at


def test_importing_it_loads_no_torch_and_no_other_module_of_the_harness() -> None:
    code = (
        "import sys; before = set(sys.modules); import harness.api;"
        "print(*[name for name in set(sys.modules) - before"
        " if name == 'torch' or name.startswith('harness.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["harness.api"]


def test_the_names_of_the_package_are_names_of_the_api() -> None:
    import harness

    names = [name for name in harness.__all__ if name != "__version__"]
    assert all(getattr(harness, name) is getattr(api, name) for name in names)
