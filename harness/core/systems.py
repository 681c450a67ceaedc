"""The systems that the harness has itself; engines add their own. No torch here."""

from __future__ import annotations

from harness.core.engine_params import ENGINE_KERNELS
from harness.core.engine_spec import ModelSpec
from harness.core.system_spec import SystemSpec

SYSTEMS: tuple[SystemSpec, ...] = (
    SystemSpec(
        "kernel",
        "one call of one op's kernel",
        params="harness.core.params:KERNEL_PARAMS",
        target="harness.judge.targets.kernel:KernelTarget",
        with_op=True,
        shows_launches=True,
    ),
    SystemSpec(
        "engine",
        "a serving run of the reference engine",
        params="harness.core.engine_params:EngineParams",
        target="harness.judge.targets.engine:EngineTarget",
        kernels=ENGINE_KERNELS,
        uses_twins=True,
        has_accuracy=True,
        shows_launches=True,
        records_first_nan=True,
    ),
    SystemSpec(
        "accuracy",
        "a task's questions asked of a canary on the reference engine, epoch after epoch",
        params="harness.core.engine_params:AccuracyParams",
        target="harness.judge.targets.engine:AccuracyTarget",
        kernels=ENGINE_KERNELS,
        uses_twins=True,
        asks_canary=True,
        in_scenarios=False,
    ),
    SystemSpec(
        "model",
        "a task's questions asked of a model by `mla-harness epochs`",
        params="harness.core.engine_params:ModelParams",
        devices=("cpu",),
        in_scenarios=False,
    ),
)

MODELS: tuple[ModelSpec, ...] = (
    ModelSpec(
        "engine",
        "DIR",
        "a checkpoint on the reference engine",
        open="harness.judge.served_engine:open_model",
        options=("kv", "graph", "num_blocks", "device"),
    ),
    ModelSpec(
        "server",
        "URL",
        "any OpenAI-compatible server",
        open="harness.accuracy.server_backend:ServerBackend",
        options=("served_model", "timeout"),
    ),
)
"""What `mla-harness epochs --model KIND:WHERE` can ask."""
