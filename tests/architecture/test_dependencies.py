"""Each package that is imported is declared in pyproject.toml, and each that is declared is
imported.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from harness.core.extras import PACKAGES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PLUGINS = sorted(ROOT.glob("mla_harness*.py"))
PRODUCT = (
    *sorted((ROOT / "harness").rglob("*.py")),
    *sorted((ROOT / "poison" / "torch_poison").rglob("*.py")),
    *sorted(ROOT.glob("adapters/*/mla_harness_*/**/*.py")),
    *sorted((ROOT / "canaries").glob("*.py")),
    *PLUGINS,
)
OTHERS = tuple(
    path
    for name in ("tests", "poison/tests", "adapters/*/tests", "trust", "tools", "benchmarks")
    for path in sorted(ROOT.glob(f"{name}/**/*.py"))
)
OURS = {path.stem for path in (*PLUGINS, *OTHERS)} | {
    path.name
    for folder in (ROOT, ROOT / "poison", *ROOT.glob("adapters/*"))
    if folder.is_dir()
    for path in folder.iterdir()
    if path.is_dir()
}
PIP_NAMES = {name: package for name, (package, _) in PACKAGES.items()} | {
    "yaml": "pyyaml",
    "_pytest": "pytest",
}
"""Name for import -> name for pip."""
WITHOUT_IMPORT = {
    "pytest-xdist": "a plug-in of pytest",
    "reasoning-gym": "fixtures/tasks/make_questions.py imports it",
}


def plain(name: str) -> str:
    """The name of a distribution as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distribution(module: str) -> str:
    """The distribution that brings a module, as pip compares it."""
    root = module.partition(".")[0]
    return plain(PIP_NAMES.get(root, root))


@functools.cache
def imported(
    paths: tuple[Path, ...], calls: tuple[str, ...] = ("import_module", "lazily")
) -> dict[str, str]:
    """Each module of another distribution that the files import, also with one of the `calls`, with
    one place.
    """
    found = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in calls:
                names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            for name in names:
                root = name.partition(".")[0]
                if root not in sys.stdlib_module_names and root not in OURS:
                    found[root] = f"{path.relative_to(ROOT)}:{node.lineno}"
    return found


def declared(requirements: Iterable[str]) -> set[str]:
    """The distributions of requirements.

    An extra of this project stands for its own requirements.
    """
    found: set[str] = set()
    for requirement in requirements:
        name, extras = re.match(r"([\w.-]+)(?:\[([^]]+)\])?", requirement).groups()
        if name == PROJECT["name"]:
            found |= declared(item for extra in extras.split(",") for item in EXTRAS[extra])
        else:
            found.add(plain(name))
    return found


CORE = declared(PROJECT["dependencies"])


def test_the_product_imports_core_packages_and_those_of_an_extra_that_its_message_names() -> None:
    wrong = {}
    for module, place in imported(PRODUCT).items():
        _, extra = PACKAGES.get(module, ("", "pytest" if module == "_pytest" else ""))
        if distribution(module) not in (declared(EXTRAS[extra]) if extra else CORE):
            wrong[module] = place
    assert not wrong, (
        f"declare it in pyproject.toml, and an optional one in PACKAGES of core/extras.py: {wrong}"
    )


def test_tests_and_tools_import_declared_packages() -> None:
    known = CORE | declared(item for items in EXTRAS.values() for item in items)
    # Calls in tests name modules that the tests make.
    wrong = {
        module: place
        for module, place in imported(OTHERS, ()).items()
        if distribution(module) not in known
    }
    assert not wrong, f"declare it in pyproject.toml: {wrong}"


@pytest.mark.parametrize(
    "extra",
    ["", *(name for name in EXTRAS if not name.endswith(("-host", "-cpu")) and name != "dev")],
)
def test_what_an_install_brings_is_imported(extra: str) -> None:
    """Packages of the extras for engines on a CPU are imported by the engines themselves, and those
    of `dev` are tools.
    """
    used = {distribution(module) for module in imported(PRODUCT)} | WITHOUT_IMPORT.keys()
    brought = declared(EXTRAS[extra] if extra else PROJECT["dependencies"])
    assert not brought - used, f"nothing imports {brought - used}"


def test_the_poison_alone_declares_what_it_imports() -> None:
    alone = tomllib.loads((ROOT / "poison" / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    assert alone["version"] == PROJECT["version"]
    assert alone["entry-points"]["pytest11"] == PROJECT["entry-points"]["pytest11"]
    extras = alone["optional-dependencies"]
    known = declared(alone["dependencies"])
    known |= declared(item for items in extras.values() for item in items)
    used = imported(tuple(sorted((ROOT / "poison" / "torch_poison").rglob("*.py"))))
    # pytest brings its plug-in manager.
    assert {distribution(module) for module in used} == known | {"pluggy"}


def test_names_for_import_belong_to_the_names_for_pip() -> None:
    installed = importlib.metadata.packages_distributions()
    for module, package in PIP_NAMES.items():
        if module in installed:
            assert plain(package) in map(plain, installed[module]), module


def test_an_import_without_a_declaration_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(test_tests_and_tools_import_declared_packages.__globals__, "ROOT", tmp_path)
    file = tmp_path / "file.py"
    file.write_text(
        "import os\ndef f():\n    from undeclared.part import name\nlazily('other.thing')\n"
    )
    assert imported((file,)) == {"undeclared": "file.py:3", "other": "file.py:4"}
