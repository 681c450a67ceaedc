"""docs/ops.md: the contract of each op, from `harness/ops/*/contract.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from harness.core.contract import LETTERS, Arg, Keyword, Op, Out
from harness.core.corruptions import corruptions
from harness.core.ops import OPS
from harness.core.shapes import NAMED, SIZES
from harness.report.markdown import table

_USES = Counter(
    pair
    for op in OPS
    for pair in {pair for part in op.arguments.values() for pair in part.unowned.items()}
)
"""Site and what it is in an op -> how many ops say the same."""
COMMON = {site: what for (site, what), count in reversed(_USES.most_common()) if count > 1}
"""Sites that mean the same in several ops: the page says once what they are. Of two meanings of a
site this is the more frequent one.
"""


def ops() -> str:
    letters = table(
        ("letter", "means"), [(f"`{letter}`", words) for letter, words in LETTERS.items()]
    )
    common = table(
        ("site", "what it is"), [(f"`{site}`", what) for site, what in sorted(COMMON.items())]
    )
    sizes = (*SIZES["mla_decode"][:5], "qk_head_dim", "v_head_dim", "dtype")
    words = (
        [one.words(size) if getattr(one, size) else "any" for size in sizes]
        for one in NAMED.values()
    )
    sets = table(
        ("set", *sizes), [(f"`{name}`", *row) for name, row in zip(NAMED, words, strict=True)]
    )
    return f"""# Ops

For authors of kernels: what each op promises. Written by `python tools/pages.py ops`.

- A kernel implements one of these ops. It gets the positional arguments as tensors in this order, the others by keyword.
- It returns the outputs as a tuple, which it allocates with torch.
- Every `lse` is a natural logarithm. A kernel without one declares `gives_lse=False` and returns the other outputs.
- The last dimension of each argument is dense. Rows and pages may have a stride.
- Arguments have the types, shapes and ranges that stand here. A kernel need not check that, unless it declares `checks` ([calls that break the contract](judge-your-kernel.md#calls-that-break-the-contract)).
- R is the largest power of two below D, so a kernel that sees only D = 576 knows R = 512.
- A kernel need not have the arguments that are marked as optional.

{letters}

An argument may have parts that hold anything. They must not influence a live result.
The name of a [site](reference.md#sites) behind an argument says which. These mean the same in several ops:

{common}

A site behind an output is the memory that a kernel leaves unwritten.

{chr(10).join(part for op in OPS for part in _section(op))}
## Corrupted calls

[reject-or-correct.md](reject-or-correct.md) says how they are judged.

{_corruptions()}

## Named shapes

`shapes="deepseek"` of `@kernel` stands for a row of this table; `shapes={{"like": "deepseek", "num_heads": 16}}` changes a size.
A size is a value or a list of values, `heads_multiple_of` a number.
A case of other sizes is adapted, and its id says so (`shapes=deepseek`).
What cannot be adapted (`query_len`, `page_size`, `layout`, `dtype`) is skipped with the reason.

{sets}
"""


def _section(op: Op) -> Iterator[str]:
    yield f"## {op.name}\n"
    yield f"`{op.signature}`\n"
    yield f"{op.description}\n"
    if op.letters:
        # One sentence for each four letters: a layer has seven.
        meant = [f"{letter} is {what}" for letter, what in op.letters.items()]
        sentences = [
            f"Here {', '.join(part)}."
            for part in (meant[at : at + 4] for at in range(0, len(meant), 4))
        ]
        yield " ".join(sentences) + "\n"
    parts: dict[str, Arg | Keyword | Out] = {**op.arguments, **op.keyword_arguments}
    rows = [(f"`{name}`", *_facts(part)) for name, part in parts.items()]
    rows += [(f"returns `{out.name}`", *_facts(out)) for out in op.outputs]
    yield table(("argument", "shape and type", "more"), rows) + "\n"
    if op.sizes:
        yield f"Sizes to declare: {', '.join(f'`{size}`' for size in op.sizes)}.\n"


def _facts(part: Arg | Keyword | Out) -> tuple[str, str]:
    """Shape and type of an argument or an output, and what else its contract says."""
    if isinstance(part, Keyword):
        optional = "optional" if part.is_optional else ""
        return f"{part.type}", "; ".join(filter(None, (part.note, optional)))
    shape = f"[{', '.join(part.shape.split())}] {part.dtype}" if part.shape else part.dtype
    notes = [part.note] if part.note else []
    if isinstance(part, Out):
        notes.append(f"`{part.site}`")
    else:
        notes += [
            f"`{site}`" if COMMON.get(site) == what else f"`{site}`: {what}"
            for site, what in part.unowned.items()
        ]
    return shape, "; ".join(notes)


def _corruptions() -> str:
    """Op -> its corrupted calls: those of which the result is defined, and the others."""
    rows = []
    for op in OPS:
        if found := corruptions(op.name).values():
            legal = ", ".join(f"`{one.name}`" for one in found if one.legal)
            illegal = ", ".join(f"`{one.name}`" for one in found if not one.legal)
            rows.append((f"`{op.name}`", legal, illegal))
    return table(("op", "legal: the result is defined", "breaks the contract"), rows)
