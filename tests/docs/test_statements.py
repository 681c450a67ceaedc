"""What pages, README and docstrings say of this project is so: files, programs and modules that
they name are there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "upstream" not in path.parts),
    *sorted(ROOT.glob("*.md")),
    *(ROOT / name for name in ("reports/README.md", "examples/rowkernels/README.md")),
]
"""All pages but the changelog, which is history, and the files for other projects in docs/upstream.
"""
PAGES.remove(ROOT / "CHANGELOG.md")
CODE = [
    path
    for name in (
        "harness",
        "poison",
        "adapters",
        "trust",
        "tools",
        "benchmarks",
        "canaries",
        "tests",
    )
    for path in (ROOT / name).rglob("*.py")
]
FOLDERS = (
    ".ci",
    ".github",
    "adapters",
    "benchmarks",
    "canaries",
    "changelog.d",
    "contrib",
    "docs",
    "examples",
    "fixtures",
    "harness",
    "poison",
    "reports",
    "scenarios",
    "tests",
    "tools",
    "trust",
)
NAMED = re.compile(
    rf"(?<![\w/.:@~-])((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*<>{{}}-]*[\w/*>}}])"
)
MODULE = re.compile(r"python3? -m ((?:harness|adapters|tests|trust|canaries|benchmarks)[\w.]*)")
WRITER = re.compile(r"\b[Ww]ritten by `python ([\w/.]+\.py)")
MADE = ("reports/runs", "reports/history")
"""Files that runs make."""
OF_OTHERS = {
    "tests/contrib/fuzz_ledger.py": {"tests/test_helpers/fuzz_ledger.py"},
    "docs/start-ci.md": {".github/workflows/mla-harness.yml"},
    "docs/poison-pytest.md": {"tests/test_segments.py"},
    "docs/data/poison-suites.md": {
        "tests/kernels/attention/test_triton_decode_attention.py",
    },
}
"""Page -> the files that it names of the reader's project, or of another one."""


def paths_in(text: str) -> Iterator[str]:
    """The paths from the root of this project that a text names, without those with a place to fill
    in.
    """
    for path in NAMED.findall(text):
        # A word in capitals stands for a name.
        is_pattern = set(path) & set("<>{}") or re.search(r"\b[A-Z]+\b", Path(path).stem)
        if not path.startswith(MADE) and not (is_pattern and not (ROOT / path).exists()):
            yield path.rstrip(".")


def is_there(path: str, page: Path) -> bool:
    """Whether a path is there: from the root, or from the folder of its page, as links are."""
    return any(
        any(base.glob(path)) if "*" in path else (base / path).exists()
        for base in (ROOT, page.parent)
    )


def missing(page: Path, text: str) -> list[str]:
    """What a text names and is not there."""
    name = page.relative_to(ROOT).as_posix()
    allowed = OF_OTHERS.get(name, set())
    lost = [path for path in paths_in(text) if path not in allowed and not is_there(path, page)]
    files = [f"{module.replace('.', '/')}" for module in MODULE.findall(text)]
    lost += [
        file
        for file in files
        if not (ROOT / f"{file}.py").exists() and not (ROOT / file / "__main__.py").exists()
    ]
    return [f"{name} names {path}" for path in lost]


def docstrings(path: Path) -> str:
    """The docstrings of a file: of the module, its classes and its functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return "\n".join(
        filter(None, (ast.get_docstring(node) for node in nodes if isinstance(node, kinds)))
    )


def test_every_file_and_module_that_a_page_names_is_there() -> None:
    assert len(PAGES) > 40
    assert [
        lost for page in PAGES for lost in missing(page, page.read_text(encoding="utf-8"))
    ] == []


def test_every_file_that_a_docstring_names_is_there() -> None:
    assert [lost for path in CODE for lost in missing(path, docstrings(path))] == []


def test_a_page_that_a_program_writes_names_a_program_that_is_there() -> None:
    writers = [name for page in PAGES for name in WRITER.findall(page.read_text(encoding="utf-8"))]
    assert len(writers) >= 5 and [name for name in writers if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    "text",
    [
        "Written by `python tools/no_such_tool.py` of commit a612156.",
        "see trust/mutants/*.toml",
        "run `python -m tests.no_such_module`",
    ],
)
def test_what_is_not_there_is_seen(text: str) -> None:
    assert len(missing(ROOT / "README.md", text)) == 1


def test_nobody_counts_tests_by_hand() -> None:
    """A count of tests is wrong after the next commit, and nobody needs it."""
    pages = [
        ROOT / name
        for name in (
            "README.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "docs/index.md",
            "docs/design.md",
        )
    ]
    assert [
        page.name
        for page in pages
        if re.search(r"\d[\d,]* tests\b", page.read_text(encoding="utf-8"))
    ] == []
