"""A kernel call whose inputs another stream writes late, and whose host memory changes while copies
of it are queued.

The caller's stream waits for the producer's event, and reads the outputs at once. A kernel that
works on another stream without an event of its own reads, or returns, what the memory held before.
See :mod:`harness.memory.delayed_streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_poison.patterns import bits_view

from harness.core.cases import Case
from harness.core.kernels import KernelSpec
from harness.evidence.moves import Moved
from harness.evidence.observed import Observed, finite, reference
from harness.evidence.records import Evidence, Run
from harness.judge.targets.shown_call import observed_of
from harness.judge.targets.slow_predecessor import Late, late_inputs, restoring
from harness.kernels.call import BoundKernel
from harness.memory.moves.streams import Launch, Race
from harness.ops.parts.call import KernelCall, Observe
from harness.ops.parts.judged import Rows

PRODUCER = "producer"
CALLER = "caller"
HOST = "host"
OTHER = "unknown"
"""The stream of work that did not wait for the caller's."""
Streams = Callable[
    [Callable[[], Any], Sequence[tuple[Tensor, Tensor]], Callable[[], Any] | None, bool],
    tuple[Tensor, ...],
]
"""See :class:`harness.memory.delayed_streams.DelayedStreams`."""
Attempt = Callable[[bool], list[Observed]]
"""Makes a call, in order or not. Returns what to judge."""


def without_order(
    case: Case, spec: KernelSpec, call: KernelCall, other: KernelCall, streams: Streams
) -> Moved:
    """The accesses of the `call` that no event orders. `other` is a call on other inputs.

    A result that is wrong in the right order as well is no finding of order.
    """
    call.observe = _remembering(call.observe)
    pairs = list(_pairs(spec, call, other, streams))
    races = []
    for race, attempt in [] if _is_wrong(case, pairs[0][1](True)) else pairs:
        if _is_wrong(case, attempt(False)) and not _is_wrong(case, attempt(True)):
            races.append(race)
            if race.second.stream == CALLER:
                # Outputs that come too late are wrong in the other attempts, too.
                break
    return Moved(0, len(pairs), [], races, "streams delayed", site=None)


def _pairs(
    spec: KernelSpec, call: KernelCall, other: KernelCall, streams: Streams
) -> Iterator[tuple[Race, Attempt]]:
    """Each two accesses that need an order, and the call that shows whether they have it."""
    # Without poison: a fill of an allocation would be work on the caller's stream.
    kernel = BoundKernel(spec, None)
    restore = restoring(spec, call)

    def launch(one: KernelCall = call) -> Any:
        return kernel(*one.args, **one.keywords(is_captured=True))

    def attempt(after: Callable[[], Any] | None, in_order: bool) -> list[Observed]:
        restore()
        outputs = streams(launch, [], after, in_order)
        return observed_of(call, tuple(output.cpu() for output in outputs))

    def written_late(late: Late, in_order: bool) -> list[Observed]:
        return late(lambda copies: streams(launch, copies, None, in_order))

    own = Launch(spec.name, OTHER)
    yield (
        _race(own, "write", Launch("its caller", CALLER), "read", "outputs"),
        partial(attempt, None),
    )
    for name, late in late_inputs(spec, call, restore):
        writer = Launch(f"the producer of {name}", PRODUCER)
        yield _race(writer, "write", own, "read", name), partial(written_late, late)
    copy = Launch(f"a copy of {spec.name}", CALLER)
    host = Launch(f"the next call of {spec.name}", HOST)
    yield (
        _race(copy, "read", host, "write", "host memory of the kernel"),
        partial(attempt, partial(launch, other)),
    )


def _remembering(observe: Observe) -> Observe:
    """`observe` with nothing to judge for outputs that have the bits of the first ones.

    Writers have no outputs.
    """
    known: list[tuple[Tensor, ...]] = []

    def observed(outputs: tuple[Tensor, ...]) -> list[Rows]:
        if (
            outputs
            and known
            and all(map(torch.equal, map(bits_view, outputs), map(bits_view, known[0])))
        ):
            return []
        known.append(outputs)
        return observe(outputs)

    return observed


def _race(first: Launch, does: str, second: Launch, then: str, memory: str) -> Race:
    return Race(first, second, (memory, 0, 0, 0), f"{does} and {then}")


def _is_wrong(case: Case, observed: list[Observed]) -> bool:
    evidence = Evidence(case, [Run("", list(observed))])
    return any(oracle(evidence).findings for oracle in (finite, reference))
