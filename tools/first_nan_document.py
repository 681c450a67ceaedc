"""What the first-NaN recorder names for each of five known bugs, beside what a person would name.

python tools/first_nan_document.py                          # CPU figures into docs/first-nan.md
python tools/first_nan_document.py --check                  # exit code 1 when the page differs from a run
python tools/first_nan_document.py --device cuda --json     # the same cases on CUDA graphs, as JSON

The column of the person is typed here by hand, from the pull requests. Everything else comes from a run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from markdown_page import table

from harness.core.cases import AskFirstNan, Job
from harness.core.catalog import FAULTS
from harness.judge.run_case import run_case
from harness.scenario.expand import fault_cases, on_device
from harness.scenario.load import load_scenarios

PAGE = Path(__file__).resolve().parents[1] / "docs" / "first-nan.md"
WRITTEN = re.compile(r"(?<=<!-- written by tools/first_nan_document.py -->\n).*(?=<!-- end -->)", re.DOTALL)
PERSONS: dict[str, tuple[str, str, str]] = {
    "merge.ignore-context-count": (
        "merge_attn_states",
        "out",
        "the merge read rows that the context kernel never wrote",
    ),
    "kv.skip-zero-new-blocks": ("mla_decode", "out", "the decode kernel multiplied slots past the length by 0"),
    "graph.fresh-plan-each-step": ("mla_decode", "metadata", "the captured decode read the first step's plan"),
    "graph.plan-in-warmup-only": ("mla_decode", "metadata", "the captured decode read the warm-up's plan"),
    "router.int64-ids": ("hand_over_ids", "ids", "32-bit ids in a 64-bit buffer, before the experts read them"),
}
"""Fault -> the op that a person would name, its tensor, and why. Five pull requests of vLLM."""
TITLES = (
    "bug",
    "fault",
    "the recorder names",
    "when, which request",
    "still good",
    "not good, or not watched",
    "first reader of poisoned memory",
    "a person names",
    "same",
)


def measured(device: str) -> list[dict[str, Any]]:
    """One record for each fault: its case clean and with the fault, at the point of the matrix that injects it."""
    # As in a worker: more threads only wait for one another.
    torch.set_num_threads(1)
    rows = []
    declared = [pair for scenario in load_scenarios() for pair in fault_cases(scenario, seed=0)]
    for fault, (op, tensor, why) in PERSONS.items():
        case = next(case for use, case in declared if use.name == fault and case.system == "engine")
        job = Job(key=case.id, case=on_device(case, device), device=device, ask=AskFirstNan(sites=case.poison.sites))
        clean = run_case(job).first_nan
        result = run_case(job.model_copy(update={"fault": fault}))
        found = result.first_nan
        if found is None or clean is None:
            raise SystemExit(f"{case.id} with {fault}: {result.verdict.value}: {result.reason}")
        agrees = found.writer.partition("/")[0] == op and found.tensor == tensor and not clean.writer
        rows.append(
            found.model_dump(mode="json")
            | {"fault": fault, "ref": FAULTS.get(fault).ref, "case": case.id, "device": device}
            | {"clean": clean.writer, "statement": found.statement, "person": op, "person_why": why, "agrees": agrees}
        )
    return rows


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    what, when = "nothing", ""
    if row["writer"]:
        what = f"`{row['writer']}` {'was given' if row['is_input'] else 'wrote'} `{row['tensor']}`: {row['bad']}"
        request = f", request {row['request']}" if row["request"] else ""
        when = f"step {row['step']} ({row['phase']}), layer {row['layer']}{request}"
    reader = f"`{row['reader']}` ({row['reader_at']})" if row["reader"] else "none: no poisoned memory is read"
    return (
        row["ref"],
        f"`{row['fault']}`",
        what,
        when,
        ", ".join(row["finite"]),
        ", ".join((*row["not_finite"], *(f"{name} (not watched)" for name in row["not_watched"]))),
        reader,
        f"`{row['person']}`: {row['person_why']}",
        "yes" if row["agrees"] else "**no**",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", action="store_true", help="print the records as one JSON list and write nothing")
    parser.add_argument("--check", action="store_true", help="compare the page with a run and write nothing")
    options = parser.parse_args()
    rows = measured(options.device)
    num_agree = sum(row["agrees"] for row in rows)
    if options.json:
        print(json.dumps(rows, indent=1))
        return int(num_agree < len(rows))
    agreement = (
        f"{num_agree} of {len(rows)} agree, and without its fault each case is silent. Device: {options.device}."
    )
    text = f"{table(TITLES, map(cells, rows))}\n\n{agreement}\n"
    before = PAGE.read_text(encoding="utf-8")
    after = WRITTEN.sub(lambda _: text, before)
    if options.check:
        same = after == before
        print("the page is what a run gives" if same else f"{PAGE} differs from a run; write it again", file=sys.stderr)
        return int(not same)
    PAGE.write_text(after, encoding="utf-8")
    print(f"wrote {PAGE}: {num_agree} of {len(rows)} agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
