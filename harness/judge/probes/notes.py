"""All that the oracles need to know of a serving run of the reference engine."""

from __future__ import annotations

from torch_poison.patterns import Poison

from harness.core.engine_params import EngineParams
from harness.engine.probe import Probe
from harness.judge.probes.answers import Answers
from harness.judge.probes.choices import Choices
from harness.judge.probes.conditions import StepConditions
from harness.judge.probes.group import ProbeGroup
from harness.judge.probes.twins import Twins
from harness.judge.probes.writes import StrayWrites


class Notes(ProbeGroup):
    """The probes of one judged engine.

    The probes `more` are entered last and left first.
    """

    def __init__(
        self, params: EngineParams, poison: Poison, *more: Probe, padding_bound: str = ""
    ) -> None:
        self.answers = Answers()
        self.choices = Choices(params.prefix_caching)
        self.writes = StrayWrites()
        self.twins = Twins(params, poison, padding_bound)
        self.conditions = StepConditions(params)
        super().__init__(
            self.answers, self.choices, self.writes, self.twins, self.conditions, *more
        )
