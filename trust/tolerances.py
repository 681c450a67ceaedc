"""Print docs/data/tolerances.md, what right kernels need of each bound: python -m trust.tolerances
Then `python tools/records.py docs/data/tolerances.md` puts its long tables into files.

`--draws N` random cases on the built-in kernels and as many on sound variants, which differ in
splits, orders of sums and roundings; and the record and sparse scenarios under `--seeds S` seeds. A
judged tensor is one sample.
"""

from __future__ import annotations

import argparse
import math
import platform
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case, Job
from harness.evidence.compare import compare
from harness.evidence.observed import Observed
from harness.evidence.pairs import Pair
from harness.evidence.records import Run
from harness.evidence.thresholds import BOUNDS, Bound, bound
from harness.judge.run_case import why_not
from harness.judge.target import target_of
from harness.kernels.call import without_interception
from harness.ops.index_logits import inputs as index_logits_inputs
from harness.ops.index_logits import reference as index_logits_reference
from harness.ops.index_logits.kernels.dense import load_keys
from harness.ops.index_logits.params import IndexLogitsParams
from harness.report.markdown import table
from harness.scenario.drawn import control_cases, drawn_cases
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios
from harness.scenario.override import KernelOverride

Samples = dict[str, list[tuple[float, float]]]
"""Name of a bound -> for each judged tensor the largest share of the bound that an element and a
row used.
"""

LEAST_SAMPLES = 30
QUANTILE = 0.999
NOT_DRAWN = (
    "record-formats",
    "record-readers",
    "sparse-kernel",
    "sparse-layouts",
    "activation-scales",
    "decode-kernel",
    "index-logits",
    "index-logits-conditions",
)
"""Scenarios with bounds that no draw uses."""


PAGE = Path(__file__).parents[1] / "docs" / "data" / "tolerances.md"


def cases(num_draws: int, num_seeds: int) -> Iterator[Case]:
    """Random cases on built-in kernels and on sound variants, and the cases of other bounds."""
    scenarios = {scenario.name: scenario for scenario in load_scenarios(None)}
    drawing = scenarios["fuzz"].model_copy(
        update={"fuzz": scenarios["fuzz"].fuzz.model_copy(update={"examples": num_draws})}
    )
    yield from drawn_cases(drawing, 1000)
    yield from control_cases(drawing, 1000, num_draws)
    for seed in range(num_seeds):
        for name in NOT_DRAWN:
            yield from expand(scenarios[name], seed=seed)
            if "sparse" in name or "decode" in name:
                yield from expand(
                    scenarios[name], seed=seed, override=KernelOverride.named(f"sound-{seed}")
                )


def measured(found: Iterable[Case], workers: int) -> Samples:
    """What the cases need. Kernels that cannot run here are left out."""
    every, samples = list(found), defaultdict(list)
    with get_context("fork").Pool(workers) as pool:
        for part in pool.imap_unordered(
            _measured, [every[first :: 8 * workers] for first in range(8 * workers)]
        ):
            for name, shares in part.items():
                samples[name] += shares
    return samples


def _measured(found: Iterable[Case]) -> Samples:
    samples: Samples = defaultdict(list)
    for case in found:
        torch.manual_seed(case.seed)
        if case.op == "index_logits" and case.params_as(IndexLogitsParams).kv == "indexer_planar":
            _note_short_registers(case, samples)
        if not why_not(case, "cpu"):
            with without_interception():
                _note(
                    target_of(Job(key=case.id, case=case)).run(Poison("zeros", frozenset())),
                    samples,
                )
    return samples


def _note(run: Run, samples: Samples) -> None:
    for observed in run.all(Observed):
        for made in observed.decisions:
            for name, below in zip(made.layers, made.shortfalls, strict=True):
                share = max(float(below.max()), 0.0) / made.margin
                samples[f"{'experts' if 'router' in name else 'tokens'} {made.margin:g}"].append(
                    (share, 0.0)
                )
    judged = [
        (o.bound, o.tensor, o.expected, o.live, o.slack)
        for o in run.all(Observed)
        if o.expected is not None
    ]
    judged += [
        (pair.bound, pair.second, pair.first.double(), pair.live, None) for pair in run.all(Pair)
    ]
    for name, got, want, live, slack in judged:
        if name and want is not None and want.dtype.is_floating_point:
            samples[name].append(_shares(got, want, live, name, slack))


def _note_short_registers(case: Case, samples: Samples) -> None:
    """What index logits need if a GPU adds up each 32 products in registers that hold 13 bits below
    the largest.
    """
    given = index_logits_inputs.draw(case.params_as(IndexLogitsParams), case.seed)
    want, defined = index_logits_reference.expected(given)
    blocks = given.block_table.long().clamp(max=len(given.kv_cache) - 1)
    keys = load_keys(given.kv_cache, blocks).flatten(1, 2)
    products = given.q.float()[:, :, :, None] * keys[:, None, None]
    groups = products.unflatten(-1, (-1, 32))
    unit = torch.exp2(groups.abs().amax(-1, keepdim=True).log2().floor() - 13)
    scores = ((groups / unit).trunc() * unit).nan_to_num().sum((-1, -2)).relu()
    logits = (scores * given.weights[..., None]).sum(2).flatten(0, 1).masked_fill(~defined, 0.0)
    name = "index_logits.indexer_planar.in_fp8"
    samples[name].append(_shares(logits, want, defined.any(dim=1), name))


def _shares(
    got: torch.Tensor,
    want: torch.Tensor,
    live: torch.Tensor,
    name: str,
    slack: torch.Tensor | None = None,
) -> tuple[float, float]:
    """The largest share of a bound that an element of [T, ...] used, and a row, of the rows live
    [T] bool.
    """
    row = bound(name)
    by_element = compare(got, want, live, replace(row, relative_l2=math.inf), slack).used
    return by_element, compare(got, want, live, replace(row, ulps=math.inf), slack).used


def quantile(values: list[float]) -> float:
    """The 99.9 % quantile; of fewer than a thousand values the largest."""
    return (
        max(values)
        if len(values) < 1000
        else statistics.quantiles(values, n=1000, method="inclusive")[-1]
    )


def _line(row: Bound, samples: list[tuple[float, float]]) -> list[str]:
    limits = [
        f"`{row.name}`",
        str(row.dtype).removeprefix("torch."),
        f"{row.ulps:g}",
        f"{row.floor:g}",
        f"{row.relative_l2:g}",
    ]
    if len(samples) < LEAST_SAMPLES:
        return [*limits, str(len(samples)), *["not measured"] * 2, "", "", row.summary]
    shares = [quantile([sample[i] for sample in samples]) for i in (0, 1)]
    factors = [f"{1 / share:.1f}" if share else "exact" for share in shares]
    return [
        *limits,
        str(len(samples)),
        *(f"{share:.3f}" for share in shares),
        *factors,
        row.summary,
    ]


def _tie(name: str, samples: list[tuple[float, float]]) -> list[str]:
    share = quantile([share for share, _ in samples])
    return [
        *name.split(),
        str(len(samples)),
        f"{share:.3f}",
        f"{1 / share:.1f}" if share else "no near tie",
    ]


def document(num_draws: int, num_seeds: int, workers: int) -> str:
    samples = measured(cases(num_draws, num_seeds), workers)
    head = (
        "bound",
        "type",
        "ulps",
        "floor",
        "L2",
        "samples",
        "element, 99.9 %",
        "row, 99.9 %",
        "factor",
        "factor",
        "reason",
    )
    rows = [_line(row, samples.get(row.name, [])) for row in BOUNDS]
    ties = [_tie(name, samples[name]) for name in sorted(samples) if " " in name]
    return f"""# Tolerances, measured

A record, for whoever asks why a [bound](../tolerances.md) is as it is. Written by `python -m trust.tolerances --draws {num_draws} --seeds {num_seeds}` on {platform.machine()}, CPU only, torch {torch.__version__.partition("+")[0]}, from the kernels of the harness and sound variants of them.

A judged tensor is one sample: the worst share of the bound that one of its elements used, and one of its rows. The table has the 99.9 % quantiles of these shares, the largest share with fewer than a thousand samples, and the factors that the bound leaves on top of them. A factor above 3 needs a reason.

{table(head, rows)}

## Decisions

One request is one sample.

{table(("decision", "margin", "samples", "share of the margin, 99.9 %", "factor"), ties)}
"""


def with_other_sections(measured_page: str) -> str:
    """The measured sections in the page as it is: other sections come from other scripts, and stay
    at their places.
    """
    new = dict(_sections(measured_page))
    kept = (new.get(title, text) for title, text in _sections(PAGE.read_text(encoding="utf-8")))
    return "\n".join(text.rstrip("\n") + "\n" for text in kept)


def _sections(page: str) -> list[tuple[str, str]]:
    """The title and the text of each section; the first begins with the title of the page."""
    return [(part.partition("\n")[0], part) for part in re.split(r"(?m)^(?=##? )", page) if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(with_other_sections(document(given.draws, given.seeds, given.workers)), end="")


if __name__ == "__main__":
    main()
