"""Pairs of answers to one prompt: a first epoch beside later ones, which have a cached prefix or
follow a flush.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness.core.engine_params import EngineParams
from harness.engine.schedule.sequence import Sequence
from harness.evidence.decisions import Decisions, rows_before_divergence
from harness.evidence.pairs import Pair
from harness.judge.probes.answers import Answers


def pairs_of(
    answers: Answers,
    epochs: list[list[Sequence]],
    params: EngineParams,
    bound: str,
    decisions: dict[int, Decisions],
) -> Iterator[Pair]:
    """Answers of the first epoch beside answers of later ones, which have a cached prefix or follow
    a flush.

    `decisions` are by number of the request.
    """
    for number, epoch in enumerate(epochs[1:], 1):
        is_flushed = number == params.epochs
        oracle = "flush" if is_flushed else "cold_warm"
        for index, (first, later) in enumerate(zip(epochs[0], epoch, strict=True)):
            is_warm = later.num_shared_tokens > 0 and first.num_shared_tokens == 0
            # Another model may rightly answer otherwise.
            is_same = answers.models.get(first.request) == answers.models.get(later.request)
            if (is_flushed or is_warm) and is_same and _prompt(first) == _prompt(later):
                sides = ((first, answers, decisions), (later, answers, decisions))
                yield from pair_of(oracle, f"request {index} of epoch {number}", sides, bound)


def _prompt(sequence: Sequence) -> list[int]:
    return sequence.tokens[: sequence.num_prompt_tokens]


def pair_of(
    oracle: str,
    name: str,
    sides: tuple[tuple[Sequence, Answers, dict[int, Decisions]], ...],
    bound: str,
) -> Iterator[Pair]:
    """Two answers to one prompt, if both finished and were judged; rows count up to the first
    decision that differs.
    """
    if all(
        sequence.is_finished and sequence.request in decisions for sequence, _, decisions in sides
    ):
        first, second = (
            torch.stack(answers.logits[sequence.request]).cpu() for sequence, answers, _ in sides
        )
        one, other = ((decisions[sequence.request],) for sequence, _, decisions in sides)
        rows, divergences = rows_before_divergence(one, other)
        yield Pair(
            oracle,
            name,
            first,
            second,
            rows,
            bound,
            "generated token",
            next(iter(divergences), None),
        )
