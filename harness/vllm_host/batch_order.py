"""vLLM's chunked prefill in the order of each model runner: does the merge take the rows of the right requests?

Up to 0.27.1 `MLACommonMetadataBuilder.build` counts the requests with context and takes as many from the front of the
prefills (vllm-project/vllm#36540), so those with context must come first. The first runner orders its batch so; the
second sorts by scheduled tokens alone (vllm-project/vllm#47381 says what it owes, for speculative decodes). Order,
metadata, context loop and merge are vLLM's; the attention kernels are the harness's, and write every row, as
FlashAttention-3 does: what goes wrong is finite.
"""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from vllm.model_executor.layers.attention import mla_attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla import flashmla
from vllm.v1.attention.backends.utils import reorder_batch_to_split_decodes_and_prefills
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from harness.engine.attention import causal_attention
from harness.errors import InputError
from harness.kernels.torch_context import context_attention
from harness.poison.patterns import Poison
from harness.scenario.params import VllmHostParams
from harness.targets.base import Observed, Run
from harness.vllm_host.parts import generator
from harness.vllm_host.runner_order import Request, first_runner, second_runner

PAGE_SIZE = 16
NUM_HEADS = 2
NOPE, ROPE, VALUE, LATENT = 128, 64, 128, 512
SCALE = (NOPE + ROPE) ** -0.5
WORKSPACE_TOKENS = 64
FRESH = Request("fresh prompt", num_prompt=9, num_computed=0, num_scheduled=9)
DECODE = Request("decode", num_prompt=30, num_computed=30, num_scheduled=1)
"""FlashMLA decodes short prompts too, where all queries are as long as the first; beside a decode it does not."""
CHUNKS = {
    "longer": Request("prompt chunk", num_prompt=70, num_computed=40, num_scheduled=20),
    "shorter": Request("prompt chunk", num_prompt=70, num_computed=40, num_scheduled=5),
}
"""A part of a prompt with 40 tokens of context, longer or shorter than the fresh prompt beside it."""


def run(poison: Poison, params: VllmHostParams) -> Run:
    """One step of a decode, a prompt chunk with context and a fresh prompt; its prefills against float64 attention."""
    requests = (FRESH, CHUNKS[params.chunk], DECODE)
    batch = _Batch(_ordered(requests, params.order), _Inputs(poison, requests))
    metadata = batch.metadata()
    prefills = batch.requests[metadata.num_decodes :]
    if metadata.num_prefills != len(requests) - 1:
        raise InputError(f"vLLM takes only {metadata.num_prefills} of this batch for prefills: nothing to merge")
    start = metadata.num_decode_tokens
    output = torch.zeros(len(batch.q) - start, NUM_HEADS * VALUE)
    arguments: dict[str, Any] = {
        "q": batch.q[start:],
        "kv_c_normed": batch.latents[start:, :LATENT],
        "k_pe": batch.latents[start:, None, LATENT:],
        "kv_c_and_k_pe_cache": batch.cache,
        "attn_metadata": metadata,
        "k_scale": torch.ones(()),
        "output": output,
    }
    with mock.patch.object(mla_attention.ops, "gather_and_maybe_dequant_cache", _gathered):
        _impl(batch.inputs.projection).forward_mha(**arguments)
    found = Run(poison.pattern)
    done = 0
    for request in prefills:
        rows = output.view(-1, NUM_HEADS, VALUE)[done : done + request.num_scheduled]
        found.observed.append(_observed(request, rows, batch.inputs))
        done += request.num_scheduled
    return found


def _ordered(requests: tuple[Request, ...], order: str) -> tuple[Request, ...]:
    if order == "v2":
        return second_runner(GPUModelRunner, requests)
    threshold = flashmla.FlashMLAMetadataBuilder.reorder_batch_threshold
    return first_runner(reorder_batch_to_split_decodes_and_prefills, requests, decode_threshold=threshold)


class _Inputs:
    """What each request holds, the same in every order."""

    def __init__(self, poison: Poison, requests: tuple[Request, ...]) -> None:
        random = generator(poison)
        self.projection = torch.randn(LATENT, NUM_HEADS * (NOPE + VALUE), generator=random) * LATENT**-0.5
        self.latents: dict[str, Tensor] = {}
        self.queries: dict[str, Tensor] = {}
        for request in requests:
            self.latents[request.name] = torch.randn(request.num_tokens, LATENT + ROPE, generator=random)
            self.queries[request.name] = torch.randn(request.num_scheduled, NUM_HEADS, NOPE + ROPE, generator=random)

    def expected(self, request: Request) -> Tensor:
        """float64 [T, H, V]: attention of the request's new tokens over its own tokens up to each."""
        latents, q = self.latents[request.name].double(), self.queries[request.name].double()
        up = (latents[:, :LATENT] @ self.projection.double()).view(-1, NUM_HEADS, NOPE + VALUE)
        rope = latents[:, None, LATENT:].expand(-1, NUM_HEADS, -1)
        scores = torch.einsum("qhd,khd->hqk", q, torch.cat([up[..., :NOPE], rope], dim=-1)) * SCALE
        future = torch.ones_like(scores[0], dtype=torch.bool).triu(1 + request.num_computed)
        return torch.einsum("hqk,khv->qhv", scores.masked_fill(future, -torch.inf).softmax(-1), up[..., NOPE:])


class _Batch:
    """The step's tensors in the order of its requests, and vLLM's metadata of it."""

    def __init__(self, requests: tuple[Request, ...], inputs: _Inputs) -> None:
        self.requests = requests
        self.inputs = inputs
        self.q = torch.cat([inputs.queries[request.name] for request in requests])
        self.latents = torch.cat([inputs.latents[request.name][request.num_computed :] for request in requests])
        num_pages = -(-max(request.num_tokens for request in requests) // PAGE_SIZE)
        self.table = torch.arange(len(requests) * num_pages, dtype=torch.int32).view(len(requests), num_pages)
        self.cache = torch.zeros(len(requests) * num_pages, PAGE_SIZE, LATENT + ROPE)
        for request, pages in zip(requests, self.cache.view(len(requests), -1, LATENT + ROPE), strict=True):
            pages[: request.num_tokens] = inputs.latents[request.name]

    def metadata(self) -> Any:
        """What vLLM's builder makes of it."""
        lengths = [request.num_scheduled for request in self.requests]
        starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        seq_lens = torch.tensor([request.num_tokens for request in self.requests], dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=seq_lens,
            seq_lens_cpu_upper_bound=seq_lens,
            num_reqs=len(lengths),
            num_actual_tokens=sum(lengths),
            max_query_len=max(lengths),
            max_seq_len=int(seq_lens.max()),
            block_table_tensor=self.table,
            slot_mapping=torch.zeros(sum(lengths), dtype=torch.int64),
        )
        planned = mock.patch.object(flashmla, "get_mla_metadata", lambda *a, **k: (flashmla.FlashMLASchedMeta(), None))
        with planned, _Unpinned():
            return _builder().build(0, common)


class _Unpinned(TorchFunctionMode):
    """Host memory stays as it is: pinning it takes a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.pin_memory:
            return args[0]
        return func(*args, **{name: value for name, value in (kwargs or {}).items() if name != "pin_memory"})


class _Backend:
    """The two attention kernels of a prefill."""

    def prepare_metadata(self, metadata: Any) -> None:
        """Keep what the builder hands over."""
        self._metadata = metadata

    def run_prefill_new_tokens(self, q: Tensor, k: Tensor, v: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        """New tokens among themselves: [T, H, V] and [H, T]."""
        starts = self._metadata.query_start_loc.tolist()
        return causal_attention(q, k, v, list(itertools.pairwise(starts)), SCALE)

    def run_prefill_context_chunk(
        self, *, q: Tensor, k: Tensor, v: Tensor, chunk_idx: int = 0, chunk: Any = None
    ) -> tuple[Tensor, Tensor]:
        """New tokens over a chunk of context; rows without are 0 with an lse of -inf.

        Since 0.28.0 each `chunk` says which requests it is for.
        """
        if chunk is None:
            starts, keys = self._metadata.query_start_loc, self._metadata.chunked_context.cu_seq_lens[chunk_idx]
        else:
            starts, keys = chunk.query_start_loc, chunk.cu_seq_lens
        out, lse = context_attention(q, k, v, starts, keys, scale=SCALE)
        return out.masked_fill(lse.isneginf().T[..., None], 0.0), lse


class _Projection:
    """From latents to keys and values of all heads."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, latents: Tensor) -> tuple[Tensor, None]:
        return latents @ self.weight, None


def _builder() -> Any:
    """FlashMLA's builder as it stands after its own start, which needs a GPU to count processors."""
    builder = object.__new__(flashmla.FlashMLAMetadataBuilder)
    model = mock.Mock(dtype=torch.float32, **{"get_head_size.return_value": LATENT + ROPE})
    settings: dict[str, Any] = {
        "metadata_cls": flashmla.FlashMLAMetadata,
        "model_config": model,
        "device": torch.device("cpu"),
        "q_data_type": torch.float32,
        "num_q_heads": NUM_HEADS,
        "is_fp8_kvcache": False,
        "dcp_world_size": 1,
        # Read by 0.27.1 and later.
        "dcp_local_block_size": 1,
        "dcp_virtual_block_size": 1,
        "dcp_manager": None,
        "use_pcp": False,
        "aot_schedule": True,
        "page_size": PAGE_SIZE,
        "chunked_prefill_workspace_size": WORKSPACE_TOKENS,
        "chunked_prefill_workspace": torch.zeros(WORKSPACE_TOKENS, LATENT + ROPE),
        "_prefill_backend": _Backend(),
    }
    for name, value in settings.items():
        setattr(builder, name, value)
    return builder


def _impl(projection: Tensor) -> Any:
    """vLLM's implementation with the sizes of this batch."""
    impl = object.__new__(flashmla.FlashMLAImpl)
    settings: dict[str, Any] = {
        "dcp_world_size": 1,
        "num_heads": NUM_HEADS,
        "qk_nope_head_dim": NOPE,
        "v_head_dim": VALUE,
        "kv_lora_rank": LATENT,
        "kv_b_proj": _Projection(projection),
        "kv_cache_dtype": "auto",
        "_use_flashinfer_concat_mla_k": False,
    }
    for name, value in settings.items():
        setattr(impl, name, value)
    return impl


def _gathered(
    src_cache: Tensor, dst: Tensor, block_table: Tensor, cu_seq_lens: Tensor, token_to_seq: Tensor, num_tokens: Any,
    seq_starts: Tensor, **_: Any,
) -> None:  # fmt: skip
    """Stands in for vLLM's operator: the context tokens of one chunk, request by request, into `dst`."""
    for token in range(int(num_tokens)):
        request = int(token_to_seq[token])
        page, offset = divmod(token - int(cu_seq_lens[request]) + int(seq_starts[request]), PAGE_SIZE)
        dst[token] = src_cache[block_table[request, page], offset]


def _observed(request: Request, rows: Tensor, inputs: _Inputs) -> Observed:
    context = f"{request.num_computed} tokens of context" if request.num_computed else "no context"
    return Observed(
        name=f"prefill output of the {request.name}",
        tensor=rows,
        live=torch.ones(len(rows), dtype=torch.bool),
        expected=inputs.expected(request),
        bound="mla_decode.out.fp32",
        describe=f"{request.name} with {context}, new token",
    )
