"""What a process that serves on a CPU imports. A fork server calls `import_all` once."""

from __future__ import annotations

from mla_harness_vllm.serve.imports import ENGINE_MODULES, MODEL_MODULES, import_modules

MODULES = (
    *ENGINE_MODULES,
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.mla.cpu_mla",
    *MODEL_MODULES,
)
"""A release without one of them imports it later, under its own name."""


def import_all() -> None:
    """Import what a serving process needs, and register the models of the canaries."""
    import_modules(MODULES)
