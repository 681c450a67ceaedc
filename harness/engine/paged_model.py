"""The model as a server runs it: the weights of `engine.model` on paged memory and kernels under
test.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from torch import Tensor
from torch_poison.patterns import Poison

from harness.core.engine_params import EngineParams
from harness.core.seams import seam
from harness.engine.attention import PagedMLA, PagedWindowMLA
from harness.engine.batch import Batch
from harness.engine.experts import RoutedExperts
from harness.engine.kernels import ActivationQuantizer, BlockQuantizer, Kernels
from harness.engine.linear_attention import PagedKDA
from harness.engine.memory import PagedMemory
from harness.engine.model.kda import KimiDeltaAttention
from harness.engine.model.layers import MoE
from harness.engine.model.mla import Adapters, MLAAttention, absorbed_parts
from harness.engine.model.next_token import NextTokenModule
from harness.engine.model.transformer import CausalLM, DecoderLayer
from harness.engine.next_tokens import DraftMLA, ModuleDrafter, draft_plane
from harness.engine.sparse_attention import PagedSparseMLA
from harness.memory.graph.launch import eager_part


@dataclass(slots=True)
class Forwarded:
    """The result of a forward: hidden [T, hidden] before the final norm, and logits [T, vocab].

    `drafted` are the logits [T, vocab] of a module that drafts. `expert_ids` has the experts [T, k]
    int32 of each MoE layer, `selected` the positions [T, K] int32 that each token attended to in
    each sparse layer, -1 for none.
    """

    hidden: Tensor
    logits: Tensor
    expert_ids: list[Tensor]
    selected: list[Tensor] = field(default_factory=list)
    drafted: Tensor | None = None


class PagedModel:
    """A `CausalLM` with attention, quantization and routing by kernels under test.

    Each forward runs within `around_forward` of its number of tokens.
    """

    def __init__(
        self,
        model: CausalLM,
        params: EngineParams,
        kernels: Kernels,
        poison: Poison,
        around_forward: Callable[[int], AbstractContextManager[object]] = nullcontext,
        drafter: NextTokenModule | None = None,
    ) -> None:
        self.model = model
        self.kernels = kernels
        self._around_forward = around_forward
        self._quantize = _quantizer(params, kernels, poison)
        self._attention: list[PagedMLA | PagedSparseMLA | PagedKDA] = []
        self._experts: list[RoutedExperts | None] = []
        for attention in model.mla_layers():
            # Other cases read `kv_b_proj` itself. Only a change of weights can leave these stale.
            if params.changes:
                weight, attention.absorbed_scale = absorbed_parts(attention.kv_b_proj.weight)
                attention.absorbed = weight.view(attention.num_heads, -1, attention.kv_lora_rank)
            if params.adapters:
                num_slots = max(params.adapters) + 1
                weight = attention.kv_b_proj.weight
                attention.adapters = Adapters(num_slots, weight, model.config.num_heads)
        moves = any(change == "move_experts" for change, _ in params.changes)
        for index, layer in enumerate(self._layers()):
            self._attention.append(self._paged(layer.self_attn, index, params, poison))
            moe = layer.mlp if isinstance(layer.mlp, MoE) else None
            self._experts.append(
                RoutedExperts(moe, kernels, poison, params.expert_ranks, moves) if moe else None
            )
        self.drafter = None if drafter is None else self._paged_drafter(drafter, params)

    def _paged_drafter(self, module: NextTokenModule, params: EngineParams) -> ModuleDrafter:
        assert isinstance(module.layer.self_attn, MLAAttention)
        plane = draft_plane(len(self._attention))
        attention = DraftMLA(
            module.layer.self_attn,
            plane,
            self.kernels,
            self._quantize,
            params.context_chunk,
            params.context_ranks,
        )
        return ModuleDrafter(module, self.model.embed_tokens.weight, attention)

    def _paged(
        self,
        attention: MLAAttention | KimiDeltaAttention,
        index: int,
        params: EngineParams,
        poison: Poison,
    ) -> PagedMLA | PagedSparseMLA | PagedKDA:
        if not isinstance(attention, MLAAttention):
            return PagedKDA(attention, index)
        if attention.indexer is not None:
            return PagedSparseMLA(attention, index, self.kernels, self._quantize, poison)
        kind = PagedMLA if attention.sliding_window is None else PagedWindowMLA
        return kind(
            attention,
            index,
            self.kernels,
            self._quantize,
            params.context_chunk,
            params.context_ranks,
        )

    def routed_experts(self) -> list[RoutedExperts]:
        return [experts for experts in self._experts if experts is not None]

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, and what is made of them after loading: all that a load writes."""
        found: dict[str, Tensor] = dict(self.model.named_parameters())
        for number, attention in enumerate(self.model.mla_layers()):
            for name in ("absorbed", "absorbed_scale"):
                if (tensor := getattr(attention, name)) is not None:
                    found[f"mla.{number}.{name}"] = tensor
            if (pairs := attention.adapters) is not None:
                found |= {f"mla.{number}.adapters.a": pairs.a, f"mla.{number}.adapters.b": pairs.b}
        for number, experts in enumerate(self.routed_experts()):
            for rank, held in enumerate(experts.ranks):
                found |= {
                    # Without the trap behind the experts, which no load writes.
                    f"moe.{number}.rank{rank}.{part}": tensor[:-1]
                    for part, tensor in enumerate(held)
                }
        return found

    def constants(self) -> list[Tensor]:
        """Tensors that graphs read and that no step writes: the places of experts, counters that
        decodes leave zero.
        """
        places = [
            experts.place_of for experts in self.routed_experts() if experts.place_of is not None
        ]
        workspace = self.kernels.workspace
        return (
            places if workspace is None else [*places, workspace.counters(workspace.num_requests)]
        )

    def forward(self, batch: Batch, memory: PagedMemory) -> Forwarded:
        """Run a batch and update `memory`. A decode has no host reads, so it can be captured."""
        x = batch.hidden
        expert_ids: list[Tensor] = []
        selected: list[Tensor] = []
        with self._around_forward(len(x)):
            for layer, attend, experts in zip(
                self._layers(), self._attention, self._experts, strict=True
            ):
                # In a breakable graph the attention runs between two segments. Elsewhere this is a
                # plain call.
                attended = eager_part(attend, handed_over(layer.input_layernorm(x)), batch, memory)
                if isinstance(attended, tuple):
                    attended, positions = attended
                    selected.append(positions)
                x = x + attended
                normed = layer.post_attention_layernorm(x)
                if experts is None:
                    x = x + layer.mlp(self._quantize(normed, batch))
                else:
                    mixed, ids = experts(normed, batch, self._quantize)
                    expert_ids.append(ids)
                    x = x + mixed
            logits = self.model.compute_logits(x)
            drafted = (
                None if self.drafter is None else self.drafter.forward(batch, memory, x, logits)
            )
            return Forwarded(x, logits, expert_ids, selected, drafted)

    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.model.layers if isinstance(layer, DecoderLayer)]


@seam("graph.weak-segment-output")
def handed_over(x: Tensor) -> Tensor:
    """What a segment gives to an eager part: x [T, hidden] float32.

    It is owned until that part has read it (ROCm/ATOM#1902).
    """
    return x


def _quantizer(params: EngineParams, kernels: Kernels, poison: Poison) -> ActivationQuantizer:
    if params.quantize == "mxfp8":
        return BlockQuantizer(
            kernels.quantize_blocks, poison, params.quantize, params.dp_rank_tokens
        )
    kernel = None if params.quantize == "none" else kernels.quantize_fp8
    return ActivationQuantizer(
        kernel, poison, params.dp_rank_tokens, whole_batch=params.amax_rows == "batch"
    )
