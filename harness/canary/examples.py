"""Questions as padded token tensors, for training and checking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from harness.canary.tasks import Question
from harness.canary.tokenizer import EOS_TOKEN_ID, PAD_TOKEN_ID

IGNORED = -100


@dataclass(frozen=True)
class Examples:
    """N questions padded on the right to the longest.

    tokens: [N, T] int64, prompt, answer, end of sequence, padding. labels: [N, T] int64, the next token of each
    position, `IGNORED` where it is not part of the answer. lengths: [N] int64, without padding.
    """

    tokens: Tensor
    labels: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def take(self, rows: Tensor) -> Examples:
        """The given rows, cut to their longest."""
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        return Examples(self.tokens[rows, :longest], self.labels[rows, :longest], lengths)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Examples]]:
        """All rows in batches of like length, with their row numbers."""
        for rows in torch.split(self.lengths.argsort(), size):
            yield rows, self.take(rows)


def encode(questions: Sequence[Question], tokenizer: Tokenizer, device: str | torch.device = "cpu") -> Examples:
    """Tokenize prompts and completions separately, because a server tokenizes the prompt alone."""
    rows, labels = [], []
    for question in questions:
        prompt = tokenizer.encode(question.prompt).ids
        completion = [*tokenizer.encode(question.completion).ids, EOS_TOKEN_ID]
        rows.append(torch.tensor(prompt + completion))
        labels.append(torch.tensor([IGNORED] * (len(prompt) - 1) + completion + [IGNORED]))
    pad = torch.nn.utils.rnn.pad_sequence
    tokens = pad(rows, batch_first=True, padding_value=PAD_TOKEN_ID).to(device)
    padded_labels = pad(labels, batch_first=True, padding_value=IGNORED).to(device)
    return Examples(tokens, padded_labels, torch.tensor([len(row) for row in rows], device=device))
