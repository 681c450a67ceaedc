"""Engines that move their cache as a target: schedule after schedule, and a search for the order
that corrupts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.cause_codes import WhyNot
from harness.core.move_params import MoveParams
from harness.core.registry import nearest
from harness.engine.moves.handoff import Handoff
from harness.engine.moves.host import CONNECTORS
from harness.evidence.moves import Moved
from harness.evidence.records import Run
from harness.judge.target import Target
from harness.memory.moves.checks import Landed
from harness.memory.moves.streams import Streams, orders_to_try

MOST_SEARCHED = 12
"""Orders that are tried to show what an unordered access does."""


class MoveTarget(Target):
    """The requests of a case, served once for each schedule."""

    @classmethod
    def why_not(cls, case: Case, device: str = "cpu", fault: str | None = None) -> WhyNot | None:
        name = case.params_as(MoveParams).connector
        if name in CONNECTORS:
            return None
        return WhyNot(f"no connector {name!r}: {nearest(name, CONNECTORS.names(), see='--plugin')}")

    def run(self, poison: Poison) -> Run:
        """Serve the requests in seeded orders. If two accesses have no order, try both."""
        params = self.case.params_as(MoveParams)
        found = in_orders(
            partial(scheduled, params), self.case.seed, params.schedules, MOST_SEARCHED
        )
        return Run(poison.pattern, list(found))


def in_orders(
    served: Callable[[int, tuple[str, str] | None, str], Moved],
    seed: int,
    schedules: int,
    most: int,
) -> Iterator[Moved]:
    """What each of the `schedules` showed, and the first in which a step reads bytes of another
    owner: it is the last.

    `served` makes a schedule, from its seed, two operations (earlier, later) and its name. Of two
    accesses without an order it is asked for both orders, `most` times in a schedule.
    """
    for number in range(schedules):
        moved = served(seed + number, None, f"schedule {number}")
        yield moved
        if moved.misplaced:
            return
        for pair in islice(orders_to_try(moved.races), most):
            # The same seed, so that only these two change places.
            order = f"schedule {number}, in which {pair[1]} is held back until after {pair[0]}"
            searched = served(seed + number, pair, order)
            if searched.misplaced:
                yield searched
                return


def scheduled(params: MoveParams, seed: int, swapped: tuple[str, str] | None, order: str) -> Moved:
    """One schedule: what its steps read, the memory that no move may touch, and its accesses."""
    streams = Streams(seed, swapped)
    landed = Landed()
    served = (CONNECTORS.get(params.connector).tier if params.move == "host" else Handoff)(
        params, streams, landed
    )
    served.run()
    for server in served.servers:
        for name, before, after in server.padding():
            landed.untouched(name, before, after)
    return Moved.of(landed, streams, order)
