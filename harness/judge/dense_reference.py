"""Reference logits of finished requests: a dense float64 forward over the tokens that the engine
chose.

It reads no cache, page or graph. Where scores of a router or an indexer are nearly tied, rounding
decides. Only there the reference takes the experts or tokens that the engine took.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.engine.model.layers import MoE, route
from harness.engine.model.mla import MLAAttention
from harness.engine.model.transformer import CausalLM, DecoderLayer
from harness.engine.schedule.sequence import Sequence
from harness.evidence.decisions import Decisions, shortfall

Choices = dict[int, dict[int, Tensor]]
"""Request -> position -> choices [layers, k] of the engine."""
MOST_KNOWN = 8
"""How many batches of requests a reference remembers.

Patterns, epochs and kernels of a scenario repeat them.
"""


class DenseReference:
    """`model` in float64.

    `tie_margin` is how far a choice may score below the best one left out.
    """

    def __init__(self, model: CausalLM, tie_margin: float) -> None:
        self.model = copy.deepcopy(model).double()
        self.tie_margin = tie_margin
        self._known: dict[tuple[Any, ...], tuple[Tensor, list[Decisions]]] = {}

    @torch.no_grad()
    def judged(
        self, sequences: list[Sequence], expert_ids: Choices, selected: Choices | None = None
    ) -> tuple[Tensor, list[Decisions]]:
        """Logits [generated tokens of all sequences in order, vocab] float64 that each token was
        chosen from.

        And the decisions of each sequence; rounding of logits is left to the caller.
        """
        # The last token was never an input.
        longest = max(len(sequence.tokens) - 1 for sequence in sequences)
        choices = self._choices(sequences, longest, expert_ids, selected or {})
        # By what they are and not by their numbers: an epoch asks the same again.
        key = (
            tuple((made.num_prompt_tokens, *made.tokens) for made in sequences),
            tuple(chosen.numpy().tobytes() for chosen in choices),
        )
        known = self._known.pop(key, None) or self._judge(sequences, longest, choices)
        self._known[key] = known
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        # Copies, because the caller sets the margins of tokens on them.
        return known[0].clone(), [
            replace(made, request=sequence.request)
            for made, sequence in zip(known[1], sequences, strict=True)
        ]

    def _choices(
        self, sequences: list[Sequence], longest: int, expert_ids: Choices, selected: Choices
    ) -> list[Tensor]:
        """The engine's choices [B, T, k] int64 in each attention and MLP that chooses, in order."""
        chosen = []
        moe_layer = sparse_layer = 0
        for layer in self.model.layers:
            assert isinstance(layer, DecoderLayer)
            indexer = getattr(layer.self_attn, "indexer", None)
            if indexer is not None:
                chosen.append(
                    _choices_tensor(sequences, selected, sparse_layer, indexer.topk, longest)
                )
                sparse_layer += 1
            if isinstance(layer.mlp, MoE):
                k = layer.mlp.num_experts_per_tok
                chosen.append(_choices_tensor(sequences, expert_ids, moe_layer, k, longest))
                moe_layer += 1
        return chosen

    def _judge(
        self, sequences: list[Sequence], longest: int, choices: list[Tensor]
    ) -> tuple[Tensor, list[Decisions]]:
        # Padding on the right changes nothing in a causal model.
        inputs = [sequence.tokens[:-1] for sequence in sequences]
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in inputs])
        positions = torch.arange(longest)
        x = self.model.embed_tokens(tokens)
        of_layers = iter(choices)
        decided: list[tuple[str, Tensor, Tensor]] = []
        for number, layer in enumerate(self.model.layers):
            assert isinstance(layer, DecoderLayer)
            normed = layer.input_layernorm(x)
            attention = layer.self_attn
            if not isinstance(attention, MLAAttention):
                x = x + attention(normed)
            elif attention.indexer is None:
                x = x + attention(normed, positions)
            else:
                seen = next(of_layers)
                # A spoiled list may point past the end.
                seen = torch.where(seen < longest, seen, -1)
                visible, below = visible_tokens(attention, normed, seen, self.tie_margin)
                decided.append((f"the token selection of layer {number}", seen, below))
                x = x + attention(normed, positions, visible)
            normed = layer.post_attention_layernorm(x)
            if isinstance(layer.mlp, MoE):
                taken = next(of_layers)
                mixed, below = self.experts(layer.mlp, normed, taken)
                decided.append((f"the router of layer {number}", taken, below))
                x = x + mixed
            else:
                x = x + layer.mlp(normed)
        rows = [
            x[i, sequence.num_prompt_tokens - 1 : len(inputs[i])]
            for i, sequence in enumerate(sequences)
        ]
        logits: Tensor = self.model.compute_logits(torch.cat(rows))
        parts = zip(sequences, torch.split(logits, [len(row) for row in rows]), strict=True)
        return logits, [
            self._decisions(sequence, part, i, decided) for i, (sequence, part) in enumerate(parts)
        ]

    def _decisions(
        self,
        sequence: Sequence,
        logits: Tensor,
        index: int,
        decided: list[tuple[str, Tensor, Tensor]],
    ) -> Decisions:
        """The decisions of sequence `index`; its tokens were chosen from `logits` [G, vocab]."""
        tokens = sequence.tokens[sequence.num_prompt_tokens :]
        length = len(sequence.tokens) - 1
        return Decisions(
            sequence.request,
            sequence.num_prompt_tokens,
            tokens,
            [name for name, _, _ in decided],
            [taken[index, :length].sort(dim=-1).values for _, taken, _ in decided],
            [below[index, :length] for _, _, below in decided],
            self.tie_margin,
            logits.amax(-1) - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0],
            torch.zeros(len(tokens)),
        )

    def experts(self, moe: MoE, x: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, hidden], taken [B, T, k] expert ids or -1 -> [B, T, hidden], and the shortfall
        of `taken` [B, T].

        x and the shortfall are float64, `taken` int32 or int64.
        """
        flat = x.flatten(0, 1)
        taken = taken.flatten(0, 1)
        router_logits = moe.gate(flat)
        ids, _ = route(router_logits, moe.num_experts_per_tok)
        below = expert_shortfall(router_logits, taken)
        ids = torch.where((below <= self.tie_margin)[:, None], taken, ids)
        # The softmax over the chosen logits is that over all of them, renormalised.
        chosen = router_logits.gather(1, ids.long()).softmax(-1)
        out: Tensor = moe.combine(flat, ids, chosen, gathers=False).view_as(x)
        return out, below.view(x.shape[:2])


def visible_tokens(
    attention: MLAAttention, x: Tensor, seen: Tensor, margin: float
) -> tuple[Tensor, Tensor]:
    """Which tokens each query of a sparse layer sees, [B, T, T] bool: the best ones, or the
    engine's choice `seen`.

    x [B, T, hidden] is float64, seen [B, T, K] positions, -1 for none. They are accepted where
    their number is right, none is in the future, and none left out scores more than `margin` above
    them. The second result is their shortfall [B, T], inf if illegal. Both are in units of the
    row's scale, 1 at least: a score is a product of a query, a key and a weight, so the error of
    rounded activations grows with the scores of a query.
    """
    assert attention.indexer is not None
    best = attention.visible(x)
    assert best is not None
    is_token = seen >= 0
    taken = torch.zeros_like(best, dtype=torch.int64)
    # Counted and not set, so that a position that is listed twice is seen.
    taken.scatter_add_(-1, seen.clamp(min=0), is_token.long())
    causal = torch.ones_like(best[0]).tril()
    legal = (
        (taken <= 1).all(-1) & ~(taken.bool() & ~causal).any(-1) & (taken.sum(-1) == best.sum(-1))
    )
    scores = attention.indexer.scores(x, attention.indexer.keys(x)).masked_fill(~causal, -torch.inf)
    scale = (
        (scores.masked_fill(~causal, 0.0).square().sum(-1) / causal.sum(-1)).sqrt().clamp(min=1.0)
    )
    below = torch.where(legal, shortfall(scores, taken.bool()) / scale, torch.inf)
    return torch.where((below <= margin)[..., None], taken.bool(), best), below


def _choices_tensor(
    sequences: list[Sequence], choices: Choices, layer: int, k: int, longest: int
) -> Tensor:
    """The engine's choices in one layer as [B, T, k] int64; -1 where it made none."""
    chosen = torch.full((len(sequences), longest, k), -1, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        # A rejected draft may lie past the end.
        made = {
            position: choice[layer]
            for position, choice in choices.get(sequence.request, {}).items()
            if position < longest
        }
        if made:
            chosen[row, list(made)] = torch.stack(list(made.values())).to(chosen)
    return chosen


def expert_shortfall(router_logits: Tensor, taken: Tensor) -> Tensor:
    """How far the experts taken [N, k] int32 score below the best one left out; inf if they repeat
    or do not exist.

    router_logits [N, X] float64 -> [N] float64.
    """
    num_experts = router_logits.shape[1]
    exist = ((taken >= 0) & (taken < num_experts)).all(1)
    inside = taken.clamp(0, num_experts - 1).long()
    chosen = torch.zeros_like(router_logits, dtype=torch.bool).scatter(1, inside, True)
    return torch.where(
        exist & (chosen.sum(1) == taken.shape[1]), shortfall(router_logits, chosen), torch.inf
    )
