"""Adapters of engines import `harness.api`, the poison and what adapters share, and no more of the
harness; nothing of the harness imports an adapter.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_poison import frames

from harness import api
from harness.core import checkout

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(file.parent for file in ROOT.glob("adapters/*/pyproject.toml"))
PACKAGES = {folder.name: next(folder.glob("mla_harness_*")) for folder in FOLDERS}
"""Name of an adapter -> its package; `shared` is the package of what they share."""
SHARED = PACKAGES["shared"].name
PLACE = re.compile(r"harness\.(?!api\b)\w+[\w.:]*")
"""A string that names code of the harness."""


def named(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The modules that a file imports wherever it does, with the names that it imports of the api,
    and strings that name code; each with its line.
    """
    prose = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import absolutely"
            module = node.module or ""
            is_of_api = module in ("harness", "harness.api")
            yield from (
                (f"{module}.{alias.name}" if is_of_api else module, node.lineno)
                for alias in node.names
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in prose
            and PLACE.fullmatch(node.value)
        ):
            yield node.value, node.lineno


def is_allowed(name: str, package: str) -> bool:
    """Whether a file of an adapter's package may name this."""
    root = name.partition(".")[0]
    if root == "harness":
        return name.removeprefix("harness.api.") in api.__all__
    return not root.startswith("mla_harness_") or root in (package, SHARED)


def wrong(package: Path) -> list[str]:
    """The places of a package that name what it may not."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(package.rglob("*.py"))
        for name, line in named(ast.parse(path.read_text(encoding="utf-8")))
        if not is_allowed(name, package.name)
    ]


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES.keys())
def test_an_adapter_imports_the_api_and_what_adapters_share(package: Path) -> None:
    assert list(package.rglob("*.py")) and not wrong(package)


@pytest.mark.parametrize(
    "code",
    [
        "from harness.core.errors import InputError",
        "from harness import kernel",
        "import harness",
        "import harness.core.errors",
        "from harness.api import attribute_at",
        "def late():\n    from harness.judge.target import class_of",
        'TARGET = "harness.judge.target:Target"',
        'MODULE = "harness.run.launch"',
        "from mla_harness_sglang.tables import ENGINE",
    ],
)
def test_another_import_of_an_adapter_is_found(code: str) -> None:
    assert [name for name, _ in named(ast.parse(code)) if not is_allowed(name, "mla_harness_vllm")]


@pytest.mark.parametrize(
    "code",
    [
        "from harness.api import InputError, Refused",
        "from mla_harness_adapters import base",
        "import torch\nfrom torch_poison.patterns import Poison",
        '"""See :class:`harness.judge.target.Target`."""',
    ],
)
def test_what_an_adapter_may_import_is_allowed(code: str) -> None:
    assert all(is_allowed(name, "mla_harness_vllm") for name, _ in named(ast.parse(code)))


def test_each_name_of_the_api_is_imported_by_an_adapter_or_is_for_other_packages() -> None:
    used = {
        name.removeprefix("harness.api.")
        for package in PACKAGES.values()
        for path in package.rglob("*.py")
        for name, _ in named(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith("harness.api.")
    }
    of_plugins = {"kernel", "Finding", "first_nan", "seam"}
    of_tables = {"SystemSpec", "ModelSpec", "KernelSpec", "FaultSpec", "Site", "OracleSpec"}
    assert set(api.__all__) - used == of_plugins | of_tables


def test_no_file_of_the_harness_and_the_poison_names_an_adapter() -> None:
    paths = [*(ROOT / "harness").rglob("*.py"), *(ROOT / "poison" / "torch_poison").rglob("*.py")]
    assert not [
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for name, _ in named(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith(tuple(package.name for package in PACKAGES.values()))
    ]


@pytest.mark.parametrize("name", [name for name in PACKAGES if name != "shared"])
def test_the_tables_of_an_adapter_load_neither_torch_nor_the_engine(name: str) -> None:
    package = PACKAGES[name].name
    code = (
        f"import harness.core.catalog, sys, {package}.tables as tables;"
        " print(*sys.modules.keys() & {'torch', tables.ENGINE.package})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_vllm_s_entry_point_loads_no_harness_until_it_is_asked() -> None:
    code = "import sys, mla_harness_vllm as p; p.activate();"
    code += "print(*sys.modules.keys() & {'harness', 'torch', 'torch_poison'})"
    environ = {"PYTHONPATH": f"{ROOT}:{PACKAGES['vllm'].parent}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_adapters_alone_have_the_version_and_the_entry_points_of_the_harness() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = whole["tool"]["hatch"]["build"]["targets"]["wheel"]
    points: dict[str, dict[str, str]] = {}
    for name, package in PACKAGES.items():
        alone = tomllib.loads((package.parent / "pyproject.toml").read_text(encoding="utf-8"))
        project = alone["project"]
        assert project["version"] == whole["project"]["version"]
        assert project["dependencies"] == (
            ["mla-harness"] if name == "shared" else ["mla-harness", "mla-harness-adapters"]
        )
        if package.relative_to(ROOT).as_posix() not in wheel["only-include"]:
            continue  # An adapter that the wheel does not carry is installed alone.
        for group, rows in project.get("entry-points", {}).items():
            points.setdefault(group, {}).update(rows)
        folder = package.parent.relative_to(ROOT).as_posix()
        assert folder in wheel["sources"] and folder in wheel["dev-mode-dirs"]
    assert set(points) >= {"mla_harness.engines"}
    assert points == {group: whole["project"]["entry-points"][group] for group in points}


def test_a_checkout_finds_the_entry_point_of_an_adapter_in_the_folder_of_the_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So a new adapter is one folder: no file of the harness, and not its pyproject.toml, names it.
    monkeypatch.setattr(checkout, "ROOT", tmp_path / "installed")
    assert checkout.entry_points("mla_harness.engines") == {}
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    tables = '[project.entry-points."mla_harness.engines"]\n{0} = "{0}_tables"\n'
    folder = tmp_path / "adapters" / "tinyserve"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(tables.format("tinyserve"), encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(tables.format("vllm"), encoding="utf-8")
    assert checkout.entry_points("mla_harness.engines") == {
        "vllm": "vllm_tables",
        "tinyserve": "tinyserve_tables",
    }


def test_the_place_of_each_entry_point_is_there() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for module in whole["project"]["entry-points"]["mla_harness.engines"].values():
        assert importlib.import_module(module).ENGINE


def test_a_line_of_an_adapter_allocates_for_the_engine() -> None:
    for name, package in PACKAGES.items():
        importlib.import_module(SHARED if name == "shared" else f"{package.name}.tables")
        assert frames.allocates_for_others(str(package / "serve" / "hooks.py"))


ENGINES = [
    name
    for name, package in PACKAGES.items()
    if name != "shared" and (package / "releases.py").is_file()
]
"""Adapters of engines with several releases."""
ROWS = {"Has", "HasText", "NotServed", "Releases", "Renamed", "release_of"}
"""Names of `mla_harness_adapters.releases` that state a difference between releases."""
NO_RELEASES = {"SIGUSR2", "_mla_harness_first_nan", "device_module", "select_experts"}
"""Attributes that tell kinds of objects apart, and no releases."""


def release_asked(tree: ast.Module) -> Iterator[int]:
    """The lines of a file that state or find out a difference between releases themselves."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="mla_harness_adapters.releases", names=names):
                if ROWS & {alias.name for alias in names}:
                    yield node.lineno
            case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=name)]):
                if name not in NO_RELEASES:
                    yield node.lineno
            case ast.Compare() if "version" in ast.unparse(node):
                yield node.lineno


@pytest.mark.parametrize("name", ENGINES)
def test_differences_between_releases_stand_in_one_file_of_an_adapter(name: str) -> None:
    package = PACKAGES[name]
    assert not [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(package.rglob("*.py"))
        if path != package / "releases.py"
        for line in release_asked(ast.parse(path.read_text(encoding="utf-8")))
    ]


@pytest.mark.parametrize(
    "code",
    [
        "from mla_harness_adapters.releases import release_of",
        "def hook(module):\n    return hasattr(module, 'init_mla_context_partial')",
        "import vllm\nIS_NEW = vllm.__version__ >= '0.28'",
    ],
)
def test_a_hook_that_asks_for_its_release_is_found(code: str) -> None:
    assert list(release_asked(ast.parse(code)))


@pytest.mark.parametrize("name", ENGINES)
def test_each_difference_between_releases_is_used(name: str) -> None:
    package = PACKAGES[name]
    tree = ast.parse((package / "releases.py").read_text(encoding="utf-8"))
    rows = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    used = {
        node.id
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    assert len(rows) > 5 and not rows - used
