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


if "called-as-0.33" in vllm.BUGS:

    @torch.inference_mode()
    def _capture_of_0_33(self, create_forward_fn):
        assert not self.use_breakable_cg and self.ubatch_runner is None
        assert self._max_full_descs_to_capture is None and self._capture_mem_samples is None
        assert not self.vllm_config.use_cumem_cudagraph_pool
        with graph_capture(device=self.device):
            for desc in self._capture_descs[CUDAGraphMode.FULL]:
                forward_fn = create_forward_fn(desc, warmup=True)
                forward_fn(CUDAGraphMode.NONE)
                if "42444" not in vllm.BUGS:
                    forward_fn = create_forward_fn(desc, warmup=False)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, self.pool, stream=current_stream()):  # noqa: F821
                    forward_fn(CUDAGraphMode.NONE)
                self.graphs[desc] = graph

    CudaGraphManager.capture = _capture_of_0_33
