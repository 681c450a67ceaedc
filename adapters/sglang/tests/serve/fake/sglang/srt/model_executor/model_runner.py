"""The model runner: pages, tables and a decode graph's input buffers, and a model that sums the
latents it reads.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn

from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator


class Mode:
    def __init__(self, name):
        self.name = name

    def is_idle(self):
        return self.name == "idle"

    def is_decode(self):
        return self.name == "decode"


@dataclass
class ForwardBatch:
    forward_mode: Mode
    batch_size: int
    input_ids: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    out_cache_loc: torch.Tensor


class Inner(nn.Module):
    def forward(self, latents):
        return latents


class ModelRunner:
    def __init__(self, options):
        self.device = "cpu"
        page, size = options["page_size"], options["max_total_tokens"]
        buffers = [torch.zeros(size + page, 1, 8, dtype=torch.bfloat16) for _ in range(2)]
        self.token_to_kv_pool = SimpleNamespace(
            kv_buffer=buffers, dtype=torch.bfloat16, page_size=page, size=size
        )
        self.token_to_kv_pool_allocator = TokenToKVPoolAllocator(size, page)
        table = torch.zeros(17, 64, dtype=torch.int32)
        self.req_to_token_pool = SimpleNamespace(req_to_token=table, free_slots=list(range(1, 17)))
        inputs = {
            name: torch.zeros(16, dtype=torch.int64)
            for name in ("out_cache_loc", "req_pool_indices", "seq_lens")
        }
        has_graph = options.get("cuda_graph_backend_decode") == "full"
        self.decode_cuda_graph_runner = (
            SimpleNamespace(buffers=SimpleNamespace(**inputs)) if has_graph else None
        )

    def load_model(self):
        self.model = SimpleNamespace(model=Inner())

    def ask(self, count):
        """One prefill of 5 tokens and one decode for `count` requests -> what each read [count, 6 *
        8].
        """
        rows = [self.req_to_token_pool.free_slots.pop() for _ in range(count)]
        table = self.req_to_token_pool.req_to_token
        slots = [self.token_to_kv_pool_allocator.alloc(6) for _ in rows]
        for row, own in zip(rows, slots, strict=True):
            table[row, :5] = own[:5]
        ids = torch.tensor(rows)
        self.forward(
            ForwardBatch(
                Mode("extend"),
                count,
                torch.ones(5 * count),
                ids,
                torch.full((count,), 5),
                torch.cat([own[:5] for own in slots]),
            )
        )
        for row, own in zip(rows, slots, strict=True):
            table[row, 5] = own[5]
        read = self.forward(
            ForwardBatch(
                Mode("decode"),
                count,
                torch.ones(count),
                ids,
                torch.full((count,), 6),
                torch.stack([own[5] for own in slots]),
            )
        )
        for row, own in zip(rows, slots, strict=True):
            self.req_to_token_pool.free_slots.append(row)
            self.token_to_kv_pool_allocator.free(own)
        return read

    def forward(self, forward_batch):
        batch = forward_batch
        latents = self.token_to_kv_pool.kv_buffer[0]
        latents[batch.out_cache_loc] = 1.0
        if self.decode_cuda_graph_runner and batch.forward_mode.is_decode():
            buffers = self.decode_cuda_graph_runner.buffers
            buffers.out_cache_loc[batch.batch_size :] = 0
            latents[buffers.out_cache_loc[batch.batch_size :]] = float("nan")
        table = self.req_to_token_pool.req_to_token
        read = torch.stack(
            [
                latents[table[row, :length].long()].flatten()
                for row, length in zip(batch.req_pool_indices, batch.seq_lens, strict=True)
            ]
        )
        return self.model.model(read)
