from dataclasses import dataclass

import torch

import vllm
from vllm.config import CUDAGraphMode


@dataclass(frozen=True)
class BatchExecutionDescriptor:
    cg_mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int


def graph_capture(device):
    raise AssertionError("needs a GPU")


def get_offloader():
    raise AssertionError("needs a GPU")


def is_global_first_rank():
    return False


class CudaGraphManager:
    @torch.inference_mode()
    def capture(self, create_forward_fn):
        captured_attn_states = {}
        with graph_capture(device=self.device):
            for desc in self._capture_descs[CUDAGraphMode.FULL]:
                forward_fn, attn_state = create_forward_fn(desc)
                forward_fn(CUDAGraphMode.NONE)
                if "42444" not in vllm.BUGS:
                    forward_fn, attn_state = create_forward_fn(desc)
                    captured_attn_states[desc] = attn_state
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, self.pool):
                    forward_fn(CUDAGraphMode.NONE)
                self.graphs[desc] = graph
        return captured_attn_states
