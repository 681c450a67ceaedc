"""The kernels of a case on its device: on CUDA some systems use each kernel's twin, which a graph can capture."""

from __future__ import annotations

from harness.core.cases import Case
from harness.core.catalog import KERNELS


def on_device(case: Case, device: str) -> Case:
    """`case` with the kernels that run on `device`. Its id and seed stay the same."""
    if device != "cuda" or not case.kind.uses_twins:
        return case
    twins = cuda_twins(case.kernels())
    return case.model_copy(update={"params": case.params.model_copy(update=twins)}) if twins else case


def cuda_twins(kernels: dict[str, str]) -> dict[str, str]:
    """Parameter -> short name of the kernel's twin for a GPU, for each of `kernels` that declares one."""
    twins = {field: KERNELS.get(name).cuda_twin for field, name in kernels.items() if name in KERNELS}
    return {field: twin for field, twin in twins.items() if twin}
