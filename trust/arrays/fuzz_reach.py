"""What `fuzz` draws: how many of the draws of a seed have each property. No case runs.

Prints the table of `docs/data/conditions.md`: `python -m trust.arrays.fuzz_reach --draws 5000 --seed 1`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any

from harness.core.ops import OPS, PAGE_SIZE
from harness.report.markdown import table
from harness.scenario.draws import Draw, draw

Given = dict[str, Any]
LONG_PAGES, MANY_REQUESTS = 32, 32


def _lengths(given: Given) -> list[int]:
    return list(given.get("seq_lens") or given.get("context_lens") or ())


PROPERTIES: dict[str, Callable[[Draw, Given], bool]] = {
    "engine": lambda drawn, given: drawn.op is None,
    **{
        f"`{spec.name}`": lambda drawn, given, op=spec.name: drawn.op == op  # type: ignore[misc]
        for spec in OPS
        if spec.name != "mla_decode_plan"
    },
    "a plan (`mla_decode_plan`)": lambda drawn, given: (
        drawn.op == "mla_decode" and given["planned"]
    ),
    "a layout that is not contiguous": lambda drawn, given: (
        given.get("layout", "contiguous") != "contiguous"
    ),
    "an offset past 2^31": lambda drawn, given: bool(
        given.get("high_blocks")
        or given.get("page_stride")
        or given.get("row_stride")
        or given.get("layout") == "large"
    ),
    "more than one launch": lambda drawn, given: given.get("launches", 1) > 1,
    "a graph": lambda drawn, given: given.get("graph", "none") != "none",
    "`lse_gap`": lambda drawn, given: bool(given.get("lse_gap")),
    "poison in neighbours (`kv.neighbor`)": lambda drawn, given: (
        "kv.neighbor" in drawn.poison.sites
    ),
    f"a row of more than {LONG_PAGES} pages": lambda drawn, given: (
        max(_lengths(given), default=0) > LONG_PAGES * PAGE_SIZE
    ),
    f"more than {MANY_REQUESTS} requests": lambda drawn, given: (
        len(_lengths(given)) > MANY_REQUESTS
    ),
    "pages in an order of their own, or shared": lambda drawn, given: bool(
        set(given.get("page_order", ())) - {"random"}
        or set(given.get("slot_order", "random")) - set("random")
    ),
    "scores or rows that are not plain": lambda drawn, given: bool(
        set(given.get("values", ())) - {"plain"}
    ),
    "128 heads or more": lambda drawn, given: (
        drawn.op is not None and given.get("num_heads", 0) >= 128
    ),
    "records of V3.2 (`fp8_ds_mla`, `indexer_*`)": lambda drawn, given: (
        given.get("kv") == "fp8_ds_mla" or str(given.get("kv")).startswith("indexer")
    ),
    "attention over `fp8_ds_mla`": lambda drawn, given: (
        drawn.op == "mla_decode_sparse" and given["kv"] == "fp8_ds_mla"
    ),
    "2,048 tokens or more chosen": lambda drawn, given: given.get("topk", 0) >= 2048,
    "an engine with sparse layers": lambda drawn, given: (
        "sparse" in given.get("layers", ()) if drawn.op is None else False
    ),
    "ranks of context, or of experts": lambda drawn, given: (
        given.get("context_ranks", 1) > 1 or given.get("expert_ranks", 1) > 1
    ),
    "rows of other data-parallel ranks": lambda drawn, given: bool(given.get("dp_rank_tokens")),
    "drafts": lambda drawn, given: bool(given.get("speculative_tokens")),
}
"""What a draw can have -> whether it has it, from the draw and its parameters."""


def reached(seed: int, draws: int) -> Counter[str]:
    """How many of the first `draws` have each of PROPERTIES."""
    found: Counter[str] = Counter()
    for number in range(draws):
        drawn = draw(f"{seed}:{number}")
        given = drawn.params.model_dump()
        found.update(name for name, has in PROPERTIES.items() if has(drawn, given))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    counts = reached(given.seed, given.draws)
    rows = [(name, f"{counts[name]:,}") for name in PROPERTIES]
    print(table((f"of {given.draws:,} draws", "have it"), rows))


if __name__ == "__main__":
    main()
