"""What this engine adds to the harness: one kernel and one known bug. Imports no torch."""

from harness.api import EngineSpec, FaultSpec, KernelSpec

ENGINE = EngineSpec("rowquant", "RowQuant", distribution="rowquant", package="rowquant")

KERNELS = (
    KernelSpec(
        "quantize_fp8",
        "rowquant",
        "per-tensor e4m3, live rows only",
        "rowquant.kernels:quantize_fp8",
        devices=("cpu", "cuda"),
        origin="rowquant",
    ),
)

FAULTS = (
    FaultSpec(
        "rowquant.padding-in-amax",
        "sgl-project/sglang#26133",
        "the scale covers padded rows as well",
        target="rowquant.kernels:live_rows",
        replacement="rowquant.kernels:all_rows",
    ),
)
