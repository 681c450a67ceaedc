"""Workers in processes of their own, spawned as vLLM spawns them, which sum over gloo instead of
NCCL.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pickle
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STEP = SimpleNamespace(
    num_scheduled_tokens={"a": 3, "b": 2},
    total_num_scheduled_tokens=5,
    scheduled_new_reqs=[],
    scheduled_cached_reqs=None,
)


class Executor:
    def __init__(self, num_ranks: int, extension: str, store: str) -> None:
        self._pipes: list[Connection] = []
        context = multiprocessing.get_context("spawn")
        for rank in range(num_ranks):
            ours, theirs = context.Pipe()
            arguments = (rank, num_ranks, extension, store, theirs)
            context.Process(target=work, args=arguments, daemon=True).start()
            self._pipes.append(ours)

    def ask(self, message: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send(pickle.dumps(message))
        answers = [pipe.recv() for pipe in self._pipes]
        for answer in answers:
            if isinstance(answer, Exception):
                raise RuntimeError(f"Worker failed with error '{answer}'")
        return answers


def work(rank: int, num_ranks: int, extension: str, store: str, pipe: Connection) -> None:
    if os.environ.get("FAKE_VLLM") == "lacking" and rank == 1:
        del os.environ["MLA_HARNESS_FAULT"]
    import torch
    from torch_poison import cuda_sweep

    # This machine has no memory that a sweep could fill: it counts only.
    cuda_sweep.CudaSweep.of = lambda: lambda: None  # type: ignore[assignment, method-assign, misc]
    torch.cuda.is_current_stream_capturing = lambda: False
    importlib.import_module(extension.rpartition(".")[0])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks
    )
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    runner = GPUModelRunner()
    runner.load_model()
    while True:
        message = pickle.loads(pipe.recv())
        if message == "die":
            os._exit(9)
        if message == "hang":
            at = (
                "01 [cuda.py:4] building trtllm_mnnvl_comm"
                if rank
                else "00 [pynccl.py:7] vLLM is using nccl"
            )
            print(f"(Worker_TP{rank} pid={os.getpid()}) INFO 11-25 14:20:{at}", flush=True)
            Path(os.environ["FAKE_PIDS"], str(os.getpid())).touch()
            time.sleep(3600)
        try:
            pipe.send(runner.execute_model(STEP) if message == "step" else message(runner))
        except Exception as error:
            pipe.send(RuntimeError(str(error)))
