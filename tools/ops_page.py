"""docs/ops.md and docs/reference.md: the tables of the code."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.catalog import KERNELS, ORACLES, SITES
from harness.core.contract import LETTERS, Arg, Keyword, Op, Out
from harness.core.corruptions import corruptions
from harness.core.ops import OPS
from harness.core.shapes import NAMED, SIZES
from harness.report.markdown import table


def ops() -> str:
    letters = table(
        ("letter", "means"), [(f"`{letter}`", words) for letter, words in LETTERS.items()]
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

Written by `python tools/pages.py` from `harness/ops/*/contract.py` and `harness/core/shapes.py`. A kernel under test implements one of these ops: it gets the positional arguments as tensors in this order, the others by keyword, and returns the outputs as a tuple. It allocates its outputs with torch. Every `lse` is a natural logarithm. A kernel without one declares `gives_lse=False` and returns the other outputs.

The arguments have the types, shapes and ranges that stand here; the last dimension of each is dense, and rows and pages may have a stride. A kernel need not check that. The scenarios `reject-*` call it with corrupted ones: a call that is legal must be right, and one that breaks the contract is judged only if the kernel declares `checks` ([judge-your-kernel.md](judge-your-kernel.md#calls-that-break-the-contract)).

R is the largest power of two below D, so a kernel that sees only D = 576 knows R = 512. A kernel with the argument `kv_lora_rank` is given R.

{letters}

{chr(10).join(part for op in OPS for part in _section(op))}
## Named shapes

`shapes="deepseek"` of `@kernel` stands for a row of this table; `shapes={{"like": "deepseek", "num_heads": 16}}` changes a size. A size is a value or a list of values, `heads_multiple_of` a number. A case of other sizes is adapted, and its id says so (`shapes=deepseek`); what cannot be adapted (`query_len`, `page_size`, `layout`, `dtype`) is skipped with the reason.

{sets}
"""


def _section(op: Op) -> Iterator[str]:
    yield f"## {op.name}\n"
    yield f"`{op.signature}`\n"
    yield f"{op.description}\n"
    if op.letters:
        yield (
            "Here "
            + ", ".join(f"{letter} is {what}" for letter, what in op.letters.items())
            + ".\n"
        )
    parts: dict[str, Arg | Keyword | Out] = {**op.arguments, **op.keyword_arguments}
    rows = [(f"`{name}`", *_facts(part)) for name, part in parts.items()]
    rows += [(f"returns `{out.name}`", *_facts(out)) for out in op.outputs]
    yield table(("argument", "shape and type", "what is more"), rows) + "\n"
    rows = []
    if found := corruptions(op.name).values():
        for what, is_legal in (
            ("legal, so the result is defined", True),
            ("breaks the contract", False),
        ):
            named = (f"`{one.name}` ({one.argument})" for one in found if one.legal == is_legal)
            rows.append((f"[corrupted](reject-or-correct.md): {what}", ", ".join(named) or "none"))
    if op.sizes:
        rows.append(("sizes to declare", ", ".join(f"`{size}`" for size in op.sizes)))
    yield table(("", ""), rows) + "\n"


def _facts(part: Arg | Keyword | Out) -> tuple[str, str]:
    """Shape and type of an argument or an output, and what else its contract says."""
    if isinstance(part, Keyword):
        optional = "a kernel need not have it" if part.is_optional else ""
        return f"{part.type}", "; ".join(filter(None, (part.note, optional)))
    shape = f"[{', '.join(part.shape.split())}] {part.dtype}" if part.shape else part.dtype
    if isinstance(part, Out):
        return shape, "; ".join(filter(None, (part.note, f"unwritten: `{part.site}`")))
    notes = [part.note] if part.note else []
    notes += [f"`{site}`: {what}" for site, what in part.unowned.items()]
    return shape, "; ".join(notes)


def reference() -> str:
    kernels = [(op, [spec for spec in KERNELS if spec.op == op.name]) for op in OPS]
    rows = [
        (
            f"`{op.name}`",
            ", ".join(f"`{spec.short_name}`" for spec in specs),
            ", ".join(sorted({device for spec in specs for device in spec.devices})),
            (
                ", ".join(dict.fromkeys(kv for spec in specs for kv in spec.kv))
                if "cache" in op.signature
                else "none"
            ),
        )
        for op, specs in kernels
    ]
    return f"""# Reference

Written by `python tools/pages.py` from the tables in `harness/core/`. [ops.md](ops.md) has the contract of each op, [bugs.md](bugs.md) the injected bugs, [glossary.md](glossary.md) the words.

## Oracles

{table(("oracle", "passes when"), [(f"`{one.name}`", one.summary) for one in ORACLES])}

## Sites

{table(("site", "memory"), [(f"`{one.name}`", one.summary) for one in SITES])}

## Kernels

{table(("op", "kernels", "devices", "KV cache"), rows)}

Triton kernels run on a CPU under `TRITON_INTERPRET=1`. Kernels of vLLM and FlashInfer need the package. `mla-harness doctor` lists what this machine can run, and why not. On a CPU a graph is a recording of kernel launches on fixed addresses: its replay runs no Python and allocates nothing, and it does not see a tensor that replaced a captured one.
"""
