"""Find the local variables that a test examines as a whole, from its source alone.

A test that asserts on `out[:n]` of a padded output has not examined the padding, and a cache that a
test passes to a kernel is not asserted on. So a local is examined if its values flow into an
assertion: it is in an `assert`, it is an argument of a function named like a check, or an examined
local is computed from it by operators, torch, numpy or tensor methods. A local is not examined if
the test takes parts of it, reads only its shape, dtype or the like, or passes it to another
function of the program.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any

CHECK = re.compile(r"assert|check|close|compare|equal|verify|match", re.IGNORECASE)
MATHS = frozenset({"torch", "np", "numpy", "math", "F"})
BUILTINS = frozenset({"abs", "all", "any", "bool", "float", "int", "max", "min", "sum"})
FACTS = frozenset(
    {
        "shape",
        "dtype",
        "device",
        "ndim",
        "size",
        "numel",
        "stride",
        "dim",
        "element_size",
        "is_contiguous",
        "layout",
        "data_ptr",
        "requires_grad",
        "grad_fn",
        "is_cuda",
        "storage_offset",
        "untyped_storage",
        "nbytes",
        "itemsize",
        "names",
        "grad",
        "is_leaf",
    }
)
"""Attributes and methods of a tensor that do not read its values."""
PARTS = frozenset(
    {
        "narrow",
        "split",
        "chunk",
        "index_select",
        "masked_select",
        "select",
        "unbind",
        "gather",
        "take",
        "tensor_split",
    }
)


def examined_whole(frame: FrameType, is_tensor_method: Callable[[str], bool]) -> frozenset[str]:
    """The names of the locals that a finished frame examined as a whole; none if its source is not
    found.
    """
    tree = _source_of(frame.f_code)
    return (
        _Names(tree, frame.f_globals, is_tensor_method).answer()
        if tree is not None
        else frozenset()
    )


def _source_of(function: Any) -> ast.AST | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return tree.body[0] if tree.body else None


class _Names:
    """The analysis of one function."""

    def __init__(
        self, tree: ast.AST, scope: dict[str, Any], is_tensor_method: Callable[[str], bool]
    ) -> None:
        self._tree = tree
        self._scope = scope
        self._is_tensor_method = is_tensor_method

    def answer(self) -> frozenset[str]:
        """Names that flow into an assertion, except names that are taken apart."""
        wanted: set[str] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assert):
                # Both sides of a comparison, and what is computed there by operators.
                wanted.update(self._values(node.test))
            elif isinstance(node, ast.Call) and CHECK.search(_called(node.func)):
                wanted.update(self._handed_to(node))
        sources = list(self._assignments())
        # An examined local may be computed from another one, and that one from a third.
        grown = True
        while grown:
            before = len(wanted)
            for targets, value in sources:
                if not wanted.isdisjoint(targets):
                    wanted.update(self._values(value))
            grown = len(wanted) > before
        return frozenset(wanted - self._taken_apart())

    def _assignments(self) -> Iterator[tuple[set[str], ast.expr]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign):
                # All targets of one statement count together. That names too many rather than too
                # few.
                yield {name for target in node.targets for name in _names(target)}, node.value
            elif isinstance(node, ast.AugAssign | ast.AnnAssign) and node.value is not None:
                yield set(_names(node.target)), node.value

    def _values(self, node: ast.AST) -> Iterator[str]:
        """Names with values that flow into an expression."""
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            if node.attr not in FACTS:
                yield from self._values(node.value)
        # An index takes a part, and the rest may be padding. A lambda may never be called.
        elif isinstance(node, ast.Subscript | ast.Lambda | ast.Constant):
            return
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            return  # A mask may leave padding out.
        elif isinstance(node, ast.Call):
            yield from self._values_of_call(node)
        elif not (
            isinstance(node, ast.Compare)
            and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
        ):
            for child in ast.iter_child_nodes(node):
                yield from self._values(child)

    def _values_of_call(self, node: ast.Call) -> Iterator[str]:
        called = node.func
        if isinstance(called, ast.Attribute):
            if called.attr in FACTS:
                return
            # A method of a tensor computes from it. One of the program may do anything with it.
            if _root(called) not in MATHS:
                if not self._is_tensor_method(called.attr):
                    return
                yield from self._values(called.value)
        elif not (
            isinstance(called, ast.Name) and (called.id in BUILTINS or CHECK.search(called.id))
        ):
            return
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from self._values(argument)

    def _handed_to(self, node: ast.Call) -> Iterator[str]:
        """Names that a check examines as a whole: it must not take its argument apart."""
        function = self._scope.get(node.func.id) if isinstance(node.func, ast.Name) else None
        apart: set[str] = set()
        parameters: list[str] = []
        if isinstance(function, FunctionType):
            tree = _source_of(function)
            # A check without source, such as one of C, may take its argument apart.
            if tree is None:
                return
            apart = _Names(tree, function.__globals__, self._is_tensor_method)._taken_apart()
            parameters = list(inspect.signature(function).parameters)
        for position, argument in enumerate(node.args):
            if position >= len(parameters) or parameters[position] not in apart:
                yield from self._values(argument)
        for keyword in node.keywords:
            if keyword.arg not in apart:
                yield from self._values(keyword.value)

    def _taken_apart(self) -> set[str]:
        """Names that are taken apart: by an index, a loop, unpacking, or a method."""
        apart: set[str] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Subscript | ast.Starred):
                apart.update(_names(node.value))
            elif isinstance(node, ast.For | ast.comprehension):
                apart.update(_names(node.iter))
            elif isinstance(node, ast.Call) and _called(node.func) in PARTS:
                apart.update(_names(node))
        return apart


def _names(node: ast.AST) -> Iterator[str]:
    return (child.id for child in ast.walk(node) if isinstance(child, ast.Name))


def _called(node: ast.expr) -> str:
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
