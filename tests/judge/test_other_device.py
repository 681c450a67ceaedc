"""The engine and its judges keep every tensor on the engine's device, as a GPU asks for, tried on a
CPU.
"""

from __future__ import annotations

import pytest
import torch

from harness.core.cases import Case, Job
from harness.core.kernels import BUILT_IN
from harness.core.records import Verdict
from harness.judge.targets.engine import EngineTarget
from harness.judge.verdict import verdict
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios
from harness.scenario.point_case import usable
from tests.transcripts import Approved

from .other_device import Elsewhere, other_device  # type: ignore[import-not-found]

CASES = [
    case
    for scenario in load_scenarios()
    if scenario.system == "engine" and scenario.fuzz is None
    for case in expand(scenario)
    # What no GPU runs is skipped there with its reason.
    if case.system == "engine" and not EngineTarget.why_not(case, "cuda")
]
_NUMBERS = ("requests", "arrivals", "chains", "aborts", "happens", "steps")
"""Parameters that say which requests come, and not what the engine is made of."""


def features(case: Case) -> set[tuple[str, object]]:
    """What the engine of a case is made of: each choice, each kind of layer and change, and each
    number that is set.
    """
    found: set[tuple[str, object]] = set()
    for name, field in type(case.params).model_fields.items():
        value = getattr(case.params, name)
        if value is None or isinstance(value, str | bool):
            found.add((name, value))
        elif name == "layers":
            found |= {(name, kind) for kind in value}
        elif name == "changes":
            found |= {(name, kind) for kind, _ in value}
        elif name not in _NUMBERS:
            found.add((name, value != field.default))
    return found


def covering(cases: list[Case]) -> list[Case]:
    """Few short cases that have each feature of all of them."""

    def length(case: Case) -> int:
        return 50 + case.params.epochs * sum(
            prompt + 4 * count for prompt, count in case.params.requests
        )

    left, chosen = {feature for case in cases for feature in features(case)}, list[Case]()
    while left:
        best = max(cases, key=lambda case: len(features(case) & left) / length(case))
        left -= features(best)
        chosen.append(best)
    return chosen


FEW = covering(CASES)


@pytest.mark.first(3)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.id, marks=() if case in FEW else pytest.mark.nightly)
        for case in CASES
    ],
)
def test_a_case_of_the_engine_passes_on_another_device(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One fill is enough: another one changes no tensor's place.
    main = case.poison.but(patterns=case.poison.patterns[:1])
    once = case.but(poison=main, oracles=usable(case.oracles, main.patterns, case.params))
    with other_device(monkeypatch) as device:
        outcome = verdict(Job(key=case.id, case=once, device=device))
    assert (outcome.verdict, outcome.reason) == (Verdict.PASS, outcome.reason), outcome.findings


def of_each_op() -> dict[str, Case]:
    """Op -> a case of a kernel in torch that runs on a GPU too."""
    found: dict[str, Case] = {}
    for scenario in load_scenarios():
        if scenario.system != "kernel" or scenario.fuzz is not None:
            continue
        for case in expand(scenario):
            specs = case.known_kernels()
            is_ours = all(
                "cuda" in spec.devices and spec.origin == BUILT_IN and not spec.requires
                for spec in specs
            )
            if is_ours and specs and not case.params.corrupt:
                found.setdefault(str(case.op), case)
    return found


@pytest.mark.first(3)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in of_each_op().values()])
def test_a_call_of_each_op_passes_on_another_device(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_device(monkeypatch) as device:
        outcome = verdict(Job(key=case.id, case=case, device=device))
    assert outcome.verdict is Verdict.PASS, outcome.findings


def test_few_cases_have_all_features_and_a_drafter_of_each_kind() -> None:
    assert 10 < len(FEW) < 60
    assert {case.params.speculative for case in FEW} == {"ngram", "mtp", "eagle"}


def test_the_other_device_refuses_what_a_gpu_refuses(
    monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    with other_device(monkeypatch) as device:
        there, here = torch.arange(6.0, device=device).view(2, 3), torch.ones(2, 3)
        assert (
            isinstance(there, Elsewhere)
            and str(there.device) == device
            and there.tolist() == [[0, 1, 2], [3, 4, 5]]
        )
        view = there[1]
        view += torch.tensor(1.0)
        assert (there * 2).cpu().tolist() == [[0, 2, 4], [8, 10, 12]]
        there[torch.tensor([0])] = torch.zeros(3, device=device)
        assert there.copy_(here).sum().item() == 6 and not isinstance(there.cpu(), Elsewhere)
        layer = torch.nn.Linear(3, 2)
        for mixed in (
            lambda: there + here,
            lambda: torch.cat((there, here)),
            lambda: layer(there),
            lambda: here[torch.zeros(1, dtype=torch.int64, device=device)],
            lambda: there.index_select(0, torch.tensor([0])),
            lambda: there.index_put_((torch.tensor([0]),), here[:1]),
        ):
            with approved.raises(RuntimeError):
                mixed()
        assert layer.to(device)(there).shape == (2, 2)
