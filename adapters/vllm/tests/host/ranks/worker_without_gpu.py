"""A worker class for vLLM's own executor that holds no model and sums over gloo."""

from __future__ import annotations

from typing import Any

import torch


class Base:
    """vLLM adds its extension to the bases of the class, which must have one."""


class Worker(Base):
    def __init__(self, vllm_config: Any, rank: int, distributed_init_method: str, **_: Any) -> None:
        self.rank = rank
        self._method = distributed_init_method
        self._num_ranks = vllm_config.parallel_config.world_size

    def init_device(self) -> None:
        torch.distributed.init_process_group(
            "gloo", init_method=self._method, rank=self.rank, world_size=self._num_ranks
        )

    def load_model(self) -> None:
        pass

    def shutdown(self) -> None:
        pass
