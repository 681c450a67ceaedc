"""What a process that serves on a CPU imports. A fork server calls `import_all` once."""

from __future__ import annotations

from mla_harness_vllm.serve.imports import import_modules

MODULES = (
    "lm_eval.api.task",
    "mla_harness_vllm.backend",
    "mla_harness_vllm.serve.hooks",
    "mla_harness_vllm.serve.worker_state",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.mla.cpu_mla",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.models.deepseek_v2",
    "vllm.model_executor.models.kimi_linear",
)
"""A release without one of them imports it later, under its own name."""


def import_all() -> None:
    """Import what a serving process needs, and register the models of the canaries."""
    import_modules(MODULES)
