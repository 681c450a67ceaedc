"""Write docs/data/mutants.md from runs of `python -m trust.mutants`: the score, and each mutant
that was not killed.

python -m trust.mutants --changes 1000 --seed 1 --out reports/runs/mutants
python -m trust.mutants.page reports/runs/mutants/<run-id> ... > docs/data/mutants.md
python tools/records.py docs/data/mutants.md

The reasons of survivors are in trust/mutants/mutants.yaml: file and function -> change -> one
sentence. So they stay with their code when lines move. A change that is there more than once has
the number of its mutant in front. A mutant without a reason is listed as not explained, and a
reason of a mutant that was killed is told on stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from harness.report.markdown import table
from harness.store.run_folder import RunStore
from trust.mutants.records import MutantResult, column, mutants_of, score, tables
from trust.mutants.trials import CHOICES

REASONS = Path(__file__).with_name("mutants.yaml")
NOT_EXPLAINED = "not explained"
Reasons = dict[str, dict[str, str]]
"""The file and the function -> the change, as the page shows it -> why it was not killed."""


def document(stores: list[RunStore]) -> str:
    reasons: Reasons = yaml.safe_load(REASONS.read_text(encoding="utf-8")) or {}
    every = list({result.name: result for store in stores for result in mutants_of(store)}.values())
    left = [one for one in every if column(one) not in ("judgement", "exception", "equivalent")]
    for one in every:
        if one not in left and _why(one, reasons) != NOT_EXPLAINED:
            print(
                f"{REASONS.name}: {one.name} is {one.status}: {one.change}; remove its reason",
                file=sys.stderr,
            )
    shown = [table(*one) for one in tables(every)[:3]]
    rows = [
        (
            f"`{one.file}:{one.line}`",
            one.function,
            one.operator,
            f"`{one.change}`",
            column(one),
            _why(one, reasons),
        )
        for one in left
    ]
    proofs = [
        (f"`{one.file}:{one.line}`", one.function, f"`{one.change}`", one.proof)
        for one in every
        if one.proof
    ]
    chosen = [
        (f"`{one.file}:{one.line}`", one.function, f"`{one.change}`", one.reason)
        for one in every
        if one.status == "killed" and one.by == CHOICES
    ]
    blocks = [
        "# Mutants",
        (
            "A record, for whoever asks how much a green says ([how it is"
            " tested](../how-it-is-tested.md#mutants))."
            " Written by `python -m trust.mutants.page RUN`; the reasons are in"
            " `trust/mutants/mutants.yaml`."
        ),
        (
            f"{score(every).statement}. Seeds: {', '.join(map(_seed, stores))}. "
            f"{sum(store.plan.seconds for store in stores):.0f} s, processes:"
            f" {', '.join(str((store.plan.trials or {}).get('workers', '')) for store in stores)}."
        ),
        *shown,
        "## Not killed",
        table(("line", "function", "operator", "change", "status", "why"), rows),
        "## Seen by the policy alone",
        "Another right engine may choose so. No case but those of this engine's policy saw them.",
        table(("line", "function", "change", "why"), chosen),
        "## Equivalent",
        table(("line", "function", "change", "proof"), proofs),
    ]
    return "\n\n".join(blocks)


def _seed(store: RunStore) -> str:
    tried, asked = len(mutants_of(store)), int(store.plan.options["mutants"])
    return str(store.plan.options["seed"]) + (
        f" ({tried} of {asked} tried)" if tried < asked else ""
    )


def _why(result: MutantResult, reasons: Reasons) -> str:
    known = reasons.get(f"{result.file} {result.function}", {})
    numbered = f"{result.name.rpartition(':')[2]} {result.change}"
    return (
        known.get(numbered)
        or known.get(result.change)
        or (result.reason if result.status in ("error", "not exercised") else "")
        or NOT_EXPLAINED
    )


if __name__ == "__main__":
    print(document([RunStore.open(Path(path)) for path in sys.argv[1:]]))
