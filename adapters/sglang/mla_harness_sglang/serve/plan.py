"""The memory that the harness fills in SGLang's scheduler processes, and what they count. No torch
here.

SGLang starts its schedulers as processes of their own. Each gets the plan as an argument, installs
it before SGLang builds anything, and writes its report to a file.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from mla_harness_adapters import serving
from mla_harness_adapters.plan import Plan, ServedMemory

FREED = (*serving.FREED, "router.ids", "router.weights")
PAGES = ("kv.new", "kv.tail", "kv.free", "kv.null")
"""Sites inside the KV pool. Padding slot 0 is `kv.null`: padded rows write and read it."""
TABLES = ("block_table.pad", "graph.pad_rows")
"""Indices: entries of `req_to_token` past a request, and a graph's input rows past the batch."""
STEPS = "steps"
SWEEPS = "sweeps"
MEMORY = ServedMemory(
    counts={SWEEPS: FREED} | {site: (site,) for site in (*PAGES, *TABLES)},
    # The hook of `ModelRunner.forward` is installed without poison too.
    always=(STEPS,),
)
SITES = MEMORY.sites

REPORT = "state-rank{rank}.json"
"""The report of a scheduler process, in the plan's folder."""
METHOD = "mla_harness_state"
"""The method of SGLang's scheduler that writes the report."""

COUNTS: Counter[str] = Counter()
"""What the poison of this process has filled so far: steps, sweeps, and slots or rows by site."""


def told(plan: Plan) -> list[dict[str, Any]]:
    """The fields of the `ProcessReport` of each scheduler that wrote one."""
    files = sorted(Path(plan.folder).glob(REPORT.format(rank="*")))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]
