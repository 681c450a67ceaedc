"""The kernels under test as an engine calls them: bound to the poison of the run, with the memory
that they share.

Activations are rounded to fp8 or MXFP8 before a projection, where one row can spoil others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.catalog import KERNELS
from harness.core.cause_codes import Code
from harness.core.engine_params import EngineParams
from harness.core.errors import KernelError
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.core.params import KvType
from harness.core.seams import seam
from harness.core.systems import ENGINE_KERNELS
from harness.engine.batch import Batch
from harness.engine.memory import KV_DTYPES
from harness.kernels.call import BoundKernel
from harness.kernels.outputs import wrong_count
from harness.memory.graph.launch import launch
from harness.ops.parts.block_formats import FORMATS, SCALE_TILE, decoded_scales, decoded_values

GUARD_WORDS = 16
GUARD = 0x5AFE5AFE
"""The words behind the last counter, which no kernel may write."""


class Workspace:
    """The workspace of one engine.

    words: [num_requests + GUARD_WORDS] int32, a counter for each request of a decode, and GUARD
    behind them. scratch: [T, H, D] float32, where the query of a decode is put together; it stays
    dirty.
    """

    def __init__(self, params: EngineParams, device: torch.device | str = "cpu") -> None:
        self.num_requests = num_counters(params)
        query_len = 1 + params.speculative_tokens
        head_dim = params.kv_lora_rank + params.qk_rope_head_dim
        # Graphs pad a batch to their size, so the largest one counts too.
        num_tokens = query_len * max(params.max_num_seqs, *params.capture_sizes)
        self.scratch = torch.zeros(num_tokens, params.num_heads, head_dim, device=device)
        self.words = torch.zeros(self.num_requests + GUARD_WORDS, dtype=torch.int32, device=device)
        # A kernel that counts past its requests changes these words, and a guard sees it.
        self.words[self.num_requests :] = GUARD

    @seam("graph.workspace-grows", "graph.workspace-in-pool", "workspace.dirty-counters")
    def counters(self, num_requests: int) -> Tensor:
        """The counters for a batch of `num_requests`: the same memory for every batch, used for
        nothing else.

        Counters that grow with the batch leave graphs with an old address
        (vllm-project/vllm#45487). Counters made in a capture lie in the graph's pool
        (ROCm/aiter#5393). Counters in shared scratch are not zero (vllm-project/vllm#25520).
        """
        return self.words[: min(num_requests, self.num_requests)]

    def query(self, nope: Tensor, rope: Tensor) -> Tensor:
        """Concatenate nope [T, H, R] and rope [T, H, E] float32 in the scratch: [T, H, R + E].

        The address is the same for each batch, as a graph needs it.
        """
        return torch.cat((nope, rope), dim=-1, out=self.scratch[: nope.shape[0]])


@seam("graph.buffers-by-request-limit")
def num_counters(params: EngineParams) -> int:
    """The most requests of a batch, padding included: the request limit or the largest graph
    (vllm-project/vllm#41016).
    """
    return max(params.max_num_seqs, *params.capture_sizes)


class EngineKernel(BoundKernel):
    """A kernel as the engine calls it: in the dtype that it declares, with `kv_lora_rank` if it
    takes that.

    The engine computes in float32. A kernel that declares bfloat16 alone gets rounded activations.
    """

    def __init__(self, spec: KernelSpec, poison: Poison, kv_lora_rank: int) -> None:
        super().__init__(spec, poison)
        op = OPS.get(spec.op)
        self._has_several = len(op.outputs) > 1
        is_bf16 = spec.shapes is not None and not spec.shapes.accepts("dtype", "fp32")
        self._rounded = [is_bf16 and name in op.activations for name in op.positional]
        self._keywords = {"kv_lora_rank": kv_lora_rank} if "kv_lora_rank" in spec.takes else {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [
            arg.to(torch.bfloat16) if rounded else arg
            for arg, rounded in zip(args, self._rounded, strict=False)
        ]
        result = super().__call__(*given, *args[len(given) :], **kwargs, **self._keywords)
        num_values = len(result) if isinstance(result, tuple | list) else 1
        # Checked here, because to unpack too few values would fail in the engine and be blamed on
        # it.
        if self._has_several and (
            problem := wrong_count(self.spec, num_values if self.spec.gives_lse else 1)
        ):
            message = f"{self.spec.name} returned {problem}"
            raise KernelError(message, cause=Code.BAD_OUTPUT, kernel=self.spec.name)
        return (
            (result[0].to(args[0].dtype), *result[1:])
            if any(self._rounded) and result is not None
            else result
        )


@dataclass(frozen=True, slots=True)
class Kernels:
    """One kernel for each op, the workspace of a decode kernel that needs one, and the options of
    its planner.
    """

    mla_decode: BoundKernel
    mla_decode_plan: BoundKernel
    mla_decode_sparse: BoundKernel
    index_logits: BoundKernel
    select_topk: BoundKernel
    map_indices: BoundKernel
    context_attention: BoundKernel
    merge_attn_states: BoundKernel
    write_kv: BoundKernel
    quantize_fp8: BoundKernel
    route_experts: BoundKernel
    quantize_blocks: BoundKernel
    workspace: Workspace | None = None
    plan_options: Mapping[str, Any] = field(default_factory=dict)


def bind(params: EngineParams, poison: Poison, device: torch.device | str = "cpu") -> Kernels:
    """Load the kernels that `params` names, with a workspace on `device` for one that takes it.

    Raises UnknownNameError for an unregistered kernel.
    """
    names = {op: getattr(params, field) for field, op in ENGINE_KERNELS.items()}
    if params.quantize == "fp8_per_token":
        # Another kernel of the same op. The one of the case has one scale for the whole tensor.
        names["quantize_fp8"] = "per-token"
    rank = params.kv_lora_rank
    bound = {
        op: EngineKernel(KERNELS.get(f"{op}/{name}"), poison, rank) for op, name in names.items()
    }
    decode = bound["mla_decode"].spec
    plan = bound["mla_decode_plan"].spec
    # One plan serves all layers, so chunks of pages need caches of one type.
    has_one_type = "window" not in params.layers or params.window_kv in (None, params.kv)
    in_chunks = decode.chunked and plan.chunked and has_one_type
    return Kernels(
        **bound,
        workspace=Workspace(params, device) if "workspace" in decode.takes else None,
        plan_options={"kv_itemsize": planned_itemsize(params.kv)} if in_chunks else {},
    )


@seam("plan.wrong-element-size")
def planned_itemsize(kv: KvType) -> int:
    """The size in bytes of an element of the cache, for the planner.

    A plan made for bfloat16 does not fit a cache of another type (vllm-project/vllm#38719).
    """
    return KV_DTYPES[kv].itemsize


@dataclass(eq=False)
class ActivationQuantizer:
    """Rounds the input of a projection to e4m3 and back, as in a scaled fp8 GEMM.

    Does nothing without a kernel.

    With one scale for the tensor, a NaN in a row that the maximum covers makes every row NaN.
    Data-parallel ranks pad activations to `rank_tokens`, the tokens of the longest rank. With
    `whole_batch` the scale covers padded rows too, as in an engine that keeps them finite.
    """

    kernel: BoundKernel | None
    poison: Poison
    rank_tokens: int = 0
    whole_batch: bool = False

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        """x: [T, K] -> the same shape and dtype, rounded."""
        if self.kernel is None:
            return x
        num_tokens = len(x)
        num_live: Tensor | int | None = None if self.whole_batch else rows_of_amax(batch)
        if num_tokens < self.rank_tokens:
            x = launch(pad_to_longest_rank, x, self.rank_tokens, self.poison)
            num_live = rows_of_this_rank(num_tokens) if num_live is None else num_live
        x8, scale = self.kernel(x, num_live=num_live)
        # A kernel may give one scale, one a row, or one a block of a row: all are spread over the
        # row's elements.
        scale = scale.repeat_interleave(x8.shape[1] // scale.shape[-1], dim=-1)
        rounded: Tensor = x8.to(x.dtype) * scale.to(x.dtype)
        return rounded[:num_tokens]


def pad_to_longest_rank(x: Tensor, num_rows: int, poison: Poison) -> Tensor:
    """x [T, K] with unwritten rows behind it, [num_rows, K].

    x is float32. The rows behind it are no token of this rank; collectives need equal shapes.
    """
    padded = poison.empty(num_rows, x.shape[1], dtype=x.dtype, site="dp.pad_rows", device=x.device)
    padded[: len(x)] = x
    return padded


@seam("scale.dp-padding-in-amax")
def rows_of_this_rank(num_tokens: int) -> int | None:
    """The rows that a scale covers in a batch padded for data parallelism: the rank's own tokens,
    or None for all.

    The padding is uninitialised memory (sgl-project/sglang#26133).
    """
    return num_tokens


def live_rows(batch: Batch) -> Tensor | None:
    """The number [1] int32 of live rows, which come first, or None if all rows are live.

    It is a tensor, because it changes from replay to replay of a graph.
    """
    return None if batch.prefill or batch.decode is None else batch.decode.num_live


@seam("graph.padded-rows-in-amax")
def rows_of_amax(batch: Batch) -> Tensor | None:
    """The number [1] int32 of first rows that a scale covers, or None for all: the live rows.

    Decode kernels leave padded rows unwritten (vllm-project/vllm#37442, vllm-project/vllm#38359).
    """
    return live_rows(batch)


class BlockQuantizer(ActivationQuantizer):
    """Rounds the input of a projection to a block format and back.

    A row can spoil another only through the scales.
    """

    def __init__(
        self, kernel: BoundKernel, poison: Poison, block_format: str, rank_tokens: int = 0
    ) -> None:
        super().__init__(kernel, poison, rank_tokens)
        self._blocks = kernel
        self._format = block_format

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        """x: [T, K] -> the same shape and dtype, rounded. Padded rows are 0 or undefined."""
        num_tokens = len(x)
        num_live = live_rows(batch)
        if num_tokens < self.rank_tokens:
            x = launch(pad_to_longest_rank, x, self.rank_tokens, self.poison)
        offsets = launch(one_expert, num_tokens if num_live is None else num_live, len(x))
        values, scales = self._blocks(x, offsets, block_format=self._format)
        rounded: Tensor = launch(apply_scales, values, scales, self._format)
        return rounded[:num_tokens].to(x.dtype)


def one_expert(num_live: int | Tensor, num_rows: int) -> Tensor:
    """`expert_offsets` [2] int32 that give the first num_live, an int or [1] int32, of `num_rows`
    rows to one expert.

    A capture runs on dummy inputs of the largest graph, so `num_live` may exceed `num_rows`.
    """
    end = torch.as_tensor(num_live, dtype=torch.int32).reshape(1).clamp(max=num_rows)
    return torch.cat((torch.zeros_like(end), end))


def apply_scales(values: Tensor, scales: Tensor, block_format: str) -> Tensor:
    """Codes values [T, C] uint8 and scale codes scales [S, G] uint8 as numbers [T, K] float32,
    scaled by whole tiles as in a GEMM.

    Scales are taken relative to the largest of their tile. They are powers of two, so this is
    exact, but it reads the rows that pad the tile.
    """
    form = FORMATS[block_format]
    tiles = decoded_scales(scales, form).view(-1, SCALE_TILE, scales.shape[1])
    largest = tiles.amax(dim=1, keepdim=True)
    relative = (tiles / largest).flatten(0, 1)
    largest = largest.expand_as(tiles).flatten(0, 1)
    # Scales cover the live rows alone, but in whole tiles. There may be more of them than rows.
    num_rows = min(len(values), len(scales))
    blocks = decoded_values(values[:num_rows], form).view(num_rows, -1, form.block)
    out = torch.zeros(len(values), scales.shape[1] * form.block, device=values.device)
    out[:num_rows] = (blocks * relative[:num_rows, :, None] * largest[:num_rows, :, None]).flatten(
        1
    )
    return out
