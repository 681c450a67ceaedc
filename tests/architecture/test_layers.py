"""Imports point down only, and the parent process never imports torch: the rules that keep the
project readable.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.evidence import NO_KINDS

ROOT = Path(__file__).parents[2]
HARNESS = ROOT / "harness"
FILES = sorted(HARNESS.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FILES
}

FLOORS = {
    "core": 1,
    "scenario": 2,
    "accuracy": 2,
    "memory": 2,
    "store": 3,
    "kernels": 3,
    "ops": 4,
    "run": 4,
    "report": 4,
    "cell": 5,
    "evidence": 5,
    "engine": 5,
    "diagnose": 6,
    "judge": 6,
    "api": 7,
    "cli": 8,
    "loop": 8,
}
"""The rooms of the project. A file imports files of its own room and of lower floors only."""

NO_TORCH = (
    "core",
    "scenario",
    "accuracy",
    "store",
    "run",
    "diagnose",
    "report",
    "cli",
    "engine/schedule",
    "evidence",
)
"""Folders of the parent process. They import torch inside functions only."""

PARTS_WITHOUT_TORCH = (
    "contract.py",
    "params.py",
    "conditions.py",
    "draws.py",
    "record_params.py",
    "settled.py",
    "sizes.py",
)
"""Parts of an op that the parent process reads."""

TORCH = ("evidence/compare.py", "evidence/decisions.py", "evidence/thresholds.py")
"""Files within the folders above that run in a process with torch."""

POISON = ROOT / "poison" / "torch_poison"
"""The distribution below all rooms. Every room may import it, and it imports none of them."""

ADAPTERS = sorted(ROOT.glob("adapters/*/mla_harness_*/**/*.py"))
"""The distributions above all rooms. Of the harness they import `harness.api`, and no room imports
them.
"""

PACKAGES = (*FILES, *sorted(POISON.rglob("*.py")), *ADAPTERS)
"""All files of the product."""

POISON_WITHOUT_TORCH = {
    "torch_poison",
    "torch_poison.errors",
    "torch_poison.frames",
    "torch_poison.pytest_plugin",
    "torch_poison.sites",
    "torch_poison.suite",
    "torch_poison.suite.hooks",
    "torch_poison.suite.settings",
}
"""Its modules for a process without torch."""


def room(module: str) -> str:
    """The room of a module; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def folder(path: Path) -> str:
    """The folder of a file below `harness/`."""
    return path.parent.relative_to(HARNESS).as_posix()


def is_free_of_torch(path: Path) -> bool:
    """Whether the rule of the nearest folder says so."""
    name = path.relative_to(HARNESS).as_posix()
    if name.startswith("ops/"):
        return path.name in PARTS_WITHOUT_TORCH
    return name.startswith(tuple(f"{one}/" for one in NO_TORCH)) and not name.startswith(TORCH)


ROWS = re.compile(r"harness/(core/(systems|kernels|faults)|run/worker)\.py")
"""Files with rows that name code of higher floors.

The code is imported when a case needs it, in a worker.
"""

PLACE = re.compile(r"(harness(?:\.\w+)+):[\w.]+")
"""A string that names code, such as "harness.judge.target:Target"."""


def imports(path: Path) -> Iterator[tuple[str, ast.stmt, bool]]:
    """Modules that a file imports, the statement, and whether it is inside a function; without
    imports for types.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in node.body
        for child in ast.walk(part)
    }
    yield from (found for found in _imports(path, tree) if found[1] not in for_types)


def _imports(path: Path, tree: ast.Module) -> Iterator[tuple[str, ast.stmt, bool]]:
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(child for part in node.body for child in ast.walk(part))
        if isinstance(node, ast.Import):
            yield from ((alias.name, node, node in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: import absolutely"
            base = node.module or ""
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield (whole if whole in MODULES else base), node, node in inside


def arrows(path: Path) -> Iterator[tuple[str, int]]:
    """Modules that a file names, and the line: imports, imports for types, and strings
    "module:name" outside ROWS.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from ((name, node.lineno) for name, node, _ in _imports(path, tree))
    if ROWS.search(path.as_posix()):
        return
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (place := PLACE.fullmatch(node.value))
        ):
            yield place[1], node.lineno


def arrows_up(module: str, path: Path) -> list[str]:
    """The arrows of a file to rooms that are not below its own."""
    ours = room(module)
    return [
        f"{path.name}:{line}: {ours} names {name}"
        for name, line in arrows(path)
        if ours
        and name.startswith("harness.")
        and room(name) != ours
        and FLOORS[room(name)] >= FLOORS[ours]
    ]


def in_circles(modules: dict[str, Path]) -> set[str]:
    """The modules that name one another in a circle, and the modules that name these."""
    graph = {
        module: {name for name, _ in arrows(path) if name in modules and name != module}
        for module, path in modules.items()
    }
    done: set[str] = set()
    while free := {
        module for module, needed in graph.items() if module not in done and needed <= done
    }:
        done |= free
    return set(graph) - done


def test_arrows_point_down_only():
    wrong = [arrow for module, path in MODULES.items() for arrow in arrows_up(module, path)]
    assert not wrong, "\n".join(wrong)


def test_no_files_name_one_another_in_a_circle():
    assert not sorted(in_circles(MODULES))


PLANTED = [
    "from harness.judge.outcome import Outcome",
    (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from harness.judge.outcome"
        " import Outcome"
    ),
    'TARGET = "harness.judge.target:Target"',
]


@pytest.mark.parametrize("code", PLANTED, ids=["import", "for types", "string"])
def test_an_arrow_that_points_up_is_found(code, tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text(code, encoding="utf-8")
    assert "core names harness.judge" in arrows_up("harness.core.planted", planted)[0]
    assert not arrows_up("harness.cli.planted", planted)


@pytest.mark.parametrize("code", PLANTED, ids=["import", "for types", "string"])
def test_a_circle_is_found(code, tmp_path):
    below, above = tmp_path / "below.py", tmp_path / "above.py"
    below.write_text(code, encoding="utf-8")
    above.write_text("import harness.core.planted", encoding="utf-8")
    planted = {
        "harness.core.planted": below,
        "harness.judge.outcome": above,
        "harness.judge.target": above,
    }
    assert "harness.core.planted" in in_circles(planted)


def top_level_torch(path: Path) -> list[str]:
    """Imports of torch, or of folders with torch, that run when the file is imported."""
    place = path.relative_to(ROOT)
    found = []
    for name, node, inside in imports(path):
        if inside:
            continue
        package = name.partition(".")[0]
        if package == "torch":
            found.append(f"{place}:{node.lineno}: {name}")
        elif package == "torch_poison":
            if not _is_of_poison_without_torch(name, node):
                found.append(f"{place}:{node.lineno}: {name} loads torch")
        elif name in MODULES and name != "harness" and not is_free_of_torch(MODULES[name]):
            found.append(f"{place}:{node.lineno}: {name} is in a folder with torch")
    return found


def _is_of_poison_without_torch(name: str, node: ast.stmt) -> bool:
    """Whether a statement that imports of torch_poison names modules without torch alone."""
    if name == "torch_poison" and isinstance(node, ast.ImportFrom):
        return {f"{name}.{alias.name}" for alias in node.names} <= POISON_WITHOUT_TORCH
    return name in POISON_WITHOUT_TORCH


def test_the_parent_process_imports_torch_inside_functions_only():
    wrong = [line for path in FILES if is_free_of_torch(path) for line in top_level_torch(path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "module",
    [
        "harness.cli.main",
        "harness.core.catalog",
        "harness.diagnose.blame",
        "harness.run.runner",
        *sorted(POISON_WITHOUT_TORCH),
    ],
)
def test_importing_the_parents_modules_loads_neither_torch_nor_pandas(module):
    code = f"import sys, {module}; print(*sys.modules.keys() & {{'torch', 'pandas'}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


OF_THE_CHECKOUT = re.compile(
    r"(import )?tests[./]\w|import tests$|(import )?(trust|benchmarks|canaries)([./][\w*]|$)"
)
"""Places of programs that measure and judge the harness. "tests" alone is a word of JUnit."""


def named_of_the_checkout(path: Path) -> list[str]:
    """Imports and strings of a file that name a test, or a program of the checkout."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [(f"import {name}", node.lineno) for name, node, _ in _imports(path, tree)]
    prose = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    names += [
        (node.value, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose
    ]
    return [
        f"{path.name}:{line}: {name}"
        for name, line in names
        if OF_THE_CHECKOUT.match(name.removeprefix("`"))
    ]


def test_the_product_names_no_test_and_no_program_of_the_checkout():
    wrong = [one for path in PACKAGES for one in named_of_the_checkout(path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "code",
    [
        "import tests.waiting",
        "from trust.sound import kernels",
        'PLACE = "benchmarks/bench_command:bench"',
        'FOLDER = ROOT / "tests" / "trust"',
        'COMMAND = "canaries.canary_command:app"',
    ],
)
def test_a_name_of_the_checkout_is_found(code, tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text(code, encoding="utf-8")
    assert named_of_the_checkout(planted)


def test_the_poison_imports_nothing_of_the_harness():
    assert not [
        f"{path.name}:{node.lineno}: {name}"
        for path in POISON.rglob("*.py")
        for name, node, _ in imports(path)
        if name.startswith(("harness", "mla_harness"))
    ]


MOST_LINES = 500


def test_no_file_is_longer_than_500_lines():
    long = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGES
        if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES
    }
    assert not long


WRAPS_COMPARATORS = POISON / "suite" / "assertions.py"
"""Names other people's comparing functions, to see what they are given; it compares nothing."""


def test_there_is_one_comparator():
    word = re.compile(r"\b(allclose|isclose|assert_close|assert_allclose|assert_almost_equal)\b")
    wrong = [
        str(path.relative_to(ROOT))
        for path in PACKAGES
        if path not in (HARNESS / "evidence" / "compare.py", WRAPS_COMPARATORS)
        and word.search(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, f"compare through harness.evidence.compare: {wrong}"


def test_oracles_know_the_records_of_targets_and_no_target():
    for path in (HARNESS / "evidence").glob("*.py"):
        above = ("harness.judge", "harness.engine")
        assert not [name for name, _, _ in imports(path) if name.startswith(above)], path


KINDS = [
    name.rpartition(".")[2]
    for name, path in MODULES.items()
    if folder(path) == "evidence" and path.stem not in {"__init__", *NO_KINDS}
]


def test_each_kind_of_evidence_imports_alone_without_torch_and_the_catalog():
    """The catalog reads the kinds while it is made, in a parent process without torch."""
    code = "import sys, importlib; importlib.import_module('harness.evidence.' + sys.argv[1]);"
    code += "print(*sys.modules.keys() & {'torch', 'harness.core.catalog'})"
    for kind in KINDS:
        done = subprocess.run(
            [sys.executable, "-c", code, kind], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [], kind


def test_no_module_has_a_name_that_says_nothing():
    assert not [
        path
        for path in PACKAGES
        if path.stem in {"utils", "util", "helpers", "helper", "common", "misc"}
    ]


def test_no_file_holds_unfinished_business_or_paths_of_a_machine():
    word = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|/work/|/home/|/root/|/tmp/\w+")
    found = {
        path.relative_to(ROOT).as_posix(): words
        for path in PACKAGES
        if (words := word.findall(path.read_text(encoding="utf-8")))
    }
    assert not found
