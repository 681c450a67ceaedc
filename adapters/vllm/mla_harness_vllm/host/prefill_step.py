"""A step of prompt chunks and fresh prompts through vLLM's metadata builder and chunked prefill, on
a CPU.

Metadata, context loop and merge are vLLM's. Up to 0.27.1 the metadata has the number of tokens with
context; since 0.28.0 each chunk names its requests (vllm-project/vllm#50613). The two attention
kernels, and the operator that gathers context from the cache, are the harness's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch_poison.allocations import AllocationPoison
from torch_poison.patterns import Poison
from vllm.model_executor.layers.attention import mla_attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla import flashmla

from harness.api import Allocated, InputError, Observed, Run
from mla_harness_adapters.host_parts import Without, lazy_plans, made_without_init, of_all_rows
from mla_harness_vllm.host.runner_order import ScheduledRequest

PAGE_SIZE = 16
NUM_HEADS = 2
NOPE = 128
ROPE = 64
VALUE = 128
LATENT = 512
SCALE = (NOPE + ROPE) ** -0.5
WORKSPACE_TOKENS = 64
FRESH = ScheduledRequest("fresh prompt", num_prompt=9, num_computed=0, num_scheduled=9)
DECODE = ScheduledRequest("decode", num_prompt=30, num_computed=30, num_scheduled=1)
"""Without a decode in the batch FlashMLA would decode short prompts of equal length."""
CHUNKS = {
    "longer": ScheduledRequest("prompt chunk", num_prompt=70, num_computed=40, num_scheduled=20),
    "shorter": ScheduledRequest("prompt chunk", num_prompt=70, num_computed=40, num_scheduled=5),
}
"""A chunk of a prompt with 40 tokens of context, longer or shorter than the fresh prompt."""

ContextKernel = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Attention over a chunk of context: (q, k, v, starts, keys) -> output [T, H, V], log-sum-exp [H,
T].

q [T, H, D], k [C, H, D], v [C, H, V]; `starts` and `keys` [B + 1] are where each request's rows
begin in q and in k.
"""


class Inputs:
    """Queries and latents of each request.

    They depend on neither the pattern nor the order of the batch.
    """

    def __init__(self, poison: Poison, requests: tuple[ScheduledRequest, ...]) -> None:
        random = torch.Generator().manual_seed(poison.seed)
        self.projection = (
            torch.randn(LATENT, NUM_HEADS * (NOPE + VALUE), generator=random) * LATENT**-0.5
        )
        self.latents: dict[str, Tensor] = {}
        self.queries: dict[str, Tensor] = {}
        for request in requests:
            self.latents[request.name] = torch.randn(
                request.num_tokens, LATENT + ROPE, generator=random
            )
            self.queries[request.name] = torch.randn(
                request.num_scheduled, NUM_HEADS, NOPE + ROPE, generator=random
            )

    def expected(self, request: ScheduledRequest) -> Tensor:
        """Causal attention of the request's new tokens over its own tokens: float64 [T, H, V]."""
        latents = self.latents[request.name].double()
        q = self.queries[request.name].double()
        up = (latents[:, :LATENT] @ self.projection.double()).view(-1, NUM_HEADS, NOPE + VALUE)
        rope = latents[:, None, LATENT:].expand(-1, NUM_HEADS, -1)
        scores = torch.einsum("qhd,khd->hqk", q, torch.cat([up[..., :NOPE], rope], dim=-1)) * SCALE
        # New token t sees the context and the new tokens up to itself.
        future = torch.ones_like(scores[0], dtype=torch.bool).triu(1 + request.num_computed)
        return torch.einsum(
            "hqk,khv->qhv", scores.masked_fill(future, -torch.inf).softmax(-1), up[..., NOPE:]
        )


class PrefillStep:
    """One step, with its tensors in the order of `requests`.

    Raises InputError if vLLM decodes a prompt of the step.
    """

    def __init__(
        self, requests: tuple[ScheduledRequest, ...], inputs: Inputs, context_kernel: ContextKernel
    ) -> None:
        self._requests = requests
        self._inputs = inputs
        self._q = torch.cat([inputs.queries[request.name] for request in requests])
        self._latents = torch.cat(
            [inputs.latents[request.name][request.num_computed :] for request in requests]
        )
        num_pages = -(-max(request.num_tokens for request in requests) // PAGE_SIZE)
        self._table = torch.arange(len(requests) * num_pages, dtype=torch.int32).view(
            len(requests), num_pages
        )
        self._cache = torch.zeros(len(requests) * num_pages, PAGE_SIZE, LATENT + ROPE)
        for request, pages in zip(
            requests, self._cache.view(len(requests), -1, LATENT + ROPE), strict=True
        ):
            pages[: request.num_tokens] = inputs.latents[request.name]
        self._metadata = self._planned(_Backend(context_kernel))
        # Short prompts may be decoded by a release. Then the path under test would not run.
        if self._metadata.num_prefills != len(requests) - 1:
            raise InputError(
                f"vLLM takes only {self._metadata.num_prefills} of this batch for prefills"
            )

    def run(self, poison: Poison) -> Run:
        """Run vLLM's `forward_mha` and observe each prefill's output rows.

        What it allocates is context output.
        """
        # Without `keep` every allocation is number 0, so each has this site.
        with AllocationPoison(poison, {0: "context.output"}, keep=False, notes_lines=True) as mode:
            observed = self._prefill()
        allocated = [Allocated(site, lines) for site, lines in mode.lines.items()]
        return Run(poison.pattern, [*observed, *allocated])

    def _prefill(self) -> list[Observed]:
        """The output rows of each prefill with the expected rows."""
        start = self._metadata.num_decode_tokens
        output = torch.zeros(len(self._q) - start, NUM_HEADS * VALUE)
        impl = attention(_Projection(self._inputs.projection))
        with mock.patch.object(mla_attention.ops, "gather_and_maybe_dequant_cache", _gather):
            impl.forward_mha(
                q=self._q[start:],
                kv_c_normed=self._latents[start:, :LATENT],
                k_pe=self._latents[start:, None, LATENT:],
                kv_c_and_k_pe_cache=self._cache,
                attn_metadata=self._metadata,
                k_scale=torch.ones(()),
                output=output,
            )
        prefills = self._requests[self._metadata.num_decodes :]
        rows = torch.split(
            output.view(-1, NUM_HEADS, VALUE), [request.num_scheduled for request in prefills]
        )
        return [
            _observed(request, own, self._inputs)
            for request, own in zip(prefills, rows, strict=True)
        ]

    def _planned(self, backend: _Backend) -> Any:
        num_new = [request.num_scheduled for request in self._requests]
        common = step_metadata(
            num_new, [request.num_tokens for request in self._requests], self._table
        )
        with lazy_plans(flashmla), Without("pin_memory"):
            return builder(backend).build(0, common)


class _Backend:
    """The two attention kernels of a prefill."""

    def __init__(self, context_kernel: ContextKernel) -> None:
        self._context_kernel = context_kernel

    @staticmethod
    def get_name() -> str:
        """Called since 0.30.0, where one backend needs aligned offsets."""
        return "HARNESS"

    def prepare_metadata(self, metadata: Any) -> None:
        self._metadata = metadata

    def run_prefill_new_tokens(
        self, q: Tensor, k: Tensor, v: Tensor, **_: Any
    ) -> tuple[Tensor, Tensor]:
        """Causal attention of each request's new tokens: q [T, H, D], k [T, H, D], v [T, H, V], all
        float32 -> output [T, H, V] and log-sum-exp [H, T].
        """
        # Where each prompt begins among the new tokens of prompts alone, as decodes stand in front.
        starts = self._metadata.query_start_loc.tolist()
        outs = []
        lses = []
        for start, end in itertools.pairwise(starts):
            scores = torch.einsum("qhd,khd->hqk", q[start:end], k[start:end]) * SCALE
            future = torch.ones(end - start, end - start, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
            lses.append(scores.logsumexp(-1))
            outs.append(torch.einsum("hqk,khv->qhv", scores.softmax(-1), v[start:end]))
        return torch.cat(outs), torch.cat(lses, dim=1)

    def run_prefill_context_chunk(
        self, *, q: Tensor, k: Tensor, v: Tensor, chunk_idx: int = 0, chunk: Any = None
    ) -> tuple[Tensor, Tensor]:
        """New tokens over a chunk of context: q [T, H, D], k [C, H, D], v [C, H, V], all float32 ->
        output [T, H, V] and log-sum-exp [H, T].

        Since 0.28.0 tokens of `chunk` alone.
        """
        if chunk is None:
            starts = self._metadata.query_start_loc
            keys = self._metadata.chunked_context.cu_seq_lens[chunk_idx]
        else:
            starts = chunk.query_start_loc
            keys = chunk.cu_seq_lens
        return self._context_kernel(q, k, v, starts, keys)


class _Projection:
    """From latents to keys and values of all heads. vLLM reads the dtype of `weight`."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, latents: Tensor) -> tuple[Tensor, None]:
        return latents @ self.weight, None


def step_metadata(
    num_new: Sequence[int], num_tokens: Sequence[int], table: Tensor, **other: Any
) -> Any:
    """What vLLM tells all builders of a step: new and all tokens of each request, and the block
    table [R, M].
    """
    starts = torch.tensor([0, *num_new]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(num_tokens, dtype=torch.int32)
    given = dict(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(num_new),
        num_actual_tokens=sum(num_new),
        max_query_len=max(num_new),
        max_seq_len=max(num_tokens),
        block_table_tensor=table,
        slot_mapping=torch.zeros(sum(num_new), dtype=torch.int64),
    )
    return CommonAttentionMetadata(**given | other)


def attention(projection: Any, **other: Any) -> Any:
    """vLLM's attention of an MLA layer, of one rank unless `other` attributes say more."""
    attributes = dict(
        dcp_world_size=1,
        num_heads=NUM_HEADS,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=VALUE,
        kv_lora_rank=LATENT,
        kv_b_proj=projection,
        kv_cache_dtype="auto",
        _use_flashinfer_concat_mla_k=False,
    )
    # Its constructor chooses kernels by the GPU. The method under test reads these attributes
    # alone.
    return made_without_init(flashmla.FlashMLAImpl, **attributes | other)


def builder(backend: Any, **other: Any) -> Any:
    """vLLM's builder of a step's metadata, of one rank unless `other` attributes say more."""
    attributes = dict(
        metadata_cls=flashmla.FlashMLAMetadata,
        model_config=mock.Mock(
            dtype=torch.float32, **{"get_head_size.return_value": LATENT + ROPE}
        ),
        device=torch.device("cpu"),
        q_data_type=torch.float32,
        num_q_heads=NUM_HEADS,
        is_fp8_kvcache=False,
        dcp_world_size=1,
        # Read since 0.27.1.
        dcp_local_block_size=1,
        dcp_virtual_block_size=1,
        dcp_manager=None,
        use_pcp=False,
        aot_schedule=True,
        page_size=PAGE_SIZE,
        chunked_prefill_workspace_size=WORKSPACE_TOKENS,
        chunked_prefill_workspace=torch.zeros(WORKSPACE_TOKENS, LATENT + ROPE),
        _prefill_backend=backend,
    )
    return made_without_init(flashmla.FlashMLAMetadataBuilder, **attributes | other)


def _gather(
    src_cache: Tensor, dst: Tensor, block_table: Tensor, cu_seq_lens: Tensor, **chunk: Any
) -> None:
    """Stands in for vLLM's operator: copies the context tokens of one chunk to `dst`, one request
    after another.
    """
    for token in range(int(chunk["num_tokens"])):
        request = int(chunk["token_to_seq"][token])
        # A chunk begins at `seq_starts` within each request's context.
        page, offset = divmod(
            token - int(cu_seq_lens[request]) + int(chunk["seq_starts"][request]), PAGE_SIZE
        )
        dst[token] = src_cache[block_table[request, page], offset]


def _observed(request: ScheduledRequest, rows: Tensor, inputs: Inputs) -> Observed:
    context = f"{request.num_computed} tokens of context" if request.num_computed else "no context"
    name = f"prefill output of the {request.name}"
    describe = f"with {context}, new token"
    return of_all_rows(name, rows, inputs.expected(request), "mla_decode.out.fp32", describe)
