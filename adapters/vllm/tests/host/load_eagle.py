"""Configures vLLM for a target and a draft model of the Eagle kind, builds the draft model and
loads its weights.

    python -m adapters.vllm.tests.host.load_eagle TARGET DRAFT

Prints one line of JSON: the architecture that vLLM chose, and the parameters that no weight of
DRAFT filled.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file


def main() -> None:
    """Print the line."""
    target, draft = sys.argv[1:]
    modules = ("engine.arg_utils", "config", "distributed", "model_executor.models.deepseek_eagle")
    arguments, config, distributed, eagle = (
        importlib.import_module(f"vllm.{name}") for name in modules
    )
    drafter = {"method": "eagle", "model": draft, "num_speculative_tokens": 3}
    options = {
        "model": target,
        "speculative_config": drafter,
        "max_model_len": 1024,
        "enforce_eager": True,
    }
    made: Any = arguments.EngineArgs(**options).create_engine_config()
    with tempfile.TemporaryDirectory() as folder, config.set_current_vllm_config(made):
        distributed.init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
        distributed.initialize_model_parallel(1, 1)
        torch.set_default_dtype(torch.bfloat16)
        model = eagle.EagleDeepseekV3ForCausalLM(vllm_config=made)
        for parameter in model.parameters():
            parameter.data.fill_(torch.nan)
        model.load_weights(load_file(Path(draft) / "model.safetensors").items())
        unfilled = [name for name, parameter in model.named_parameters() if parameter.isnan().any()]
    chosen = made.speculative_config.draft_model_config
    print(
        json.dumps(
            {"architectures": chosen.architectures, "mla": chosen.use_mla, "unfilled": unfilled}
        )
    )


if __name__ == "__main__":
    main()
