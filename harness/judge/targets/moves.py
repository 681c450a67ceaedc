"""Engines that move their cache as a target: schedule after schedule, and a search for the order that corrupts."""

from __future__ import annotations

from harness.core.cases import Case
from harness.core.move_params import MoveParams
from harness.core.registry import nearest
from harness.engine.moves.handoff import Handoff
from harness.engine.moves.host import CONNECTORS
from harness.judge.run_records import Moved, Run
from harness.judge.target import Target
from harness.memory.moves.checks import Landed
from harness.memory.moves.streams import Streams, orders_to_try
from harness.memory.poison.patterns import Poison

MOST_SEARCHED = 12
"""Orders that are tried to show what an unordered access does."""


class MoveTarget(Target):
    """The requests of a case, served once for each schedule."""

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> str:
        """See :meth:`Target.why_not`."""
        name = case.params_as(MoveParams).connector
        return (
            "" if name in CONNECTORS else f"no connector {name!r}: {nearest(name, CONNECTORS.names(), see='--plugin')}"
        )

    def run(self, poison: Poison) -> Run:
        """Serve the requests in seeded orders. If two accesses have no order, try both."""
        params = self.case.params_as(MoveParams)
        run = Run(poison.pattern)
        for number in range(params.schedules):
            seed = self.case.seed + number
            moved = scheduled(params, seed, None, f"schedule {number}")
            run.moved.append(moved)
            if moved.misplaced:
                return run
            for earlier, later in list(orders_to_try(moved.races))[:MOST_SEARCHED]:
                order = f"schedule {number}, in which {later} is held back until after {earlier}"
                found = scheduled(params, seed, (earlier, later), order)
                if found.misplaced:
                    run.moved.append(found)
                    return run
        return run


def scheduled(params: MoveParams, seed: int, swapped: tuple[str, str] | None, order: str) -> Moved:
    """One schedule: what its steps read, the memory that no move may touch, and its accesses."""
    streams, landed = Streams(seed, swapped), Landed()
    served = (CONNECTORS.get(params.connector).tier if params.move == "host" else Handoff)(params, streams, landed)
    served.run()
    for server in served.servers:
        for name, before, after in server.padding():
            landed.untouched(name, before, after)
    return Moved(landed.num_bytes, streams.num_compared, landed.misplaced, streams.races, order)
