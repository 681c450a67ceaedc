"""Imports point down only, and the parent process never imports torch: the rules that keep the project readable."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HARNESS = ROOT / "harness"
FILES = sorted(HARNESS.rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}

PARENT = {
    "harness.errors": 1, "harness.records": 1, "harness.registry": 1, "harness.files": 1,
    "harness.loaded_files": 1, "harness.python_path": 1,
    "harness.poison.sites": 2, "harness.poison.layouts": 2, "harness.ops.contracts": 2, "harness.catalog": 2,
    "harness.kernels.spec": 2, "harness.faults.base": 2, "harness.faults.specs": 2, "harness.faults.pool_specs": 2,
    "harness.faults.graph_specs": 2, "harness.faults.row_specs": 2,
    "harness.oracles.base": 2, "harness.oracles.wording": 2,
    "harness.cures.names": 2, "harness.cures.plugins": 2,
    "harness.kernels.plugins": 2, "harness.kernels.vllm_specs": 2, "harness.kernels.flashinfer_specs": 2,
    "harness.accuracy.records": 1, "harness.accuracy.fixtures": 1,
    "harness.accuracy.answer_log": 2, "harness.accuracy.baselines": 2, "harness.accuracy.identity": 2,
    "harness.accuracy.statistics": 2, "harness.accuracy.tasks": 2,
    "harness.accuracy.judge": 3,
    "harness.scenario": 3,
    "harness.plan": 4, "harness.results": 4, "harness.history": 4, "harness.report": 4,
    "harness.run.environment": 5, "harness.run.protocol": 5, "harness.run.process": 5, "harness.run.runner": 5,
    "harness.run.pool": 5, "harness.run.parcel": 5, "harness.run.ray_pool": 5, "harness.run.ray_cluster": 5,
    "harness.run.ray_actor": 5,
    "harness.run.gpus": 5, "harness.run.sanitizer": 5,
    "harness.run.asking": 5,
    "harness.model.config": 1,
    "harness.engine.config": 3, "harness.engine.block_pool": 3, "harness.engine.scheduler": 3,
    "harness.engine.sequence": 3, "harness.engine.zeroing": 3,
    "harness.diagnose": 6, "harness.export": 6,
    "harness.cli": 7, "harness.pytest_plugin": 7, "harness": 7,
}  # fmt: skip
"""Modules and packages of the parent process, by layer; they never import torch."""

TORCH_WHEN_ASKED = {
    "harness.pytest_plugin": "a fixture loads it when a test asks for it",
    "harness.run.environment": "a function that only workers call describes the machine",
}
"""Modules of the parent that import torch inside a function, and why they may."""

WORKER = {
    "harness.poison": "A", "harness.graph": "A", "harness.ops": "A",
    "harness.model": "B", "harness.kernels": "B", "harness.recorder": "B", "harness.engine": "C",
    "harness.targets": "D", "harness.vllm_host": "D", "harness.serving": "D", "harness.vllm_fits": "D",
    "harness.cures": "D", "harness.faults": "D", "harness.accuracy": "D", "harness.canary": "D",
    "harness.oracles": "E",
    "harness.run": "F",
    "harness.bench": "G", "harness.pytest_poison": "G",
}  # fmt: skip
"""Packages of the worker process, by layer; they may also import the parent's layers 1 to 3."""

TARGET_RECORDS = "harness.targets.base"
"""The records that oracles read."""


def layer(module: str) -> int | str:
    """The layer of a module: its own entry, or that of the nearest package that has one."""
    name = module
    while name:
        if name in PARENT and (name == module or name != "harness"):
            return PARENT[name]
        if name in WORKER:
            return WORKER[name]
        name = name.rpartition(".")[0]
    raise AssertionError(f"{module} has no layer; enter it in {Path(__file__).name}")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Modules that a file imports, with line numbers; those for type checkers only are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(child for part in node.body for child in ast.walk(part))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: import absolutely"
            base = node.module or ""
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield (whole if whole in MODULES else base), node.lineno


def allowed(importer: str, imported: str) -> bool:
    """Whether `importer` may import `imported`, both of the harness."""
    if "harness" in (importer, imported):
        return True  # the package itself imports nothing before one of its names is used
    ours, theirs = layer(importer), layer(imported)
    if isinstance(ours, int):
        return isinstance(theirs, int) and theirs <= ours
    if isinstance(theirs, int):
        return theirs <= 3 or imported.startswith(("harness.run.", "harness.results."))
    return theirs <= ours


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down_only(module):
    wrong = [
        f"{MODULES[module].relative_to(ROOT)}:{line}: layer {layer(module)} imports {name} of layer {layer(name)}"
        for name, line in imports(MODULES[module])
        if name.partition(".")[0] == "harness" and not allowed(module, name)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", [name for name in MODULES if isinstance(layer(name), int)])
def test_the_parent_process_imports_no_torch(module):
    if module in TORCH_WHEN_ASKED:
        return
    wrong = [f"line {line}: {name}" for name, line in imports(MODULES[module]) if name.partition(".")[0] == "torch"]
    assert not wrong, f"{module} imports torch: {wrong}"


@pytest.mark.parametrize(
    "module", ["harness.cli.main", "harness.catalog", "harness.diagnose.blame", "harness.run.runner"]
)
def test_importing_the_parents_modules_does_not_load_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or f"{module} loads torch"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_longer_than_400_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


WRAPS_COMPARATORS = HARNESS / "pytest_poison" / "assertions.py"
"""Names other people's comparing functions, to see what they are given; it compares nothing."""


def test_there_is_one_comparator():
    word = re.compile(r"\b(allclose|isclose|assert_close|assert_allclose|assert_almost_equal)\b")
    wrong = [
        str(path.relative_to(ROOT))
        for path in FILES
        if path not in (HARNESS / "oracles" / "compare.py", WRAPS_COMPARATORS)
        and word.search(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, f"compare through harness.oracles.compare: {wrong}"


def test_oracles_know_the_records_of_targets_and_no_target():
    for path in (HARNESS / "oracles").glob("*.py"):
        names = [name for name, _ in imports(path) if name.startswith(("harness.targets", "harness.engine"))]
        assert set(names) <= {TARGET_RECORDS}, path


def test_no_module_has_a_name_that_says_nothing():
    assert not [path for path in FILES if path.stem in {"utils", "util", "helpers", "helper", "common", "misc"}]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_holds_unfinished_business_or_paths_of_a_machine(path):
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b|/work/|/home/|/root/|/tmp/\w+", text)
    assert not found
