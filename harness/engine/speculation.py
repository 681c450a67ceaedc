"""Speculative decoding: drafts are verified by the target's tokens.

Drafters have graphs of their own, or no model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.sequence import Sequence
from harness.memory.bounds import check_indices
from harness.memory.graph.interface import Graph, GraphPool
from harness.memory.graph.launch import launch

MATCH = 2
"""How many last tokens must match earlier ones."""
FILLER_DRAFT = 0
"""The draft without a match. All decoding requests of a batch verify the same number of drafts."""


@seam("verify.nan-row-to-vocab-size")
def greedy_tokens(logits: Tensor) -> Tensor:
    """The token [rows] int64 with the largest of logits [rows, vocab] float32 of each row, padded
    rows included.

    A row of NaN must give a token of the vocabulary: the drafter looks up the tokens of padded rows
    too (vllm-project/vllm#53029).
    """
    return logits.argmax(dim=-1)


def confirmed(drafts: list[int], tokens: list[int]) -> list[int]:
    """The target's tokens up to the first wrong draft.

    `tokens` [1 + len(drafts)] are the target's choices after the last token and after each draft.
    """
    given = tokens[:1]
    for draft, token in zip(drafts, tokens[1:], strict=True):
        if draft != given[-1]:
            break
        given.append(token)
    return given


@seam("drafter.row-of-partial-accept")
def row_behind(given: list[int]) -> int:
    """The row of the last accepted token, where the next draft is found (antirez/ds4#750)."""
    return len(given) - 1


@seam("verify.rows-of-kept-drafts")
def rows_walked(num_rows: int, given: list[int]) -> int:
    """How many rows to go on for the next request: all that were verified, kept or not
    (vllm-project/vllm#49738).
    """
    return num_rows


class SuffixDrafts:
    """Drafts are the tokens that followed an earlier match of the last tokens, in any request."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._histories: dict[int, list[int]] = {}

    def propose(self, sequence: Sequence) -> list[int]:
        """`count` drafts for the next tokens of `sequence`."""
        # The list itself, which the engine goes on appending to.
        self._histories[sequence.request] = sequence.tokens
        found = self._continuation(sequence.tokens)
        return (found + [FILLER_DRAFT] * self._count)[: self._count]

    def _continuation(self, tokens: list[int]) -> list[int]:
        for history in reversed(self._histories.values()):
            # The newest match first. A match at the very end has no token behind it to propose.
            for end in range(len(history) - 1, MATCH - 1, -1):
                if history[end - MATCH : end] == tokens[-MATCH:]:
                    return history[end : end + self._count]
        return []


class GraphDrafter:
    """Guesses from the target's hidden state and its token, row by row.

    It shares the target's embedding and output head, with a fixed mixing matrix between them.
    """

    def __init__(self, model: CausalLM, max_size: int, pool: GraphPool) -> None:
        hidden = model.config.hidden_size
        generator = torch.Generator().manual_seed(0)
        device = model.embed_tokens.weight.device
        self._mixing = (torch.randn(hidden, hidden, generator=generator) * hidden**-0.5).to(device)
        self._model = model
        self._pool = pool
        self._static = torch.zeros(max_size, hidden, device=device)
        self._tokens = torch.zeros(max_size, dtype=torch.int64, device=device)
        self._graphs: dict[int, Graph] = {}

    def capture(self, size: int) -> None:
        hidden = self._static[:size]
        tokens = self._tokens[:size]
        # Once before the capture, which can compile nothing.
        self.forward(hidden, tokens)
        self._graphs[size] = self._pool.capture(lambda: self.forward(hidden, tokens))

    def replay(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """hidden [B, hidden] float32 and tokens [B] int64 of a target graph, padded rows included
        -> draft logits [B, vocab] float32.
        """
        graph = graph_of(self._graphs, hidden.shape[0])
        # The target's outputs are pool memory that this replay may reuse, so they are copied.
        self._static[: hidden.shape[0]] = hidden
        self._tokens[: hidden.shape[0]] = tokens
        graph.replay()
        logits: Tensor = graph.outputs
        return logits.clone()

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """hidden [B, hidden], tokens [B] int64 -> draft logits [B, vocab]."""
        mixed = torch.tanh(
            (hidden + launch(look_up, tokens, self._model.embed_tokens.weight)) @ self._mixing
        )
        return self._model.compute_logits(mixed)


@seam("graph.drafter-by-width")
def graph_of(graphs: dict[int, Graph], num_rows: int) -> Graph:
    """The drafter's graph of this number of rows: requests times query tokens.

    Under a key without one of them graphs share their buffers (InternLM/lmdeploy#4661).
    """
    return graphs[num_rows]


def look_up(tokens: Tensor, embedding: Tensor) -> Tensor:
    """The rows [B, hidden] float32 of embedding [vocab, hidden] for tokens [B] int64.

    Raises IllegalAddress for a token past the vocabulary.
    """
    return embedding[check_indices(tokens, embedding.shape[0], "tokens that the drafter looks up")]
