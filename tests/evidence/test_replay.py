from __future__ import annotations

import torch

from harness.evidence.records import Run
from harness.evidence.replay import ReplayedStep
from harness.evidence.replay import replay as judge

LIVE = torch.tensor([True, True, True, False])


def logits(step: int, height: int = 4) -> torch.Tensor:
    return torch.randn(height, 8, generator=torch.Generator().manual_seed(step))


def replayed(step: int, tensor: torch.Tensor | None = None, **changes: object) -> ReplayedStep:
    right = logits(step)
    settings = {
        "step": step,
        "name": "logits",
        "replayed": right if tensor is None else tensor,
        "eager": right,
        "live": LIVE,
    }
    return ReplayedStep(**(settings | changes))  # type: ignore[arg-type]


def run(*steps: ReplayedStep) -> Run:
    return Run("nan", list(steps))


def test_replays_that_equal_their_eager_steps_are_silent(evidence):
    judgement = judge(evidence(run(*(replayed(step) for step in range(4)))))
    assert judgement.findings == []
    assert judgement.looked_at == 4 * 3 * 8


def test_every_classic_wrong_replay_fires(evidence, spoil):
    findings = judge(
        evidence(run(replayed(0), replayed(1, spoil(logits(1))), replayed(2)))
    ).findings
    assert len(findings) == 1
    assert findings[0].where.startswith("step 1, row")


def test_a_stale_input_names_its_site(evidence):
    finding = judge(evidence(run(replayed(0, logits(7), stale_site="sched_meta")))).findings[0]
    assert finding.site == "sched_meta"
    assert "stale sched_meta" in finding.message


def test_an_engine_that_gives_the_same_answer_forever_fires(evidence, approved):
    same = logits(0)
    findings = judge(
        evidence(run(*(replayed(step, same, eager=same) for step in range(4))))
    ).findings
    assert len(findings) == 1
    assert "steps 0-3" in findings[0].where and "row 0-2" in findings[0].where
    approved(findings[0].message)


def test_one_row_that_does_not_move_fires_alone(evidence):
    steps = []
    for step in range(3):
        tensor = logits(step)
        tensor[1] = logits(99)[1]
        steps.append(replayed(step, tensor, eager=tensor))
    findings = judge(evidence(run(*steps))).findings
    assert [finding.where for finding in findings] == ["steps 0-2, row 1"]


def test_zeros_and_nan_on_both_sides_fire_because_they_do_not_move(evidence):
    for value in (0.0, float("nan")):
        blank = torch.full((4, 8), value)
        assert judge(
            evidence(run(*(replayed(step, blank, eager=blank) for step in range(3))))
        ).findings


def test_a_row_that_repeats_once_but_moves_later_is_silent(evidence):
    first, later = logits(0), logits(1)
    steps = [
        replayed(0, first, eager=first),
        replayed(1, first, eager=first),
        replayed(2, later, eager=later),
    ]
    assert judge(evidence(run(*steps))).findings == []


def test_dead_rows_may_differ_and_stand_still(evidence):
    steps = []
    for step in range(3):
        tensor = logits(step)
        tensor[3] = float("nan")
        steps.append(replayed(step, tensor))
    assert judge(evidence(run(*steps))).findings == []


def test_capture_sizes_that_change_from_step_to_step_are_compared_row_by_row(evidence):
    small, large = logits(0, 2), logits(1, 8)
    steps = [
        replayed(0, small, eager=small, live=torch.ones(2, dtype=torch.bool)),
        replayed(1, large, eager=large, live=torch.ones(8, dtype=torch.bool)),
    ]
    assert judge(evidence(run(*steps))).findings == []
    large[:2] = small
    (finding,) = judge(evidence(run(*steps))).findings
    assert "steps 0-1" in finding.where and "row 0-1" in finding.where


def test_graphs_of_different_names_are_not_compared_with_each_other(evidence):
    same = logits(0)
    steps = [replayed(0, same, eager=same), replayed(1, same, eager=same, name="draft logits")]
    assert judge(evidence(run(*steps))).findings == []


def test_a_run_without_replays_is_nothing_looked_at(evidence):
    assert judge(evidence(run())).looked_at == 0
