"""Whether a mutant that no case tells from the right code can be told at all: a property run of the
changed function.

The mutant runs on drawn inputs that no scenario has: schedules without a model for the scheduler
and the pool, drawn calls of kernels, and drawn sequences of the engine. Each evaluation of the
changed code notes whether its value differs from the right one. It is equivalent if on enough
inputs no bit of an output moves; the proof says how often the value differed. It is equal up to
rounding if all decisions and counts are the same, every output is within its bound of oracle
`reference` from the right code's, and enough of the inputs compute in float32 throughout, where
that bound is 1e-5. Anything else is not exercised.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch
from pydantic import ValidationError
from torch.utils._python_dispatch import _disable_current_modes
from torch_poison.patterns import Poison, bits_view

from harness.core.cases import Case, Job
from harness.core.errors import InputError
from harness.core.sites import SITES
from harness.evidence.compare import compare
from harness.evidence.observed import Observed
from harness.evidence.pairs import Pair
from harness.evidence.sentinel import Guard
from harness.evidence.thresholds import bound
from harness.judge.probes.notes import Notes
from harness.judge.run_case import why_not
from harness.judge.target import target_of
from harness.judge.targets.engine import EngineTarget
from harness.scenario.drawn import drawn_case, drawn_cases
from harness.scenario.load import load_scenarios
from trust.mutants.operators import Mutant
from trust.mutants.records import MutantResult
from trust.mutants.schedules import trace

SEED = 7_000_003
"""Of the drawn inputs. No scenario has it."""
NUM_DRAWS = {"fuzz": 1000, "fuzz-sequences": 240, "fuzz-states": 90}
MOST, LEAST, UNTIL = 30, 12, 240
"""Drawn cases that a mutant runs on, up to UNTIL where its value differed in too few; an equivalent
one needs LEAST.
"""
ENOUGH = 2 * LEAST
"""Drawn cases of each kernel that is drawn at all, and of each entry of WIDER: half of them may
not reach the changed code.
"""
NUM_SCHEDULES = 2000
SCHEDULE = "engine/schedule/"
MODULE: dict[str, Any] = {
    "speculative": "mtp",
    "speculative_tokens": 1,
    "layers": ["mla"],
    "kv": "fp32",
    "num_experts": 0,
    "expert_ranks": 1,
    "prefix_caching": False,
    "drafter": False,
    "chains": [],
    "requests": [[5, 6], [40, 9], [70, 5]],
    "arrivals": [],
    "aborts": [],
    "happens": [],
    "cancelled": [],
    "flush": False,
}
WIDER: tuple[dict[str, Any], ...] = (
    {
        "zero_fill_output": True,
        "amax_rows": "batch",
        "quantize": "fp8_per_tensor",
        "graph": "full",
        "pad_keys": 0,
    },
    {
        "num_experts": 4,
        "expert_ranks": 2,
        "changes": [["move_experts", 0]],
        "epochs": 2,
        "graph": "full",
    },
    {"capture_sizes": [4], "graph": "full", "dummy_steps": True, "pad_tokens": "trash"},
    {"changes": [["sleep", 0], ["reload_new", 0]], "epochs": 2, "graph": "full", "capture": "lazy"},
    {"layers": ["mla"], "adapters": [1], "changes": [["switch_adapter", 0]], "epochs": 2},
    {
        "layers": ["mla"],
        "adapters": [1],
        "changes": [["sleep", 0], ["reload_new", 0]],
        "epochs": 2,
        "graph": "full",
    },
    {"drafter": True, "graph": "full"},
    {"cancelled": [0], "max_num_seqs": 2},
    {"decode_kernel": "tiled-counted", "graph": "full"},
    {"context_chunk": 16, "context_ranks": 3, "max_batched_tokens": 16, "kv": "fp32"},
    {"context_ranks": 2, "max_batched_tokens": 24, "layers": ["mla"], "kv": "fp32"},
    {"context_chunk": 7, "max_batched_tokens": 20, "layers": ["mla"], "kv": "fp32"},
    {"quantize": "mxfp8", "dp_rank_tokens": 60, "layers": ["mla"], "graph": "none"},
    {
        "decode_kernel": "tiled-counted",
        "graph": "full",
        "capture_sizes": [2, 3, 5],
        "kv": "fp32",
        "layers": ["mla"],
    },
    {"decode_kernel": "tiled-multiply", "layers": ["mla"], "kv": "fp32"},
    {"num_experts": 4, "route_kernel": "torch-live", "graph": "full", "kv": "fp32"},
    {"quantize": "mxfp8", "dp_rank_tokens": 200, "kv": "fp32"},
    MODULE,
)
"""Parameters of the engine that no draw has, or not together.

Most drawn cases get some, where they stay legal: each entry is in at least ENOUGH of them.
"""
Result = Hashable


@dataclass(frozen=True, slots=True)
class Values:
    """What a drawn case gave: outputs, each with the name of its bound, and what must be the same,
    decisions and counts.
    """

    outputs: tuple[tuple[torch.Tensor, str], ...]
    exact: Hashable

    def __hash__(self) -> int:
        return hash((tuple(_bits(tensor) for tensor, _ in self.outputs), self.exact))

    def rounds_as(self, right: Values) -> bool:
        """Whether it differs from what the right code gave by rounding alone."""
        if (self.exact, len(self.outputs)) != (right.exact, len(right.outputs)):
            return False
        pairs = zip(self.outputs, right.outputs, strict=True)
        return all(_is_near(one, other, name) for (one, name), (other, _) in pairs)


def _is_near(one: torch.Tensor, other: torch.Tensor, name: str) -> bool:
    if not name or not one.numel():
        return is_same(one, other)
    live = torch.ones(len(one), dtype=torch.bool)
    return (
        one.shape == other.shape
        and compare(one, other.double(), live, bound(name)).mismatch is None
    )


@dataclass(slots=True)
class Noted:
    """How often the changed code was evaluated, and how often its value differed from the right
    one.
    """

    evaluations: int = 0
    different: int = 0

    def note(self, right: Any, wrong: Any) -> Any:
        """Count a pair of values. Returns the wrong one."""
        self.evaluations += 1
        # A graph that is captured here refuses reads of values on the host.
        with _disable_current_modes():
            self.different += not is_same(right, wrong)
        return wrong


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal in every bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        return one is other or torch.equal(
            bits_view(one.contiguous()), bits_view(other.contiguous())
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one is other or (type(one) is type(other) and bool(one == other))


@dataclass(slots=True)
class Drawn:
    """One drawn input: how to run it, what the right code gave, and the lines of each file that it
    ran.
    """

    name: str
    run: Callable[[], Result]
    right: Result = None
    lines: dict[str, set[int]] = field(default_factory=dict)
    is_fine: bool = False
    """Whether it computes in float32 throughout, so that a rounding is small beside any other
    change.
    """


DrawnId = tuple[str, str, dict[str, Any]]
"""A scenario, the id of a draw, and more parameters."""


def drawn_ids() -> list[DrawnId]:
    """The drawn cases: each draw once, and again with what too few of them have."""
    scenarios = {one.name: one for one in load_scenarios(None)}
    found: list[DrawnId] = []
    engines: list[tuple[str, Case]] = []
    calls: dict[str, list[tuple[str, Case]]] = {}
    for name, count in NUM_DRAWS.items():
        drawing = scenarios[name].model_copy(
            update={"fuzz": scenarios[name].fuzz.model_copy(update={"examples": count})}
        )
        for number, case in enumerate(drawn_cases(drawing, SEED)):
            if case.system != "engine":
                found.append((name, case.id, {}))
                assert case.op is not None  # as it calls a kernel
                calls.setdefault(case.op, []).append((name, case))
            elif number % 4:
                engines.append((name, case))
            else:
                found.append((name, case.id, {}))
    for some in calls.values():
        found += _of_rare_kernels(some)
    return found + list(_widened(engines))


def _of_rare_kernels(calls: list[tuple[str, Case]]) -> Iterator[DrawnId]:
    """Draws of one op once more, with each of its kernels that fewer than ENOUGH of them have."""
    kernels = Counter(case.params.model_dump()["kernel"] for _, case in calls)
    for kernel, count in kernels.items():
        others = (one for one in calls if one[1].params.model_dump()["kernel"] != kernel)
        more = {"kernel": kernel}
        able = ((name, case.id, more) for name, case in others if _wider(case, more) is not case)
        yield from islice(able, max(ENOUGH - count, 0))


def _widened(engines: list[tuple[str, Case]]) -> Iterator[DrawnId]:
    """Draws of the engine, each with the entry of WIDER that fewest have and that is legal there.

    All draws are used once, and again until each entry has ENOUGH.
    """
    counts = dict.fromkeys(range(len(WIDER)), 0)
    given: set[tuple[str, int]] = set()
    for turn in range(ENOUGH):
        for name, case in engines:
            lacking = [entry for entry in counts if not turn or counts[entry] < ENOUGH]
            for entry in sorted(lacking, key=lambda one: counts[one]):
                if (case.id, entry) not in given and _wider(case, WIDER[entry]) is not case:
                    given.add((case.id, entry))
                    counts[entry] += 1
                    yield name, case.id, WIDER[entry]
                    break
            else:
                if not turn:
                    yield name, case.id, {}


def drawn_inputs(files: dict[str, str], ids: SequenceOf[DrawnId]) -> list[Drawn]:
    """The drawn cases of `ids` that the right code serves.

    `files` are paths of the files under test, and their names.
    """
    scenarios = {one.name: one for one in load_scenarios(None)}
    found = []
    for name, id_, more in ids:
        case = drawn_case(scenarios[name], id_)
        if case is not None and more:
            case = _wider(case, more)
        if case is None or why_not(case, "cpu"):
            continue
        drawn = Drawn(
            case.id, partial(_outputs, Job(key=case.id, case=case)), is_fine=_is_fine(case)
        )
        # A stride may ask for more addresses than a trial has.
        with contextlib.suppress(InputError), executed_lines(files) as executed:
            drawn.right = hash(drawn.run())
        if drawn.right is None:
            continue
        drawn.lines = executed.lines
        found.append(drawn)
    return found


def _is_fine(case: Case) -> bool:
    given = case.params.model_dump()
    types = {given.get(name) or "fp32" for name in ("kv", "window_kv", "dtype")}
    return types == {"fp32"} and given.get("quantize", "none") == "none"


def _wider(case: Case, more: dict[str, Any]) -> Case:
    """The case with `more` parameters; as it is if they are not legal there."""
    with contextlib.suppress(ValidationError):
        wider = case.model_copy(
            update={"params": type(case.params).model_validate(case.params.model_dump() | more)}
        )
        return case if why_not(wider, "cpu") else wider
    return case


@dataclass(slots=True)
class Executed:
    """The lines of each file that ran, and how many calls were seen: a cost without a clock."""

    lines: dict[str, set[int]]
    steps: int = 0


@contextlib.contextmanager
def executed_lines(files: dict[str, str]) -> Iterator[Executed]:
    """Note what a block runs of `files`: paths, and their names in the result."""
    seen = Executed({name: set() for name in files.values()})
    unseen: dict[CodeType, set[int]] = {}

    def on_line(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            seen.lines[files[frame.f_code.co_filename]].add(frame.f_lineno)
            unseen[frame.f_code].discard(frame.f_lineno)
        return on_line

    def on_call(frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if code.co_filename not in files:
            return None
        seen.steps += 1
        if code not in unseen:
            # The line of `def` is no event inside a function.
            unseen[code] = {
                line for *_, line in code.co_lines() if line and line != code.co_firstlineno
            }
        return on_line if unseen[code] else None

    sys.settrace(on_call)
    try:
        yield seen
    finally:
        sys.settrace(None)


def _outputs(job: Job) -> Result:
    """All bits that a drawn case gives under NaN: outputs, guarded memory, logits, counts of each
    step, free blocks.
    """
    torch.manual_seed(job.case.seed)
    target, poison = target_of(job), Poison("nan", frozenset(site.name for site in SITES))
    if not isinstance(target, EngineTarget):
        run = target.run(poison)
        if run.error is not None:
            raise run.error
        live = [(one.tensor[one.live], one.bound) for one in run.all(Observed)]
        exact = [guard.after for guard in run.all(Guard)] + [pair.second for pair in run.all(Pair)]
        return Values(tuple(live), tuple(map(_bits, exact)))
    poison = target._legitimate(poison)
    notes = Notes(target._params, poison, padding_bound=target._padding_bound)
    served = target._serve(poison, notes)
    answers = notes.answers
    rows = [
        row
        for kept in (answers.logits, answers.rejected)
        for request in sorted(kept)
        for row in kept[request]
    ]
    rows += [one.replayed[one.live] for one in [*notes.twins.replays, *notes.twins.drafts]]
    counts = tuple((one.name, one.found) for one in [*served.counts, *served.counts_at_end()])
    given = [(one.request, tuple(one.tokens)) for epoch in served.epochs for one in epoch]
    state = (counts, tuple(given), served.engine.pool.free_blocks)
    return Values(tuple((row[None], target._bound) for row in rows), state)


def _bits(tensor: torch.Tensor) -> bytes:
    return bytes(bits_view(tensor.detach().contiguous()).cpu().flatten().view(torch.uint8).numpy())


def schedules() -> list[Drawn]:
    """The drawn schedules, and what the right code decides."""
    made = (Drawn(f"schedule {seed}", partial(trace, seed)) for seed in range(NUM_SCHEDULES))
    return [Drawn(one.name, one.run, hash(one.run())) for one in made]


def tried(
    mutant: Mutant,
    result: MutantResult,
    inputs: SequenceOf[Drawn],
    noted: Noted,
    unchanged: Callable[[], AbstractContextManager[None]],
) -> MutantResult:
    """`result` with status `equivalent` and its proof, or as it is with what was seen.

    The changed code is in place, and counts with `noted`; inside `unchanged()` the right code is.
    """
    on_schedules = mutant.file.startswith(SCHEDULE)
    used = differing = rounded = fine = 0
    for number, drawn in enumerate(_for(mutant, inputs)):
        has_enough = (
            used >= LEAST
            and (not differing or differing >= LEAST)
            and (not rounded or fine >= LEAST)
        )
        if not on_schedules and number >= MOST and has_enough:
            break
        before, same_before = noted.evaluations, noted.different
        try:
            found = drawn.run()
        except Exception as error:
            return _seen(result, f"{drawn.name} raises {type(error).__name__}")
        if hash(found) != drawn.right:
            with unchanged():
                right = drawn.run()
            if (
                not isinstance(found, Values)
                or not isinstance(right, Values)
                or not found.rounds_as(right)
            ):
                return _seen(result, f"{drawn.name} gives another output")
            rounded += 1
            fine += drawn.is_fine
        used += noted.evaluations > before
        differing += noted.different > same_before
    kind = "schedules" if on_schedules else "drawn cases"
    seen = (
        f"evaluated {noted.evaluations} times in {used} {kind}, the value differed"
        f" {noted.different} times, in {differing}"
    )
    # A value that seldom differs may matter where it was not drawn.
    if (
        used < LEAST
        or 0 < differing < LEAST
        or ((rounded or result.status == "survived") and fine < LEAST)
    ):
        return _seen(
            result,
            f"{seen}; outputs were rounded otherwise in {rounded}, {fine} of them in float32",
        )
    words = "the same value" if not noted.different else "no bit of an output moves"
    if rounded:
        words = f"equal up to rounding, in {fine} cases of float32 and {rounded - fine} others"
    return result.model_copy(update={"status": "equivalent", "proof": f"{words}: {seen}"})


def _seen(result: MutantResult, seen: str) -> MutantResult:
    """A result without a proof. A survivor keeps how far its outputs moved."""
    reason = f"{result.reason}; {seen}" if result.status == "survived" else seen
    return result.model_copy(update={"reason": reason})


def _for(mutant: Mutant, inputs: SequenceOf[Drawn]) -> Iterator[Drawn]:
    if mutant.file.startswith(SCHEDULE):
        yield from (drawn for drawn in inputs if drawn.name.startswith("schedule "))
        return
    able = [
        drawn
        for drawn in inputs
        if not drawn.lines.get(mutant.file, set()).isdisjoint(mutant.lines)
    ]
    able.sort(key=lambda drawn: not drawn.is_fine)
    # Even steps first, as neighbours are of one scenario.
    step = max(len(able) // MOST, 1)
    yield from [drawn for start in range(step) for drawn in able[start::step]][:UNTIL]
