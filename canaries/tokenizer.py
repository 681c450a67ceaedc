"""A canary's tokens: a byte-level BPE tokenizer of 2,048 entries in which every digit is a token of
its own, and questions as padded tensors, for training and checking.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from canaries.tasks import Question

VOCAB_SIZE = 2048
EOS_TOKEN = "<|endoftext|>"
PAD_TOKEN = "<|pad|>"
EOS_TOKEN_ID = 0
PAD_TOKEN_ID = 1


def train(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learn merges from `texts`.

    Digits never merge. Texts with few words give fewer than `vocab_size` entries.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS_TOKEN, PAD_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, directory: Path, max_length: int = 2048) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` in the form of transformers."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS_TOKEN,
        "pad_token": PAD_TOKEN,
        "bos_token": None,
        "unk_token": None,
        "add_bos_token": False,
        "add_eos_token": False,
        # The default of old readers drops the space before punctuation, which changes answers.
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "padding_side": "left",
    }
    (directory / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )


IGNORED = -100


@dataclass(frozen=True)
class Examples:
    """N questions padded on the right to the longest.

    tokens: [N, T] int64, prompt, answer, end of sequence, padding. labels: [N, T] int64, the next
    token of each position, `IGNORED` where it is not part of the answer. lengths: [N] int64,
    without padding.
    """

    tokens: Tensor
    labels: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return self.tokens.shape[0]

    def take(self, rows: Tensor) -> Examples:
        """The given rows [n] int64, cut to their longest."""
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        return Examples(self.tokens[rows, :longest], self.labels[rows, :longest], lengths)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Examples]]:
        """All rows in batches of like length, with their row numbers."""
        for rows in torch.split(self.lengths.argsort(), size):
            yield rows, self.take(rows)


def encode(
    questions: Sequence[Question], tokenizer: Tokenizer, device: str | torch.device = "cpu"
) -> Examples:
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
