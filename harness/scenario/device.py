"""What a case runs on a device: on CUDA the engine takes each kernel's twin, which a graph can capture."""

from __future__ import annotations

from harness.core.records import Case
from harness.scenario.matrix import cuda_twins


def on_device(case: Case, device: str) -> Case:
    """`case` as it runs on `device`; its parameters say which kernels that are, its id and seed stay the same."""
    if device != "cuda" or case.system not in ("engine", "accuracy"):
        return case
    replaced = cuda_twins(case.params, case.system)
    return case.model_copy(update={"params": {**case.params, **replaced}}) if replaced else case
