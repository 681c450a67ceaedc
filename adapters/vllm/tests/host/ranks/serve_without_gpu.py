"""Start vLLM's own executor over two processes as a served case does, and have them answer for
themselves.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace


def main() -> None:
    from vllm.config import DeviceConfig, ParallelConfig, VllmConfig
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    from harness.run.launch import die_with_parent
    from mla_harness_vllm.params import VllmParams
    from mla_harness_vllm.ranks import rank_options
    from mla_harness_vllm.serve.plugin import activate
    from mla_harness_vllm.serve.worker_state import state_of_worker

    die_with_parent()
    activate()
    parallel = ParallelConfig(
        worker_cls="worker_without_gpu.Worker", **rank_options(VllmParams(tensor_parallel=2))
    )
    config = VllmConfig(parallel_config=parallel, device_config=DeviceConfig(device="cpu"))
    nothing = SimpleNamespace(
        is_multimodal_model=False,
        multimodal_config=None,
        enable_return_routed_experts=False,
        supports_multimodal_inputs=False,  # asked for by 0.33.0
    )
    object.__setattr__(config, "model_config", nothing)
    executor = MultiprocExecutor(config)
    print(json.dumps(executor.collective_rpc(state_of_worker, timeout=30)))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
