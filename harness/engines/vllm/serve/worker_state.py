"""What each worker of a vLLM says of the harness in it, asked from outside by `LLM.collective_rpc`.

Workers may be other processes, forked or spawned. Whether the poison, a bug put back and the routing strategy reached
them is not taken for granted: a worker without them would read as a vLLM that has no bug.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Any

from harness.core.errors import HarnessError
from harness.engines.vllm.serve import plugin
from harness.engines.vllm.serve.settings import BLOCKS, CONTEXT, ServePoison

COUNTS = ("steps", "sweeps", "blocks", "context_rows")
"""What the poison of a process counts."""


def tell(worker: Any) -> dict[str, Any]:
    """Run inside a worker: its rank, what it has of the harness, and what its poison filled; its recorder tells too."""
    from harness.engines.vllm.serve.writes import FILLED, worker_rank

    first_nan = sys.modules.get("harness.engines.vllm.serve.first_nan")
    if first_nan is not None:
        for recorder in first_nan.RECORDERS:
            recorder.tell()
    has = {"rank": worker_rank(), "process": os.getpid(), "fault": plugin.fault(), "routing": plugin.is_routing()}
    return {**has, **asdict(FILLED)}


def summed(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts over all workers, and `ranks`: what each of them said, in their order."""
    return {
        **{count: sum(one[count] for one in told) for count in COUNTS},
        "ranks": sorted(told, key=lambda one: int(one["rank"])),
    }


def check(
    told: dict[str, Any], num_ranks: int, *, fault: str | None, routing: bool, poison: ServePoison | None
) -> None:
    """Raise HarnessError when a worker lacks what the case is about: then it would have proved nothing."""
    ranks = told["ranks"]
    if [one["rank"] for one in ranks] != list(range(num_ranks)):
        raise HarnessError(f"{num_ranks} workers were to answer for themselves, and {len(ranks)} did: {ranks}")
    for one in ranks:
        who = f"rank {one['rank']} (process {one['process']})"
        if one["fault"] != (fault or ""):
            raise HarnessError(f"{who} runs with {one['fault'] or 'no fault'}, not with {fault or 'none'}")
        if routing and not one["routing"]:
            raise HarnessError(f"{who} does not know the routing strategy of this case")
    if poison is not None:
        _check_filled(ranks, poison)


def _check_filled(ranks: list[dict[str, Any]], poison: ServePoison) -> None:
    wanted = {"sweeps": poison.sweeps, "blocks": any(site in BLOCKS for site in poison.sites)}
    wanted["context_rows"] = any(site in CONTEXT for site in poison.sites)
    for one in ranks:
        filled = {count: one[count] for count in COUNTS}
        if not poison.is_for(one["rank"]):
            if any(filled[what] for what in wanted):
                raise HarnessError(f"the poison {poison.text()} is not for rank {one['rank']}, and filled: {filled}")
        elif any(asked and not filled[what] for what, asked in wanted.items()):
            raise HarnessError(f"the poison {poison.text()} filled nothing on rank {one['rank']}: {filled}")
