"""A drafter with a layer of its own: it runs behind the target in each forward, on the same batch
and block tables.

A wrong guess costs speed and no answer, so nothing but its own numbers and the share of guesses
that come true shows an error (ROCm/ATOM#1764).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harness.core.seams import seam
from harness.engine.attention import PagedMLA
from harness.engine.batch import Batch
from harness.engine.memory import PagedMemory
from harness.engine.model.next_token import NextTokenModule
from harness.engine.speculation import greedy_tokens, look_up
from harness.memory.graph.launch import launch


class DraftMLA(PagedMLA):
    """The attention of the drafter, over pages of its own in the blocks of the request."""

    def _slots(self, batch: Batch) -> Tensor:
        return draft_slots(batch, self)


@seam("drafter.dummy-through-stale-rows")
def draft_slots(batch: Batch, attention: DraftMLA) -> Tensor:
    """The slots [T] of the drafter's latents: the target's, none in a dummy step
    (vllm-project/vllm#56734).
    """
    return batch.stored_slots


@seam("drafter.plane-of-the-target")
def draft_plane(num_layers: int) -> int:
    """The number of the drafter's layer in the cache, behind the target's
    (sgl-project/sglang#33497).
    """
    return num_layers


@seam("drafter.reduced-twice")
def reduced(out: Tensor) -> Tensor:
    """The block's output out [T, H] float32, which the ranks have reduced once already
    (ROCm/ATOM#1764).
    """
    return out


@seam("drafter.placeholder-as-token")
def tokens_behind(known: Tensor, guessed: Tensor) -> Tensor:
    """The token [T] int64 behind each row: `known` [T], or where that is a placeholder the target's
    own, `guessed` [T] int64 (vllm-project/vllm#46899).
    """
    return guessed.where(known < 0, known)


@seam("drafter.hidden-of-the-last-row")
def hidden_of_rows(hidden: Tensor) -> Tensor:
    """The target's hidden states [T, H] float32, each in its own row.

    A warm-up that keeps the last one before it reads the first conditions the first row on the
    future (ikawrakow/ik_llama.cpp#2222).
    """
    return hidden


@dataclass(slots=True)
class ModuleDrafter:
    """The paged form of a `NextTokenModule` behind the target with `embedding` [V, H]."""

    module: NextTokenModule
    embedding: Tensor
    attention: DraftMLA

    def forward(self, batch: Batch, memory: PagedMemory, hidden: Tensor, logits: Tensor) -> Tensor:
        """The target's hidden [T, H] and logits [T, V] -> draft logits [T, V].

        All are float32 in the reference engine; T counts padded rows too.
        """
        assert batch.next_tokens is not None
        tokens = tokens_behind(batch.next_tokens, greedy_tokens(logits))
        x = self.module.combined(hidden_of_rows(hidden), launch(look_up, tokens, self.embedding))
        layer = self.module.layer
        x = x + reduced(self.attention(layer.input_layernorm(x), batch, memory))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        out: Tensor = self.module.head(self.module.norm(x))
        return out
