"""The only things that a template may print: literals, comments, and code of this project.

So a name or a sentence of a YAML file never becomes code. The code is the source of a kernel with
everything that it uses from this project, joined in one place, so the script imports no module of
this project. For an engine's kernel it is the few lines that call the engine.
"""

from __future__ import annotations

import ast
import importlib.util
import keyword
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined

from harness.core.errors import HarnessError, InputError
from harness.core.literals import Code, literal
from harness.core.ops import OPS_FOLDER

WIDTH = 120
ROOM = WIDTH - 4
MARKER = "  # BUG: remove this line and it passes"
"""The end of the script's one line that is the bug."""
DROPPED = "\x00dropped\x00"
"""Printed at a hook of another bug."""

_MARK = re.compile(r"(harness\.)?(seam|kernel)\(")
_TOP_LEVEL = re.compile(r"def |class |if __name__")
OWN = re.compile(r"(harness|mla_harness_\w+)(\.|$)")
"""Modules of this project: the harness, and the adapters of engines."""


def long_text(text: str) -> Code:
    """A text as a literal, in several pieces if it is too long for one line."""
    if len(literal(text)) <= ROOM // 2:
        return literal(text)
    pieces = [text[i : i + ROOM // 2] for i in range(0, len(text), ROOM // 2)]
    return Code("(\n" + "".join(f"    {literal(piece)}\n" for piece in pieces) + ")")


def comment(text: str) -> list[str]:
    """`text` as comment lines: one paragraph of printable ASCII, so that nothing in it can end a
    comment.
    """
    # `ascii` escapes a single quote if the text has a double one too.
    plain = " ".join(ascii(" ".join(text.split()))[1:-1].replace("\\'", "'").split())
    breakable = " ".join(piece for word in plain.split() for piece in _pieces(word))
    lines = textwrap.wrap(breakable, ROOM, break_on_hyphens=False)
    return [f"# {line}" for line in lines] or ["#"]


def _pieces(word: str) -> list[str]:
    """A word too long for a line, such as a case id, cut after commas; any other word as it is."""
    pieces = [""]
    for part in re.findall(r"[^,]*,|[^,]+", word) if len(word) > ROOM else [word]:
        if len(pieces[-1]) + len(part) > ROOM:
            pieces.append("")
        pieces[-1] += part
    return [piece for piece in pieces if piece]


def identifier(text: str, fallback: str = "case") -> Code:
    """`text` as part of a Python name: letters, digits and underscores."""
    name = re.sub(r"[^a-z0-9]+", "_", text.lower().encode("ascii", "ignore").decode()).strip("_")
    return Code(name[:80] or fallback)


def name(text: str) -> Code:
    """`text` as code. Raises HarnessError unless it is a Python name."""
    if not text.isidentifier() or keyword.iskeyword(text) or not text.isascii():
        raise HarnessError(f"{text!r} is no name that a script can use")
    return Code(text)


def only_code(value: Any) -> Any:
    """`value`, if a template may print it.

    Raises HarnessError for other text (a mistake in a template).
    """
    if isinstance(value, (Code, int, float)):
        return value
    raise HarnessError(
        f"a template of a script prints {type(value).__name__} {value!r} as it is; pass it through"
        " `py`"
    )


def templates() -> Environment:
    """The templates of scripts.

    They print code alone, and any other value through the filters `py` and `long_text`.
    """
    found = Environment(
        loader=ChoiceLoader(
            [PackageLoader("harness.diagnose.script"), FileSystemLoader(OPS_FOLDER)]
        ),
        undefined=StrictUndefined,
        finalize=only_code,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"py": literal, "long_text": long_text}
    return found


def render_script(template: Path, code: Mapping[str, str], **values: Any) -> str:
    """The script that a template makes: a file in the language of Jinja.

    It prints the texts of `code` as they are, and other values through the filter `py`, which
    makes literals of numbers, texts, lists and dicts. Raises HarnessError if it prints another
    value as it is.
    """
    pieces = {name: Code(text) for name, text in code.items()}
    found = templates().from_string(template.read_text(encoding="utf-8"))
    return found.render(pieces, **values)


def without_bug(text: str) -> str:
    """A script without its marked line. Raises HarnessError unless there is exactly one."""
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if not line.rstrip("\n").endswith(MARKER)]
    if len(kept) != len(lines) - 1:
        raise HarnessError(
            f"a script must have one line that is the bug, this one has {len(lines) - len(kept)}"
        )
    return "".join(kept)


def tidy(text: str) -> str:
    """A rendered script without hooks of other bugs and trailing blanks, with the empty lines of
    PEP 8.
    """
    found: list[str] = []
    for line in (line.rstrip() for line in text.splitlines() if DROPPED not in line):
        if not line and (not found or found[-2:] == ["", ""]):
            continue
        follows_block = found and found[-1].startswith(" ") and line and line[0] not in " )]}"
        if follows_block or _TOP_LEVEL.match(line):
            while found and not found[-1]:
                found.pop()
            found += ["", ""]
        found.append(line)
    return "\n".join(found).strip("\n") + "\n"


def without_dead_code(text: str) -> str:
    """A script without definitions, constants, imports and optional keywords that nothing in it
    uses.
    """
    # One removal at a time, as it makes the line numbers of the tree wrong, and may leave other
    # names without a use.
    while True:
        tree = ast.parse(text)
        body = tree.body
        lines = text.splitlines()
        given = {
            keyword.arg
            for call in ast.walk(tree)
            if isinstance(call, ast.Call)
            for keyword in call.keywords
        }
        for node in body:
            # A function that runs by itself is used.
            names = {
                name for name in _bound_by(node) if name != "check" and not name.startswith("test_")
            }
            others = (child for other in body if other is not node for child in ast.walk(other))
            kept = names & {child.id for child in others if isinstance(child, ast.Name)}
            if names and not kept:
                del lines[node.lineno - 1 : node.end_lineno]
                break
            if isinstance(node, (ast.Import, ast.ImportFrom)) and kept != names:
                node.names = [
                    alias
                    for alias in node.names
                    if (alias.asname or alias.name.partition(".")[0]) in kept
                ]
                lines[node.lineno - 1 : node.end_lineno] = [ast.unparse(node)]
                break
            # The signature of a kernel under test is its own.
            if not isinstance(node, ast.FunctionDef) or f"= {node.name}{MARKER}" in text:
                continue
            if _drop_keywords(node, given):
                lines[node.lineno - 1 : node.body[0].lineno - 1] = [_signature(node)]
                break
        else:
            return text
        text = "\n".join(lines) + "\n"


def _drop_keywords(node: ast.FunctionDef, given: set[str | None]) -> bool:
    """Drop the optional keywords that no call gives and the function does not use; returns whether
    there were any.
    """
    used = given | {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    pairs = list(zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))
    kept = [
        (argument, default)
        for argument, default in pairs
        if default is None or argument.arg in used
    ]
    node.args.kwonlyargs = [argument for argument, _ in kept]
    node.args.kw_defaults = [default for _, default in kept]
    return len(kept) < len(pairs)


def _bound_by(node: ast.stmt) -> set[str]:
    """The names that a top-level definition, constant or import binds."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    named = (
        child for target in targets for child in ast.walk(target) if isinstance(child, ast.Name)
    )
    return {child.id for child in named if isinstance(child.ctx, ast.Store)}


@dataclass(slots=True)
class Inlined:
    """Code for a script: its imports, its text, and the name of the function to call."""

    name: Code = field(default_factory=lambda: Code(""))
    imports: list[Code] = field(default_factory=list)
    code: Code = field(default_factory=lambda: Code(""))
    from_torch: Code = field(default_factory=lambda: Code(""))
    """Names that it imports from torch."""


def inline(target: str) -> Inlined:
    """The source of the function `target` ("module:name") and of all that it uses; one line of each
    docstring.

    Raises InputError if a source cannot be put into a script.
    """
    joined = _Joined()
    joined.add(*_split(target))
    first = [f"import {module}" for module in sorted(joined.modules - {"torch"})]
    own = joined.names.pop("torch", set())
    rest = [
        f"from {module} import {', '.join(sorted(names))}"
        for module, names in sorted(joined.names.items())
    ]
    return Inlined(
        name=name(_split(target)[1]),
        imports=[Code(line) for line in first + rest],
        code=Code("\n\n\n".join(joined.parts)),
        from_torch=Code(", ".join(sorted(own))),
    )


class _Joined:
    """Definitions from several modules. Each follows the definitions that it uses."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.seen: set[tuple[str, str]] = set()
        self.modules: set[str] = set()
        self.names: dict[str, set[str]] = {}
        self._taken: dict[str, str] = {}

    def add(self, module: str, definition: str) -> None:
        if (module, definition) in self.seen:
            return
        self.seen.add((module, definition))
        source = _read(module)
        if definition in source.imported:
            self._add_import(*source.imported[definition], definition)
            return
        node = source.defined.get(definition)
        if node is None:
            raise InputError(
                f"{module} does not define {definition}, so its source cannot be put into a script"
            )
        if self._taken.setdefault(definition, module) != module:
            raise InputError(
                f"{module} and {self._taken[definition]} both define {definition}; a script can"
                " hold one"
            )
        if isinstance(node, ast.FunctionDef):
            # Marks of seams and of plug-ins' kernels.
            node.decorator_list = [
                mark for mark in node.decorator_list if not _MARK.match(ast.unparse(mark))
            ]
        _without_annotations(node)
        for used in sorted({child.id for child in ast.walk(node) if isinstance(child, ast.Name)}):
            if used != definition and (used in source.defined or used in source.imported):
                self.add(module, used)
        # Behind what it uses: a script is read from the top.
        if (text := source.text_of(node)) not in self.parts:
            # One statement may bind two names.
            self.parts.append(text)

    def _add_import(self, module: str, attribute: str, alias: str) -> None:
        if not attribute:
            self.modules.add(
                module if alias == module.partition(".")[0] else f"{module} as {alias}"
            )
        elif OWN.match(module):
            if attribute != alias:
                raise InputError(
                    f"{module}.{attribute} is imported as {alias}, which a script cannot follow"
                )
            self.add(module, attribute)
        elif module != "__future__":
            self.names.setdefault(module, set()).add(
                attribute if attribute == alias else f"{attribute} as {alias}"
            )


def _split(target: str) -> tuple[str, str]:
    module, _, attribute = target.rpartition(":")
    return module, attribute


@dataclass(frozen=True, slots=True)
class _Source:
    """The definitions, imports (name -> module and attribute, empty for a module) and lines of a
    module.
    """

    defined: dict[str, ast.stmt]
    imported: dict[str, tuple[str, str]]
    lines: list[str]

    def text_of(self, node: ast.stmt) -> str:
        """The lines of a definition, without annotations of arguments and with one line of each
        docstring.
        """
        first = min(
            [node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]
        )
        lines = dict(enumerate(self.lines[first - 1 : node.end_lineno], first))
        for inner in ast.walk(node):
            if (
                isinstance(inner, (ast.FunctionDef, ast.ClassDef))
                and ast.get_docstring(inner) is not None
            ):
                _cut(lines, inner.body[0])
            if isinstance(inner, ast.FunctionDef):
                # The signature is written anew in one piece, without annotations.
                for number in range(inner.lineno + 1, inner.body[0].lineno):
                    del lines[number]
                lines[inner.lineno] = _signature(inner)
        return "\n".join(lines.values())


def _cut(lines: dict[int, str], docstring: ast.stmt) -> None:
    for number in range(docstring.lineno + 1, (docstring.end_lineno or docstring.lineno) + 1):
        del lines[number]
    if docstring.end_lineno != docstring.lineno:
        line = lines[docstring.lineno]
        lines[docstring.lineno] = (
            line if len(line) + 3 <= WIDTH else line[: WIDTH - 6] + "..."
        ) + '"""'


def _signature(node: ast.FunctionDef) -> str:
    """`def name(arguments):` on one line, or on three if it is too long."""
    indent = " " * node.col_offset
    arguments = ast.unparse(node.args)
    line = f"{indent}def {node.name}({arguments}):"
    if len(line) <= WIDTH:
        return line
    return f"{indent}def {node.name}(\n{indent}    {arguments}\n{indent}):"


def _without_annotations(node: ast.stmt) -> None:
    """Drop annotations, which would need further imports in a script."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef):
            inner.returns = None
            arguments = inner.args
            rest = [
                argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None
            ]
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest):
                argument.annotation = None


def kernel_in(file: str, op: str, short_name: str) -> str:
    """The target "file:function" of the kernel that a plug-in's file registers for an op.

    Raises InputError.
    """
    words = (f"op='{op}'", f"name='{short_name}'")
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        if any(all(word in ast.unparse(mark) for word in words) for mark in marks):
            return f"{file}:{node.name}"  # type: ignore[attr-defined]
    raise InputError(
        f"{file}: no function at its top level is decorated with @kernel(op={op!r},"
        f" name={short_name!r})"
    )


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, with those for type checkers: so `harness.api` says where the
    code of its names is.
    """
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body
        else:
            yield node


def _read(module: str) -> _Source:
    """The source of a module, by its dotted name or by the path of its file."""
    spec = None if module.endswith(".py") else importlib.util.find_spec(module)
    origin = module if module.endswith(".py") else spec and spec.origin
    if not origin:
        raise InputError(f"{module} has no source file")
    text = Path(origin).read_text(encoding="utf-8")
    source = _Source({}, {}, text.splitlines())
    for node in _statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = {
                alias.asname or alias.name.partition(".")[0]: (alias.name, "")
                for alias in node.names
            }
            source.imported.update(names)
        elif isinstance(node, ast.ImportFrom):
            names = {
                alias.asname or alias.name: (node.module or "", alias.name) for alias in node.names
            }
            source.imported.update(names)
        else:
            source.defined.update(dict.fromkeys(_bound_by(node), node))
    return source
