"""Run with a release on the path: the plug-in's poison in vLLM's own prefill, without its bug, and
with it put back.

Prints a line of JSON: rows that were filled, and whether what came out is finite, for each of the
two.
"""

from __future__ import annotations

import importlib
import json
import sys

import torch
from torch_poison.patterns import Poison

from harness.evidence.observed import Observed
from harness.memory.triton_interpreter import prepare
from mla_harness_adapters.plan import ServePoison
from mla_harness_vllm.faults import PATCHES
from mla_harness_vllm.serve import context_rows
from mla_harness_vllm.serve.writes import FILLED

FAULT = "vllm.merge-ignore-context-count"


def prefill() -> tuple[int, bool, float]:
    """Rows filled, whether the output is finite, and how far it is from float64 attention."""
    from harness.ops.context_attention.kernels.dense import context_attention
    from mla_harness_vllm.host.prefill_merge import REQUESTS
    from mla_harness_vllm.host.prefill_step import SCALE, Inputs, PrefillStep

    def every_row_written(q, k, v, starts, keys):  # type: ignore[no-untyped-def]
        return context_attention(q, k, v, starts, keys, scale=SCALE)

    before = FILLED.context_rows
    none = Poison("none", frozenset())
    found = PrefillStep(REQUESTS, Inputs(none, REQUESTS), every_row_written).run(none).all(Observed)
    actual = torch.cat([one.tensor for one in found])
    expected = torch.cat([one.expected for one in found if one.expected is not None])
    return (
        FILLED.context_rows - before,
        bool(actual.isfinite().all()),
        float((actual - expected).abs().max()),
    )


def main() -> None:
    """Once as released, once with the bug, poisoned as a served process is: the bug first."""
    torch.set_num_threads(1)
    prepare()
    version = importlib.import_module("vllm").__version__
    if "--fault" in sys.argv:
        PATCHES.inject(FAULT, version)
    where = context_rows.install(ServePoison(("context.output", "context.lse")))
    rows, is_finite, error = prefill()
    print(
        json.dumps(
            {"version": version, "where": where, "rows": rows, "finite": is_finite, "error": error}
        )
    )


if __name__ == "__main__":
    main()
