"""The program decides by codes: no module compares or searches the sentences of findings and
results.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [*ROOT.glob("harness/**/*.py"), *ROOT.glob("adapters/*/mla_harness_*/**/*.py")]
SENTENCES = {"message", "reason", "how"}
READS = {
    "startswith",
    "endswith",
    "partition",
    "rpartition",
    "split",
    "removeprefix",
    "removesuffix",
    "find",
    "count",
}
SEARCHES = {"search", "match", "fullmatch", "findall", "sub"}


def _is_sentence(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in SENTENCES
    return isinstance(node, ast.Attribute) and node.attr in SENTENCES


def _holds_sentence(node: ast.AST) -> bool:
    return any(map(_is_sentence, ast.walk(node)))


def _is_searched(node: ast.Compare) -> bool:
    """Whether words are looked for in a variable with the name of a sentence."""
    last = node.comparators[-1]
    is_text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    return is_text and isinstance(last, ast.Name) and last.id in SENTENCES


def readers(tree: ast.AST) -> Iterator[int]:
    """The lines that compare, take apart or search a sentence."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(_is_sentence, sides)) or _is_searched(node):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_read = node.func.attr in READS and _holds_sentence(node.func.value)
            if is_read or (node.func.attr in SEARCHES and any(map(_holds_sentence, node.args))):
                yield node.lineno


@pytest.mark.parametrize(
    "code",
    [
        "result.reason == NEVER",
        "if WORD in finding.message: pass",
        "if WORD in result['reason']: pass",
        "if 'as released' in reason: pass",
        "result.reason.startswith('not run')",
        "re.sub('[0-9]', '#', finding.message)",
        "blame.how.partition(':')",
    ],
)
def test_a_sentence_that_is_read_is_found(code: str) -> None:
    assert list(readers(ast.parse(code))) == [1]


def test_no_module_decides_by_a_sentence() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in FILES
        for line in readers(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()
