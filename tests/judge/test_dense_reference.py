"""The reference is the dense float64 model, and follows the engine's experts only where scores are
tied.
"""

from __future__ import annotations

import pytest
import torch

from harness.core.engine_params import EngineParams
from harness.engine.model.layers import Experts
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import model_config
from harness.engine.schedule.sequence import Sequence
from harness.judge.dense_reference import DenseReference


def made(num_experts: int) -> tuple[CausalLM, list[Sequence]]:
    config = model_config(
        EngineParams(layers=("mla",), num_experts=num_experts, requests=((5, 3), (2, 4)))
    )
    model = CausalLM(config).reset_parameters(0).eval().requires_grad_(False)
    sequences = []
    for request, (prompt, count) in enumerate([(5, 3), (2, 4)]):
        sequence = Sequence(request, list(range(10 * request, 10 * request + prompt)), count)
        sequence.tokens += [7] * count
        sequences.append(sequence)
    return model, sequences


def dense(model: CausalLM, sequences: list[Sequence]) -> torch.Tensor:
    rows = []
    for sequence in sequences:
        logits = model(torch.tensor([sequence.tokens[:-1]]))[0]
        rows.append(logits[sequence.num_prompt_tokens - 1 :])
    return torch.cat(rows)


def choices(sequences: list[Sequence], ids: list[int]) -> dict[int, dict[int, torch.Tensor]]:
    chosen = torch.tensor([ids], dtype=torch.int32)
    return {s.request: dict.fromkeys(range(len(s.tokens) - 1), chosen) for s in sequences}


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


def test_logits_are_those_before_each_generated_token() -> None:
    model, sequences = made(num_experts=0)
    reference = DenseReference(model, 0.0).judged(sequences, {})[0]
    assert reference.dtype == torch.float64 and reference.shape == (7, 128)
    assert distance(reference, dense(model.double(), sequences)) < 1e-9


def test_a_remembered_reference_is_of_the_same_tokens_and_nothing_that_a_judge_changes() -> None:
    model, sequences = made(num_experts=0)
    reference = DenseReference(model, 0.0)
    first, decisions = reference.judged(sequences, {})
    first.zero_()
    decisions[0].token_margins = torch.ones(3)
    again, unchanged = reference.judged(sequences, {})
    assert distance(again, dense(model.double(), sequences)) < 1e-9
    assert unchanged[0].token_margins.tolist() == [0, 0, 0]
    sequences[0].tokens[2] += 1
    assert distance(reference.judged(sequences, {})[0], dense(model.double(), sequences)) < 1e-9


def test_experts_that_are_not_tied_are_the_reference_own() -> None:
    model, sequences = made(num_experts=4)
    own = DenseReference(model, 0.0).judged(sequences, {})[0]
    assert distance(own, dense(model.double(), sequences)) < 1e-9
    assert (
        distance(own, DenseReference(model, 0.0).judged(sequences, choices(sequences, [0, 1]))[0])
        < 1e-9
    )


def test_the_reference_gathers_no_weights_for_each_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, sequences = made(num_experts=4)
    expected = dense(model.double(), sequences)

    def gather(*args: object) -> None:
        raise AssertionError("most of the time of a reference with experts")

    monkeypatch.setattr(Experts, "forward", gather)
    found = DenseReference(model, 0.0).judged(sequences, {})[0]
    assert distance(found, expected) < 1e-9


def test_tied_experts_are_the_engines() -> None:
    model, sequences = made(num_experts=4)
    own = DenseReference(model, 0.0).judged(sequences, {})[0]
    followed = DenseReference(model, 1e9).judged(sequences, choices(sequences, [0, 1]))[0]
    assert distance(own, followed) > 0.1


def test_experts_that_do_not_exist_or_repeat_are_never_followed() -> None:
    model, sequences = made(num_experts=4)
    reference = DenseReference(model, 1e9)
    own = reference.judged(sequences, {})[0]
    for ids in ([0, 4], [-1, 0], [2, 2]):
        assert distance(own, reference.judged(sequences, choices(sequences, ids))[0]) < 1e-9


def test_a_reference_is_remembered_for_other_numbers_of_requests_and_for_no_other_experts() -> None:
    model, sequences = made(num_experts=4)
    reference = DenseReference(model, 1e9)
    first, _ = reference.judged(sequences, choices(sequences, [0, 1]))
    assert distance(first, reference.judged(sequences, choices(sequences, [2, 3]))[0]) > 0.1
    for sequence in sequences:
        sequence.request += 2
    again, decisions = reference.judged(sequences, choices(sequences, [0, 1]))
    assert torch.equal(first, again)
    assert [made.request for made in decisions] == [2, 3]
