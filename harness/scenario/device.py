"""What a case runs on a device: on CUDA some systems take each kernel's twin, which a graph can capture."""

from __future__ import annotations

from harness.core.cases import Case
from harness.core.catalog import KERNELS


def on_device(case: Case, device: str) -> Case:
    """`case` as it runs on `device`. Its parameters name the kernels that run there; its id and seed stay the same."""
    if device != "cuda" or not case.kind.uses_twins:
        return case
    twins = cuda_twins(case.kernels())
    return case.model_copy(update={"params": case.params.model_copy(update=twins)}) if twins else case


def cuda_twins(kernels: dict[str, str]) -> dict[str, str]:
    """The kernels that take the place of `kernels` on a GPU, by parameter, where a kernel declares one."""
    twins = {field: KERNELS.get(name).cuda_twin for field, name in kernels.items() if name in KERNELS}
    return {field: twin for field, twin in twins.items() if twin}
