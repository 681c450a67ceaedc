"""What a serving process imports. A fork server imports this module once, before it touches CUDA."""

from __future__ import annotations

import contextlib
import importlib

MODULES = (
    "lm_eval.api.task",
    "harness.accuracy.epochs",
    "harness.accuracy.tasks",
    "harness.engines.vllm.backend",
    "harness.engines.vllm.serve.hooks",
    "harness.engines.vllm.serve.worker_state",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.attention.backends.mla.flashattn_mla",
    "vllm.v1.attention.backends.mla.flashmla",
    "vllm.v1.attention.backends.mla.triton_mla",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.models.deepseek_v2",
    "vllm.model_executor.models.kimi_linear",
)
"""A release without one of them imports it later, under its own name."""

for _module in MODULES:
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)
