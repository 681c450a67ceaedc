"""What the first-NaN recorder names for each of five known bugs, beside what a person would name.

python tools/first_nan_document.py                          # CPU figures into docs/first-nan.md
python tools/first_nan_document.py --check                  # exit code 1 when the page says otherwise
python tools/first_nan_document.py --device cuda --json     # the same cases on CUDA graphs, as JSON

The column of the person is typed here by hand, from the pull requests; everything else comes from a run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "first-nan.md"
BEGIN, END = "<!-- written by tools/first_nan_document.py -->", "<!-- end -->"

PERSONS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "merge.ignore-context-count": (
        "merge_attn_states",
        ("out",),
        "the merge read rows that the context kernel never wrote",
    ),
    "kv.skip-zero-new-blocks": ("mla_decode", ("out",), "the decode kernel multiplied slots past the length by 0"),
    "graph.fresh-plan-each-step": ("mla_decode", ("metadata",), "the captured decode read the first step's plan"),
    "graph.plan-in-warmup-only": ("mla_decode", ("metadata",), "the captured decode read the warm-up's plan"),
    "router.int64-ids": ("hand_over_ids", ("ids",), "32-bit ids in a 64-bit buffer, before the experts read them"),
}
"""Fault -> the op that a person would name, its tensors, and why. Five pull requests of vLLM."""


def measured(device: str) -> list[dict[str, Any]]:
    """One row for each fault: clean and with the fault, on the point of the matrix where its scenario tries it."""
    import torch

    from harness.core.cases import AskFirstNan, Job
    from harness.core.catalog import FAULTS
    from harness.judge.run_case import run_case
    from harness.scenario.device import on_device
    from harness.scenario.expand import fault_cases
    from harness.scenario.load import load_scenarios

    # As in a worker: more threads only wait for one another.
    torch.set_num_threads(1)
    rows = []
    declared = [pair for scenario in load_scenarios() for pair in fault_cases(scenario, seed=0)]
    for fault, (op, tensors, why) in PERSONS.items():
        case = next(case for use, case in declared if use.name == fault and case.system == "engine")
        job = Job(key=case.id, case=on_device(case, device), device=device, ask=AskFirstNan(sites=case.poison.sites))
        clean = run_case(job).first_nan
        result = run_case(job.model_copy(update={"fault": fault}))
        found = result.first_nan
        if found is None or clean is None:
            raise SystemExit(f"{case.id} with {fault}: {result.verdict.value}: {result.reason}")
        rows.append({
            "fault": fault, "ref": FAULTS.get(fault).ref, "case": case.id, "device": device,
            "clean": clean.writer, "writer": found.writer, "tensor": found.tensor, "bad": found.bad,
            "is_input": found.is_input, "layer": found.layer, "step": found.step, "phase": found.phase,
            "request": found.request, "finite": found.finite, "not_finite": found.not_finite,
            "not_watched": found.not_watched, "reader": found.reader, "reader_at": found.reader_at,
            "sites": found.sites, "statement": found.statement, "person": op, "person_why": why,
            "agrees": found.writer.partition("/")[0] == op and found.tensor in tensors and not clean.writer,
        })  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The Markdown of the rows."""
    head = (
        "bug",
        "fault",
        "the recorder names",
        "when, whose",
        "still good",
        "not good, or not watched",
        "first reader of poisoned memory",
        "a person names",
        "same",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        what = (
            f"`{row['writer']}` {'was given' if row['is_input'] else 'wrote'} `{row['tensor']}`: {row['bad']}"
            if row["writer"]
            else "nothing"
        )
        when = f"step {row['step']} ({row['phase']}), layer {row['layer']}" + (
            f", request {row['request']}" if row["request"] else ""
        )
        bad = ", ".join((*row["not_finite"], *(f"{name} (not watched)" for name in row["not_watched"])))
        reader = f"`{row['reader']}` ({row['reader_at']})" if row["reader"] else "nobody: no poisoned memory is read"
        person = f"`{row['person']}`: {row['person_why']}"
        cells = (
            row["ref"],
            f"`{row['fault']}`",
            what,
            when if row["writer"] else "",
            ", ".join(row["finite"]),
            bad,
            reader,
            person,
            "yes" if row["agrees"] else "**no**",
        )
        lines.append("| " + " | ".join(cells) + " |")
    agree = sum(row["agrees"] for row in rows)
    return "\n".join(
        [
            *lines,
            "",
            f"{agree} of {len(rows)} agree, and without its fault each case is silent. Device: {rows[0]['device']}.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", action="store_true", help="print the rows as one JSON list and write nothing")
    parser.add_argument("--check", action="store_true", help="compare the page with a run and write nothing")
    options = parser.parse_args()
    rows = measured(options.device)
    if options.json:
        print(json.dumps(rows, indent=1))
        raise SystemExit(0 if all(row["agrees"] for row in rows) else 1)
    before = PAGE.read_text(encoding="utf-8")
    start, end = before.index(BEGIN) + len(BEGIN), before.index(END)
    after = before[:start] + "\n" + table(rows) + "\n" + before[end:]
    if options.check:
        same = after == before
        print("the page is what a run gives" if same else f"{PAGE} differs from a run; write it again", file=sys.stderr)
        raise SystemExit(0 if same else 1)
    PAGE.write_text(after, encoding="utf-8")
    print(f"wrote {PAGE}: {sum(row['agrees'] for row in rows)} of {len(rows)} agree")


if __name__ == "__main__":
    main()
