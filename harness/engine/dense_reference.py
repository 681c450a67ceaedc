"""Reference logits of finished requests: a dense float64 forward over the tokens that the engine chose.

It reads no cache, page or graph. Where scores of a router or an indexer are nearly tied, rounding decides. Only there
the reference takes the experts or tokens that the engine took.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from harness.engine.model.layers import MoE, route
from harness.engine.model.mla import MLAAttention
from harness.engine.model.transformer import CausalLM, DecoderLayer
from harness.engine.schedule.scheduler import Sequence

Choices = dict[int, dict[int, Tensor]]
"""Request -> position -> choices [layers, k] of the engine."""


class DenseReference:
    """`model` in float64. `tie_margin` is how far a chosen expert may lie below the k-th largest router logit."""

    def __init__(self, model: CausalLM, tie_margin: float) -> None:
        self._model = copy.deepcopy(model).double()
        self._tie_margin = tie_margin

    @torch.no_grad()
    def logits(self, sequences: list[Sequence], expert_ids: Choices, selected: Choices | None = None) -> Tensor:
        """Logits [generated tokens of all sequences in order, vocab] float64 that each token was chosen from."""
        # The last token was never an input. Padding on the right changes nothing in a causal model.
        inputs = [sequence.tokens[:-1] for sequence in sequences]
        longest = max(len(tokens) for tokens in inputs)
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in inputs])
        positions = torch.arange(longest)
        x = self._model.embed_tokens(tokens)
        moe_layer = sparse_layer = 0
        for layer in self._model.layers:
            assert isinstance(layer, DecoderLayer)
            normed = layer.input_layernorm(x)
            attention = layer.self_attn
            if not isinstance(attention, MLAAttention):
                x = x + attention(normed)
            elif attention.indexer is None:
                x = x + attention(normed, positions)
            else:
                seen = _choices_tensor(sequences, selected or {}, sparse_layer, attention.indexer.topk, longest)
                # A spoiled list may point past the end.
                seen = torch.where(seen < longest, seen, -1)
                x = x + attention(normed, positions, visible_tokens(attention, normed, seen, self._tie_margin))
                sparse_layer += 1
            normed = layer.post_attention_layernorm(x)
            if isinstance(layer.mlp, MoE):
                taken = _choices_tensor(sequences, expert_ids, moe_layer, layer.mlp.num_experts_per_tok, longest)
                x = x + self._experts(layer.mlp, normed, taken)
                moe_layer += 1
            else:
                x = x + layer.mlp(normed)
        rows = [x[i, sequence.num_prompt_tokens - 1 : len(inputs[i])] for i, sequence in enumerate(sequences)]
        out: Tensor = self._model.compute_logits(torch.cat(rows))
        return out

    def _experts(self, moe: MoE, x: Tensor, taken: Tensor) -> Tensor:
        """x [B, T, hidden], taken [B, T, k] expert ids or -1 -> [B, T, hidden]."""
        flat, taken = x.flatten(0, 1), taken.flatten(0, 1)
        router_logits = moe.gate(flat)
        ids, _ = route(router_logits, moe.num_experts_per_tok)
        ids = torch.where(_tied(router_logits, ids, taken, self._tie_margin)[:, None], taken, ids)
        chosen = router_logits.gather(1, ids.long()).softmax(-1)
        out: Tensor = moe.combine(flat, ids, chosen).view_as(x)
        return out


def visible_tokens(attention: MLAAttention, x: Tensor, seen: Tensor, margin: float) -> Tensor:
    """Which tokens each query of a sparse layer sees, [B, T, T] bool: the best ones, or the engine's choice `seen`.

    `seen` [B, T, K] are positions, -1 for none. They are accepted where their number is right, none is in the future,
    and they score within `margin` of the best ones.
    """
    assert attention.indexer is not None
    best = attention.visible(x)
    assert best is not None
    is_token = seen >= 0
    taken = torch.zeros_like(best, dtype=torch.int64)
    taken.scatter_add_(-1, seen.clamp(min=0), is_token.long())
    causal = torch.ones_like(best[0]).tril()
    legal = (taken <= 1).all(-1) & ~(taken.bool() & ~causal).any(-1) & (taken.sum(-1) == best.sum(-1))
    scores = attention.indexer.scores(x, attention.indexer.keys(x))
    least = scores.masked_fill(~best, torch.inf).amin(-1) - margin
    tied = legal & (scores.masked_fill(~taken.bool(), torch.inf).amin(-1) >= least)
    return torch.where(tied[..., None], taken.bool(), best)


def _choices_tensor(sequences: list[Sequence], choices: Choices, layer: int, k: int, longest: int) -> Tensor:
    """The engine's choices in one layer as [B, T, k] int64; -1 where it made none."""
    chosen = torch.full((len(sequences), longest, k), -1, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        for position, choice in choices.get(sequence.request, {}).items():
            # A rejected draft may lie past the end.
            if position < longest:
                chosen[row, position] = choice[layer]
    return chosen


def _tied(router_logits: Tensor, ids: Tensor, taken: Tensor, margin: float) -> Tensor:
    """Rows [N] where the `taken` experts are distinct, exist, and lie within `margin` of the best ones `ids`."""
    num_experts = router_logits.shape[1]
    exist = ((taken >= 0) & (taken < num_experts)).all(1)
    inside = taken.clamp(0, num_experts - 1).long()
    distinct = torch.zeros_like(router_logits).scatter(1, inside, 1.0).sum(1) == taken.shape[1]
    least = router_logits.gather(1, ids.long()).amin(1) - margin
    return exist & distinct & (router_logits.gather(1, inside).amin(1) >= least)
