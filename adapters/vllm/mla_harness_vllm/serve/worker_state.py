"""The state of the harness in each vLLM worker, read with `LLM.collective_rpc`, and its check.

Workers may be forked or spawned processes. A worker without the poison, the fault or the routing
strategy would look like a vLLM without the bug, so each worker's state is checked.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Any

from harness.api import HarnessError
from mla_harness_vllm.serve.plugin import INSTALLED
from mla_harness_vllm.serve.settings import (
    BLOCKS,
    CONTEXT,
    FAULT_VARIABLE,
    ROUTING_VARIABLE,
    STRATEGY,
    TOPK,
    ServePoison,
)
from mla_harness_vllm.serve.writes import FILLED, worker_rank

COUNTS = tuple(asdict(FILLED))
"""The counts of the poison in a process."""


def state_of_worker(worker: Any) -> dict[str, Any]:
    """Run inside a worker: its rank, process, fault, routing and poison counts.

    Its recorder writes its report.
    """
    first_nan = sys.modules.get("mla_harness_vllm.serve.first_nan")
    if first_nan is not None:
        for recorder in first_nan.RECORDERS:
            recorder.write_report()
    copies = sys.modules.get("mla_harness_vllm.serve.copies")
    return {
        "races": [] if copies is None else copies.races(),
        "rank": worker_rank(),
        "process": os.getpid(),
        "fault": INSTALLED.get(FAULT_VARIABLE, ""),
        "routing": INSTALLED.get(ROUTING_VARIABLE) == STRATEGY,
        **asdict(FILLED),
    }


def summed(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums of the counts over all workers, and `ranks`: the workers' states in the order of
    ranks.
    """
    sums = {count: sum(state[count] for state in states) for count in COUNTS}
    return {**sums, "ranks": sorted(states, key=lambda state: int(state["rank"]))}


def check(
    total: dict[str, Any],
    num_ranks: int,
    *,
    fault: str | None,
    routing: bool,
    poison: ServePoison | None,
) -> None:
    """Raise HarnessError if a worker lacks the fault, the routing or the poison, so that the case
    proves nothing.
    """
    ranks = total["ranks"]
    if [one["rank"] for one in ranks] != list(range(num_ranks)):
        raise HarnessError(
            f"{num_ranks} workers must report their state, but {len(ranks)} did: {ranks}"
        )
    for one in ranks:
        who = f"rank {one['rank']} (process {one['process']})"
        if one["fault"] != (fault or ""):
            raise HarnessError(
                f"{who} runs with {one['fault'] or 'no fault'}, not with {fault or 'none'}"
            )
        if routing and not one["routing"]:
            raise HarnessError(f"{who} does not know the routing strategy of this case")
    if poison is not None:
        _check_filled(ranks, poison)


def _check_filled(ranks: list[dict[str, Any]], poison: ServePoison) -> None:
    wanted = {
        "sweeps": poison.sweeps,
        "blocks": any(site in BLOCKS for site in poison.sites),
        "topk_buffers": TOPK in poison.sites,
        "context_rows": any(site in CONTEXT for site in poison.sites),
    }
    for one in ranks:
        filled = {count: one[count] for count in COUNTS}
        if not poison.is_for(one["rank"]):
            if any(filled[what] for what in wanted):
                raise HarnessError(
                    f"the poison {poison.text()} is not for rank {one['rank']}, and filled:"
                    f" {filled}"
                )
        elif any(needed and not filled[what] for what, needed in wanted.items()):
            raise HarnessError(
                f"the poison {poison.text()} filled nothing on rank {one['rank']}: {filled}"
            )
