"""What a serving process imports. A fork server calls `import_all` once.

A CUDA context does not survive a fork. So a module that touches CUDA while it is imported is left
to the forks: the import ends with `TouchesCuda`, which Python undoes for this module and for those
that were importing it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from unittest import mock

import torch

from harness.api import Questions


class TouchesCuda(BaseException):
    """A module would initialize CUDA. No `except Exception` of an import may swallow it."""


ENGINE_MODULES = (
    "lm_eval.api.task",
    "mla_harness_vllm.backend",
    "mla_harness_vllm.serve.hooks",
    "mla_harness_vllm.serve.worker_state",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.executor.uniproc_executor",
)
"""What serves on every device. They come before a runner, as they are imported in this order."""
MODEL_MODULES = (
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.models.deepseek_v2",
    "vllm.model_executor.models.kimi_linear",
)
MODULES = (
    *ENGINE_MODULES,
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.attention.backends.mla.flashattn_mla",
    "vllm.v1.attention.backends.mla.flashmla",
    "vllm.v1.attention.backends.mla.triton_mla",
    *MODEL_MODULES,
    "vllm.models.kimi_k3.nvidia.model",
)
"""A release without one of them imports it later, under its own name."""
OF_THE_HARNESS = (Questions,)
"""What a serving process uses of the harness: naming it here imports it."""
ARCHITECTURES = ("DeepseekV2ForCausalLM", "KimiLinearForCausalLM")
"""The models of the canaries."""


def _refuse() -> None:
    raise TouchesCuda("it touches CUDA")


def _register(name: str) -> None:
    """Register the class of a model. vLLM inspects a model by its name in a new process, which
    imports all of vLLM.
    """
    registry = importlib.import_module("vllm.model_executor.models.registry").ModelRegistry
    registry.register_model(name, registry.models[name].load_model_cls())


def import_all() -> None:
    """Import what a serving process on a GPU needs."""
    import_modules(MODULES)


def import_modules(modules: Iterable[str]) -> None:
    """Import modules, as far as they touch no CUDA, and register the models of the canaries."""
    with mock.patch.object(torch.cuda, "_lazy_init", _refuse):
        for module in modules:
            try:
                importlib.import_module(module)
            except (ImportError, TouchesCuda) as error:
                print(f"mla-harness: {module} is left to the forks: {error}", file=sys.stderr)
        for name in ARCHITECTURES:
            try:
                _register(name)
            except (ImportError, KeyError, TouchesCuda) as error:
                print(f"mla-harness: {name} is inspected by the forks: {error}", file=sys.stderr)
