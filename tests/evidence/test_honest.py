"""`honest` fires for what a cheat leaves, and lets other mistakes to other oracles."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch_poison.patterns import sentinel_bits

from harness.core.catalog import ORACLES
from harness.core.cause_codes import Code
from harness.evidence.honest import Retrial
from harness.evidence.influence import Influence
from harness.evidence.observed import Observed
from harness.evidence.records import Evidence, Judgement, Run
from harness.kernels.conduct import Conduct
from tests.evidence.conftest import MakeObserved, answer

WHO = "mla_decode/mine"


def judged(*records: object) -> Judgement:
    run = Run("nan", evidence=list(records))
    judgement: Judgement = ORACLES.get("honest").judge(Evidence(None, [run]))  # type: ignore[arg-type]
    return judgement


def trial(
    earlier: Observed | None = None,
    again: Observed | None = None,
    elsewhere: Observed | None = None,
    influences: Callable[[], list[Influence]] | None = None,
) -> Retrial:
    def calls(one: Observed | None) -> Callable[[], list[Observed]]:
        return lambda: [] if one is None else [one]

    return Retrial(WHO, calls(earlier), influences, calls(again), calls(elsewhere))


def causes(judgement: Judgement) -> set[str]:
    return {finding.cause for finding in judgement.findings}


def test_what_no_honest_kernel_does_is_a_finding_beside_a_right_answer(
    observe: MakeObserved,
) -> None:
    judgement = judged(observe(), Conduct(WHO, "replaced a clock", is_proof=True))
    assert causes(judgement) == {Code.CHEATS}


def test_a_returned_buffer_is_a_remark_beside_a_right_answer_and_a_finding_beside_a_wrong_one(
    observe: MakeObserved,
) -> None:
    again = Conduct(WHO, "returned memory that it had returned before", False, site="output")
    right = judged(observe(site="output"), again)
    assert not right.findings and right.notes
    assert causes(judged(observe(answer(1).float(), site="output"), again)) == {Code.CHEATS}
    assert not judged(observe(answer(1).float(), site="lse"), again).findings


def test_rows_of_the_call_before_are_named(observe: MakeObserved) -> None:
    wrong = answer(1).float()
    other = answer(2).float()
    other[1] = wrong[1]
    (finding,) = judged(observe(wrong), trial(earlier=observe(other))).findings
    assert finding.cause == Code.CHEATS and finding.where == "request 1"


def test_rows_of_zeros_and_of_poison_are_no_answer_of_the_call_before(
    observe: MakeObserved,
) -> None:
    wrong = answer(1).float()
    wrong[0] = 0
    wrong.view(torch.int32)[1] = sentinel_bits(torch.float32, "output")
    before = answer(2).float()
    before[:2] = wrong[:2]
    assert not judged(observe(wrong), trial(earlier=observe(before))).findings


def test_one_value_in_all_rows_and_all_calls_is_no_answer(observe: MakeObserved) -> None:
    zeros = torch.zeros(4, 2, 8)
    assert causes(judged(observe(zeros), trial(earlier=observe(zeros)))) == {Code.CHEATS}


def test_an_output_that_nothing_wrote_is_named(observe: MakeObserved) -> None:
    poison = torch.zeros(4, 2, 8)
    poison.view(torch.int32).fill_(sentinel_bits(torch.float32, "output"))
    assert causes(judged(observe(poison), trial())) == {Code.CHEATS}
    poison[0, 0, 0] = 1.0
    assert not judged(observe(poison), trial()).findings


def test_an_answer_that_is_right_in_a_new_process_alone_comes_from_earlier_calls(
    observe: MakeObserved,
) -> None:
    wrong, right = observe(answer(1).float()), observe()
    other = observe(answer(2).float())
    assert causes(judged(wrong, trial(other, again=wrong, elsewhere=right))) == {Code.CHEATS}
    assert not judged(wrong, trial(other, again=wrong, elsewhere=wrong)).findings


def test_an_input_that_a_wrong_answer_does_not_depend_on_is_named(observe: MakeObserved) -> None:
    kept = answer(1).float()
    values = (kept, kept.clone(), answer(0), answer(3), torch.tensor([False, True, False, False]))
    one = Influence("kv_cache[1, 2]", "out", *values, describe="request")
    (finding,) = judged(observe(kept), trial(influences=lambda: [one])).findings
    assert finding.where == "request 1" and "kv_cache[1, 2]" in finding.message


def test_an_answer_that_is_wrong_by_chance_is_no_cheat(observe: MakeObserved) -> None:
    wrong, right = observe(answer(1).float()), observe()
    assert not judged(
        wrong, trial(observe(answer(2).float()), again=right, elsewhere=right)
    ).findings
