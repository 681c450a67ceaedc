"""Further launches of a kernel: replays of a graph with new inputs, and repeats with equal ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch_poison.patterns import Poison
from torch_poison.storages import tensors_of

from harness.core.kernels import KernelSpec
from harness.evidence.pairs import Pair
from harness.evidence.replay import ReplayedStep
from harness.kernels.call import BoundKernel
from harness.memory.graph.recording import new_pool
from harness.ops.parts.call import KernelCall, invoke


def replayed(
    spec: KernelSpec, poison: Poison, call: KernelCall
) -> tuple[tuple[Tensor, ...], list[ReplayedStep]]:
    """Capture the call on the inputs of other requests, and replay it on these and on its own.

    Returns the outputs of the last replay, and each replay beside the same call run eagerly. A
    request's inputs are the rows of its arguments, so the other inputs are the rows in another
    order. The graph plans in each replay. Raises CaptureError for a kernel that no graph can hold.
    """
    kernel = BoundKernel(spec, poison)
    device = call.args[0].device

    def step() -> Any:
        return kernel(*call.args, **call.keywords(is_captured=True))

    own = [argument.clone() for argument in call.by_request]
    # Whole rows change places, so that the other inputs are legal as well.
    contents = [[values.roll(1, 0) for values in own], own]
    _store(contents[0], call.by_request)
    step()
    graph = new_pool(device, poison).capture(step)
    steps: list[ReplayedStep] = []
    outputs: tuple[Tensor, ...] = ()
    for number, values in enumerate(contents):
        _store(values, call.by_request)
        graph.replay()
        outputs = tuple(output.clone() for output in tensors_of(graph.outputs))
        # Behind the replay: an eager run before it could leave the right answer in memory that it
        # reads.
        eager = invoke(spec, poison, call.args, call.keywords(is_captured=False))
        live = call.live_requests().cpu()
        found, twin = (call.same(_first(result)).cpu() for result in (outputs, eager))
        steps.append(ReplayedStep(number, "the output of the graph", found, twin, live))
    return outputs, steps


def repeated(
    spec: KernelSpec,
    poison: Poison,
    call: KernelCall,
    first: tuple[Tensor, ...],
    launches: int,
    between: Callable[[int], None],
) -> Iterator[Pair]:
    """Launch the call again until it ran `launches` times.

    Returns the output of each beside `first`.

    `first` are the outputs of the first launch, in the shapes of the op; `between` is called before
    each launch.

    first [...] are of any dtype: bfloat16 or float32 values, int32 indices.
    """
    for number in range(1, launches):
        between(number)
        again = invoke(spec, poison, call.args, call.keywords(is_captured=False))
        live = call.live_requests().cpu()
        name = f"out of launch {number}"
        then, now = (call.same(_first(result)).cpu() for result in (first, again))
        yield Pair("repeats", name, then, now, live, "", "request")


def _first(result: Any) -> Tensor:
    """The first output of a kernel that returns one tensor or several."""
    first: Tensor = result if isinstance(result, Tensor) else result[0]
    return first


def _store(values: list[Tensor], arguments: list[Tensor]) -> None:
    for value, argument in zip(values, arguments, strict=True):
        argument.copy_(value)
