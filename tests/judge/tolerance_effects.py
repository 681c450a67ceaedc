"""Counts what each change of a bound did to false alarms and to killed mutants: the last section of
docs/data/tolerances.md.

python tests/judge/tolerance_effects.py MUTANTS DRAWS

MUTANTS is a run folder of `python -m trust.mutants`. DRAWS cases are drawn on right kernels,
as by `--controls`, and judged by the bounds of before.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from harness.evidence.thresholds import BOUNDS
from harness.judge.run_case import run_case
from harness.run.in_process import InProcessPool
from harness.run.planning import JobPlanner, Wanted

LSE = " ".join(
    f"mla_decode.lse.{kv} mla_decode_sparse.lse.{kv}" for kv in ("fp32", "bf16", "fp8_e4m3")
)
BEFORE = {
    "mla_decode.out.bf16 mla_decode_sparse.out.bf16 context_attention.out": (2, 0.01, 0.008),
    "mla_decode.out.fp8_e4m3 mla_decode_sparse.out.fp8_e4m3 mla_decode_sparse.out.fp8_ds_mla merge_attn_states.out": (  # noqa: E501
        2,
        0.01,
        0.008,
    ),
    f"{LSE} mla_decode_sparse.lse.fp8_ds_mla context_attention.lse merge_attn_states.lse": (
        16,
        2e-5,
        1e-5,
    ),
    "read_records": (2, 0, 1e-6),
    "quantize_fp8.scale": (4, 0, 1e-6),
    "route_experts.weights": (32, 1e-6, 1e-6),
    "engine.logits.fp32": (16, 4e-5, 2e-5),
    "engine.logits.bf16": (4, 0.03, 0.012),
}
"""Bounds that were changed together, and their ulps, floor and L2 before."""
HEAD = """## What each change of a bound did

Written by `python tests/judge/tolerance_effects.py MUTANTS DRAWS`.

- False alarms: findings in {} random cases on right kernels (`selftest --controls`, seed 0) under the bounds of before.
  Under the bounds of today there are none.
- Mutants: how many mutants of [mutants.md](mutants.md) a bound of today killed, how many times beyond it the nearest
  was, and how many lie within the bound of before in the case that killed them.

| bounds | before: ulps, floor, L2 | today | false alarms before | mutants killed | nearest | within before |
| --- | --- | --- | --- | --- | --- | --- |
"""  # noqa: E501
SHARE = re.compile(
    r"beyond ([\w.]+), worst ([\d.einf+-]+) times it \((element|relative L2 of the row)\)"
)


def false_alarms(num_draws: int) -> Counter[str]:
    """Findings on right kernels under the bounds of before, by bound; `other` has no bound in its
    words.
    """
    changed = [
        replace(BOUNDS.get(name), ulps=ulps, floor=floor, relative_l2=relative_l2)
        for names, (ulps, floor, relative_l2) in BEFORE.items()
        for name in names.split()
    ]
    found: Counter[str] = Counter()
    with BOUNDS.scoped(*changed):
        for number, job in enumerate(
            JobPlanner(Wanted(device="cpu"), InProcessPool()).control_jobs(num_draws), 1
        ):
            for finding in run_case(job).findings:
                match = SHARE.search(finding.message)
                found[match[1] if match else "other"] += 1
            if number % 500 == 0:
                print(number, dict(found), file=sys.stderr, flush=True)
    return found


def kills(run: Path) -> dict[str, list[tuple[str, float]]]:
    """The mutants that a bound killed, by bound: what went beyond it (an element or a row), and how
    many times.
    """
    found: dict[str, list[tuple[str, float]]] = {}
    for line in (run / "mutants.jsonl").read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        match = SHARE.search(result["reason"])
        if result["status"] == "killed" and match:
            found.setdefault(match[1], []).append((match[3], float(match[2])))
    return found


def times(before: float, now: float) -> float:
    """How many times wider a number was before."""
    return before / now if now else 1.0


def section(run: Path, num_draws: int) -> str:
    """The section in Markdown."""
    now = {name: BOUNDS.get(name) for names in BEFORE for name in names.split()}
    killed, alarms = kills(run), false_alarms(num_draws)
    rows = []
    for names, (ulps, floor, relative_l2) in BEFORE.items():
        members = names.split()
        bound = now[members[0]]
        element = max(times(ulps, bound.ulps), times(floor, bound.floor))
        wider = {
            "element": element,
            "relative L2 of the row": times(relative_l2, bound.relative_l2),
        }
        by_it = [pair for name in members for pair in killed.get(name, ())]
        missed = sum(share <= wider[what] for what, share in by_it)
        least = f"{min(share for _, share in by_it):.3g}" if by_it else ""
        then, since = (
            f"{a:g}, {b:g}, {c:g}"
            for a, b, c in (
                (ulps, floor, relative_l2),
                (bound.ulps, bound.floor, bound.relative_l2),
            )
        )
        listed = ", ".join(f"`{name}`" for name in members)
        rows.append(
            f"| {listed} | {then} | {since} | {sum(alarms[name] for name in members)} |"
            f" {len(by_it)} | {least} | {missed} |"
        )
    rest = {name: count for name, count in alarms.items() if name not in now}
    tail = ["", f"Findings by other bounds: {rest or 'none'}."]
    return HEAD.format(f"{num_draws:,}") + "\n".join([*rows, *tail]) + "\n"


if __name__ == "__main__":
    print(section(Path(sys.argv[1]), int(sys.argv[2])), end="")
