"""`--executor`: where the case processes are, this machine or a Ray cluster."""

from __future__ import annotations

import os

from harness.core.errors import InputError
from harness.run.pool import Pool
from harness.run.ray_pool import RayPool
from harness.run.runner import WorkerPool

LOCAL, RAY = "local", "ray"


def pool_for(executor: str, ray_address: str | None, workers: int | None) -> Pool:
    """The pool that the options ask for; `workers` limits it. Raises InputError for options that do not fit."""
    if executor not in (LOCAL, RAY):
        raise InputError(f"--executor {executor}: unknown executor; choose one of {LOCAL}, {RAY}")
    if executor == LOCAL:
        if ray_address is not None:
            raise InputError("--ray-address: is for --executor ray; add it, or leave the address out")
        return WorkerPool(workers)
    return RayPool(ray_address or os.environ.get("RAY_ADDRESS") or None, workers)
