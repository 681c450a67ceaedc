"""The changes that a mutant may make, by the syntax tree of a function: one node becomes another.

Each operator is a kind of bug that engines had: an index off by one, a copy or a mask left out, a
value of the step before. Asserts, guards that raise, and what only the harness uses are left as
they are.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OFF_BY_ONE, WRONG_INDEX, DROPPED, STALE = (
    "off by one",
    "wrong index",
    "dropped copy, clear or mask",
    "stale value",
)
EMPTY, NARROW, SWAPPED = "zeros to empty", "64 to 32 bits", "swapped operands"
SKIPPED, ORDER = "skipped branch", "wrong order"
OPERATORS = (OFF_BY_ONE, WRONG_INDEX, DROPPED, STALE, EMPTY, NARROW, SWAPPED, SKIPPED, ORDER)

KEEP_LAST = "_value_of_the_call_before"
"""The name of the function that returns the value of the call before; a trial defines it."""
NOTE = "_note_both"
"""The name of the function that notes whether two values differ, and returns the second; a trial
defines it.
"""

_ADDED = """poison _poison probe _probe check_indices raise_bad_indices trap_block events phase_of expert_ids
fill fill_pool fill_tails fill_handed_over table_filler trap_expert _sweep_free padded_causal_attention
Sampled guessed hits _hits"""
_OF_THE_HARNESS = frozenset(_ADDED.split())
"""Names of what the harness adds to an engine: poison, probes, checks, and what it notes of hits
and samples. What they do is not under test.
"""

_ON_A_GPU = frozenset({"is_cuda", "_rounded", "least_admitted"})
"""Names in a condition that holds on a GPU only: there are other right forms for it, and kernels of
bfloat16 alone.
"""
_NAME_MEMORY = frozenset(
    {"PagedModel.tensors", "PagedModel.constants", "ModelRunner.unmap", "DecodeGraphs.unmap"}
)
"""Functions that only name or fill the memory that the harness spoils after a sleep, and watches.
"""
_ONLY_COUNT = frozenset(
    {"BlockPool._is_computed_twice", "BlockPool._note_miss", "BlockPool.next_blocks"}
)
"""Functions that only count an event of a case."""
ONLY_FROM_A_GPU = frozenset({"padded_causal_attention"})
"""Functions that only a branch for a GPU calls.

On a CPU tests/engine/test_padded_attention.py compares this one with the plain form.
"""
ONLY_FROM_A_FAULT = frozenset({"rows_at"})
"""Functions that return at once unless a fault is injected.

`rows_at` gives rows past the end of a tensor, which right code never asks for.
"""

_RENAMED = {
    EMPTY: "zeros=empty zeros_like=empty_like new_zeros=new_empty",
    NARROW: "int64=int32 float64=float32 long=int double=float",
    SWAPPED: "minimum=maximum maximum=minimum amax=amin",
    ORDER: "popleft=pop appendleft=append",
}
_OTHER_NAME = {
    pair.partition("=")[0]: (operator, pair.partition("=")[2])
    for operator, pairs in _RENAMED.items()
    for pair in pairs.split()
}
"""The last part of a dotted name -> the operator, and the name instead."""
_TO_RECEIVER = frozenset(
    {"clone", "copy", "masked_fill", "clamp", "contiguous", "masked_fill_", "clamp_"}
)
_Pairs = tuple[tuple[type[ast.cmpop], type[ast.cmpop]], ...]
_BORDERS: _Pairs = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE))
_NEGATED: _Pairs = ((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
_OTHER_COMPARISON = {
    one: (operator, other)
    for operator, pairs in ((OFF_BY_ONE, _BORDERS), (SKIPPED, _NEGATED))
    for pair in pairs
    for one, other in (pair, pair[::-1])
}
_NOT_COMMUTATIVE = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult)

Change = tuple[str, list[Any]]
"""An operator, and what it puts in place of a node: another node, or this statement and the next
one in their order.
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: variant `variant` of node `node` of a function, both counted in the order of
    `ast.walk`.
    """

    file: str
    function: str
    node: int
    variant: int
    operator: str
    line: int
    lines: tuple[int, ...]
    """The lines of the statement. A case that runs none of them cannot see the change."""
    change: str

    @property
    def name(self) -> str:
        """The same in every run on the same code."""
        return f"{self.file}:{self.function}:{self.node}.{self.variant}"


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module and the methods of its classes.

    A function inside another is a part of it.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from (
                (f"{node.name}.{one.name}", one)
                for one in node.body
                if isinstance(one, ast.FunctionDef)
            )


def mutants_of(file: str, text: str) -> list[Mutant]:
    """All mutants of a file's text, in order."""
    found = []
    for name, function in functions(ast.parse(text)):
        if name in _NAME_MEMORY | _ONLY_COUNT | ONLY_FROM_A_GPU | ONLY_FROM_A_FAULT:
            continue
        for number, place in enumerate(_places(function)):
            for variant, (operator, changed) in enumerate(_variants(place.node, place.following)):
                change = f"{_text(place.node)} -> {'; '.join(map(_text, changed))}"
                lines = tuple(place.lines)
                found.append(
                    Mutant(file, name, number, variant, operator, place.node.lineno, lines, change)
                )
    return found


def _text(node: ast.AST) -> str:
    """A node on one line; of a block only its head."""
    if isinstance(node, ast.For):
        return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
    return ast.unparse(node).split(":\n")[0].replace("\n", " ")


def mutated(text: str, mutant: Mutant, *, noting: bool = False) -> ast.Module:
    """The syntax tree of the module with the change.

    With `noting`, each evaluation of it notes if it differs.
    """
    tree = ast.parse(text)
    function = dict(functions(tree))[mutant.function]
    place = next(place for number, place in enumerate(_places(function)) if number == mutant.node)
    changed = list(_variants(place.node, place.following))[mutant.variant][1]
    if "super()" in ast.unparse(function):
        # Python gives a method the cell of its class only if the method names `super`.
        function.body.append(ast.Expr(ast.Name("super", ast.Load())))
    count = len(changed)
    if noting:
        changed = _noted(place.node, changed)
    siblings = getattr(place.parent, place.field)
    if isinstance(siblings, list):
        at = next(i for i, one in enumerate(siblings) if one is place.node)
        siblings[at : at + count] = changed
    else:
        setattr(place.parent, place.field, changed[0])
    for node in changed:
        ast.copy_location(node, place.node)
    return ast.fix_missing_locations(tree)


def _note(right: ast.expr, wrong: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(NOTE, ast.Load()), [right, wrong], [])


def _always(wrong: ast.expr) -> ast.expr:
    """The changed expression, noted as different whenever it is evaluated."""
    both = ast.Tuple([_note(ast.Constant(0), ast.Constant(1)), wrong], ast.Load())
    return ast.Subscript(both, ast.Constant(1), ast.Load())


def _noted(node: Any, changed: list[Any]) -> list[Any]:
    """The changed nodes, which call NOTE with the right and the wrong value when they are
    executed.
    """
    wrong = changed[0]
    if isinstance(node, ast.stmt):
        if isinstance(node, ast.If) and isinstance(wrong, ast.If):
            test = _note(ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node.test)), wrong.test)
            return [ast.If(test, node.body, node.orelse)]
        if isinstance(node, ast.For) and isinstance(wrong, ast.For):
            listed = ast.Call(ast.Name("list", ast.Load()), [node.iter], [])
            return [ast.For(node.target, _note(listed, wrong.iter), node.body, node.orelse)]
        # The name of the call before notes for itself.
        is_stale = isinstance(node, ast.Return)
        return (
            changed if is_stale else [ast.Expr(_note(ast.Constant(0), ast.Constant(1))), *changed]
        )
    if isinstance(node, ast.Slice):
        return [_note(*(_slice(one) for one in (node, wrong)))]
    if isinstance(node, ast.GeneratorExp):
        lists = (ast.ListComp(one.elt, one.generators) for one in (node, wrong))
        return [ast.Call(ast.Name("iter", ast.Load()), [_note(*lists)], [])]
    if isinstance(node, ast.Attribute):
        return [_always(wrong)]
    if isinstance(node, ast.Call):
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        if isinstance(wrong, ast.Call) and ast.dump(node.func) == ast.dump(wrong.func):
            both = ast.Tuple([_note(node.args[0], node.args[1]), wrong], ast.Load())
            return [ast.Subscript(both, ast.Constant(1), ast.Load())]
        if name in _TO_RECEIVER and name not in ("masked_fill", "clamp"):
            return [_always(wrong)]
    return [_note(node, wrong)]


def _slice(node: ast.Slice) -> ast.expr:
    bounds = [bound or ast.Constant(None) for bound in (node.lower, node.upper, node.step)]
    return ast.Call(ast.Name("slice", ast.Load()), bounds, [])


@dataclass(frozen=True, slots=True)
class _Place:
    node: Any
    parent: ast.AST
    field: str
    lines: range
    following: ast.stmt | None
    """The statement behind it in the same block."""


def _places(function: ast.FunctionDef) -> Iterator[_Place]:
    """The statements and expressions of a function that a mutant may change."""
    for number, statement in enumerate(function.body):
        yield from _within(statement, function, "body", range(0), _next(function.body, number))


def _next(block: list[Any], number: int) -> ast.stmt | None:
    return block[number + 1] if number + 1 < len(block) else None


def _within(
    node: Any, parent: ast.AST, field: str, lines: range, following: ast.stmt | None
) -> Iterator[_Place]:
    if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr):
        return
    if isinstance(node, ast.If) and (
        _is_guard(node) or _names(node.test) & _OF_THE_HARNESS or _only_notes(node)
    ):
        return
    if isinstance(node, ast.If | ast.IfExp) and _names(node.test) & _ON_A_GPU:
        return
    if isinstance(node, ast.AugAssign | ast.Assign) and _sets_a_note(node):
        return
    if isinstance(node, ast.stmt):
        # Of a block only the first lines, up to its body.
        body = getattr(node, "body", None)
        end = (
            body[0].lineno
            if isinstance(body, list) and body
            else (node.end_lineno or node.lineno) + 1
        )
        lines = range(node.lineno, max(end, node.lineno + 1))
        if isinstance(node, ast.Expr) and (
            isinstance(node.value, ast.Constant) or _is_of_the_harness(node.value)
        ):
            return
        if isinstance(node, ast.With) and any(
            _is_of_the_harness(item.context_expr) for item in node.items
        ):
            yield from _children(node, lines, ("body",))
            return
    if isinstance(node, ast.Call) and _is_of_the_harness(node):
        return
    if isinstance(node, ast.stmt | ast.expr):
        yield _Place(node, parent, field, lines, following)
    names = (
        ("body",)
        if isinstance(node, ast.FunctionDef)
        else tuple(n for n in node._fields if n != "annotation")
    )
    yield from _children(node, lines, names)


def _children(node: ast.AST, lines: range, names: tuple[str, ...]) -> Iterator[_Place]:
    for name in names:
        value = getattr(node, name)
        block = value if isinstance(value, list) else [value]
        for number, child in enumerate(block):
            if isinstance(child, ast.AST) and not isinstance(
                child, ast.expr_context | ast.operator | ast.cmpop
            ):
                following = _next(block, number) if isinstance(child, ast.stmt) else None
                yield from _within(child, node, name, lines, following)


def _is_guard(node: ast.If) -> bool:
    return len(node.body) == 1 and isinstance(node.body[0], ast.Raise) and not node.orelse


def _sets_a_note(node: ast.stmt) -> bool:
    """Whether a statement sets what the harness adds, and nothing of the engine."""
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AugAssign)
        else []
    )
    owners = [target.value if isinstance(target, ast.Subscript) else target for target in targets]
    return bool(owners) and all(_names(owner) & _OF_THE_HARNESS for owner in owners)


def _only_notes(node: ast.If) -> bool:
    """Whether a branch does nothing but note an event."""
    return not node.orelse and all(map(_sets_a_note, node.body))


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


def _is_of_the_harness(node: ast.AST) -> bool:
    """Whether a call is made on or by what the harness adds."""
    return isinstance(node, ast.Call) and bool(_names(node.func) & _OF_THE_HARNESS)


def _variants(node: Any, following: ast.stmt | None) -> Iterator[Change]:
    """The changes of one node."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node, following)
    elif isinstance(node, ast.Constant):
        if type(node.value) is int:
            yield from ((OFF_BY_ONE, [ast.Constant(node.value + step)]) for step in (1, -1))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _of_comparison(node)
    elif isinstance(node, ast.BinOp):
        if isinstance(node.op, _NOT_COMMUTATIVE):
            yield SWAPPED, [ast.BinOp(node.right, node.op, node.left)]
        elif isinstance(node.op, ast.Add):
            yield WRONG_INDEX, [node.left]
    elif isinstance(node, ast.BoolOp):
        yield (
            SKIPPED,
            [ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)],
        )
        yield from ((SKIPPED, [value]) for value in node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield (SKIPPED if isinstance(node.op, ast.Not) else DROPPED), [node.operand]
    elif isinstance(node, ast.IfExp):
        yield from ((SKIPPED, [value]) for value in (node.body, node.orelse))
    elif isinstance(node, ast.Slice):
        if node.lower is not None:
            yield WRONG_INDEX, [ast.Slice(None, node.upper, node.step)]
        if node.upper is not None:
            yield WRONG_INDEX, [ast.Slice(node.lower, None, node.step)]
    elif (
        isinstance(node, ast.Attribute)
        and node.attr in _OTHER_NAME
        and isinstance(node.ctx, ast.Load)
    ):
        operator, name = _OTHER_NAME[node.attr]
        yield operator, [ast.Attribute(node.value, name, ast.Load())]
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.ListComp | ast.GeneratorExp) and node.generators[0].ifs:
        changed = copy.deepcopy(node)
        changed.generators[0].ifs.pop()
        yield DROPPED, [changed]


def _of_comparison(node: ast.Compare) -> Iterator[Change]:
    kind = type(node.ops[0])
    if kind in _OTHER_COMPARISON:
        operator, other = _OTHER_COMPARISON[kind]
        yield operator, [ast.Compare(node.left, [other()], node.comparators)]
    if kind in (ast.Lt, ast.LtE, ast.Gt, ast.GtE):
        yield SWAPPED, [ast.Compare(node.comparators[0], node.ops, [node.left])]


def _of_call(node: ast.Call) -> Iterator[Change]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if isinstance(node.func, ast.Attribute) and name in _TO_RECEIVER:
        yield DROPPED, [node.func.value]
    elif name == "where" and len(node.args) == 3:
        yield from ((DROPPED, [arg]) for arg in node.args[1:])
    elif name in ("list", "reversed") and len(node.args) == 1:
        yield (DROPPED if name == "list" else ORDER), [node.args[0]]
    elif name == "sorted":
        yield ORDER, [ast.Call(ast.Name("list", ast.Load()), node.args[:1], [])]
    elif name in ("min", "max") and isinstance(node.func, ast.Name):
        other = ast.Name("max" if name == "min" else "min", ast.Load())
        yield SWAPPED, [ast.Call(other, node.args, node.keywords)]
    if len(node.args) > 1 and name not in ("min", "max", "where", "isinstance", "range", "getattr"):
        first, second, *rest = node.args
        if isinstance(first, ast.Name | ast.Attribute) and isinstance(
            second, ast.Name | ast.Attribute
        ):
            yield SWAPPED, [ast.Call(node.func, [second, first, *rest], node.keywords)]


def _of_statement(node: ast.stmt, following: ast.stmt | None) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        name = getattr(node.value.func, "attr", "")
        yield (
            (DROPPED if name.endswith("_") or name in ("clear", "zero") else SKIPPED),
            [ast.Pass()],
        )
    elif isinstance(node, ast.Assign | ast.AugAssign) and _acts(node):
        yield STALE, [ast.Pass()]
    elif (
        isinstance(node, ast.Return)
        and node.value is not None
        and not isinstance(node.value, ast.Constant)
    ):
        yield STALE, [ast.Return(ast.Call(ast.Name(KEEP_LAST, ast.Load()), [node.value], []))]
    elif isinstance(node, ast.If):
        for value in (True, False):
            yield SKIPPED, [ast.If(ast.Constant(value), node.body, node.orelse)]
    elif isinstance(node, ast.For):
        listed = ast.Call(ast.Name("list", ast.Load()), [node.iter], [])
        steps = (
            (ORDER, (None, None, -1)),
            (OFF_BY_ONE, (1, None, None)),
            (OFF_BY_ONE, (None, -1, None)),
        )
        for operator, bounds in steps:
            cut = ast.Slice(*(None if bound is None else ast.Constant(bound) for bound in bounds))
            taken = ast.Subscript(listed, cut, ast.Load())
            yield operator, [ast.For(node.target, taken, node.body, node.orelse)]
    elif isinstance(node, ast.Continue | ast.Break):
        yield SKIPPED, [ast.Pass()]
    if (
        following is not None
        and _acts(node)
        and _acts(following)
        and not _are_independent(node, following)
    ):
        yield ORDER, [following, node]


def _acts(node: ast.stmt) -> bool:
    """Whether a statement changes memory, so that its place matters.

    A new local name alone does not.
    """
    if isinstance(node, ast.Assign):
        return not isinstance(node.targets[0], ast.Name | ast.Tuple)
    return isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )


def _are_independent(*both: ast.stmt) -> bool:
    """Whether two statements set different attributes of `self`, and neither value depends on the
    other: no order.
    """
    values, targets, calls = [], [], 0
    for one in both:
        if not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Attribute):
            return False
        values.append(one.value)
        targets.append(ast.unparse(one.targets[0]))
        calls += any(isinstance(n, ast.Call) for n in ast.walk(one.value))
    is_own = all(target.startswith("self.") and target.count(".") == 1 for target in targets)
    return (
        is_own
        and targets[0] != targets[1]
        and calls < 2
        and not any("self" in _names(value) for value in values)
    )
