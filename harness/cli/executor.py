"""`--executor`: where the case processes are, this machine or a Ray cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.run.pool import Pool

LOCAL, RAY = "local", "ray"

Executor = Annotated[
    str, typer.Option("--executor", metavar="local|ray", help="Where cases run: here, or on a Ray cluster.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="HOST:PORT|auto", help="A running cluster [$RAY_ADDRESS; else one on this machine]."
    ),
]


def pool_for(executor: str, ray_address: str | None, workers: int | None) -> Pool:
    """The pool that the options ask for; `workers` limits it. Raises InputError for options that do not fit."""
    from harness.core.errors import InputError

    if executor not in (LOCAL, RAY):
        raise InputError(f"--executor {executor}: unknown executor; choose one of {LOCAL}, {RAY}")
    if executor == LOCAL:
        from harness.run.runner import WorkerPool

        if ray_address is not None:
            raise InputError("--ray-address: is for --executor ray; add it, or leave the address out")
        return WorkerPool(workers)
    from harness.run.ray_pool import RayPool

    return RayPool(ray_address or os.environ.get("RAY_ADDRESS") or None, workers)
