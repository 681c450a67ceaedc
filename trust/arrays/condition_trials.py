"""Trials of conditions, as a child process: right kernels get an error under a drawn pair or triple
of classes.

A trial counts as killed if a case of the run fails, as equivalent if no output changes, and as not
reached if no case shows the classes. The classes are read from the arguments of each call, as in
`mla-harness coverage`.
"""

from __future__ import annotations

import functools
import gc
import io
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.core.cases import Job
from harness.core.conditions.engine import SPACE
from harness.core.conditions.model import Combination, Space, words
from harness.core.conditions.table import SPACES, key_of, space_for
from harness.core.errors import HarnessError
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.core.records import FAILED, CaseResult, Verdict
from harness.kernels.plugins import load_plugins
from harness.run.protocol import Parent, Reply, run_child
from trust.arrays import engine_condition_errors as engine
from trust.arrays import op_condition_errors as op_errors
from trust.arrays.condition_errors import ERRORS, with_error
from trust.mutants.records import MutantResult, SurveyedCase, Trials
from trust.mutants.trials import Died, Outputs, difference, ended, in_forks, run

ENGINE = SPACE.op
MOST_CASES = 25
MOST_WORDS = 300
STRENGTHS = {2: "pairs", 3: "triples"}


class Trial:
    """One error of one kind under one combination of classes."""

    def __init__(self, op: str, combination: Combination, kind: str, last_head: bool) -> None:
        self.op, self.combination, self.kind, self.last_head = op, combination, kind, last_head
        self.change = words(combination) + (": last head" if last_head else "")
        self.name = f"{op}: {kind}: {self.change}"

    def became(self, status: str, **more: Any) -> MutantResult:
        """The result."""
        where = {
            "file": f"{self.op}, {STRENGTHS[len(self.combination)]}",
            "function": self.op,
            "line": 0,
        }
        return MutantResult.model_validate(
            {
                **where,
                "name": self.name,
                "operator": self.kind,
                "change": self.change,
                "status": status,
                **more,
            }
        )

    def is_shown_by(self, result: CaseResult) -> bool:
        """Whether a call of the case has a unit of these classes."""
        space, wanted = SPACES[self.op], set(self.combination)
        return any(
            wanted <= set(space.decoded(word).items())
            for word in result.shown.get(key_of(space), ())
        )

    def inject(self) -> None:
        """Make every kernel of the op wrong, or the engine, for the rest of this process."""
        if self.op == ENGINE:
            engine.inject(self.combination, self.kind)
            return
        load: Callable[[KernelSpec], Callable[..., Any]] = KernelSpec.load

        def wrong(spec: KernelSpec) -> Callable[..., Any]:
            return self.wrapped(load(spec)) if spec.op == self.op else load(spec)

        KernelSpec.load = wrong  # type: ignore[method-assign]

    def wrapped(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel with the error."""
        kept: dict[Any, Any] = {}

        def call(*args: Any, **keywords: Any) -> Any:
            arguments = dict(zip(OPS.get(self.op).positional, args, strict=True)) | keywords
            points = SPACES[self.op].read(**arguments)
            units = [
                unit
                for unit, point in enumerate(points)
                if set(self.combination) <= set(point.items())
            ]
            if not units:
                return kernel(*args, **keywords)
            if self.op in ERRORS:
                return with_error(
                    kernel, arguments, units, ERRORS[self.op][self.kind], self.last_head, kept
                )
            error = op_errors.ERRORS[self.op][self.kind]
            return op_errors.with_error(self.op, kernel, arguments, units, error, self.last_head)

        return functools.update_wrapper(call, kernel, assigned=("__name__", "__doc__"), updated=())


def drawn(
    count: int, seed: int, ops: list[str], spaces: Mapping[str, Space] = SPACES
) -> list[Trial]:
    """`count` trials of a seed: pairs and triples in turn, each with an op, classes of its space
    and a kind.
    """
    rng = random.Random(f"conditions:{seed}")
    combinations: dict[tuple[str, int], list[Combination]] = {}
    found = []
    for number in range(count):
        op = rng.choice(ops)
        strength = 2 + number % 2
        if (op, strength) not in combinations:
            combinations[op, strength] = list(spaces[op].combinations(strength))
        combination = rng.choice(combinations[op, strength])
        kinds = (
            engine.kinds_for(combination)
            if op == ENGINE
            else sorted((ERRORS | op_errors.ERRORS)[op])
        )
        last_head = rng.random() < 0.3 and op in op_errors.HEADED
        found.append(Trial(op, combination, rng.choice(kinds), last_head))
    return found


def _op(job: Job) -> str:
    """The op of a case, or `engine`."""
    return job.case.op or job.case.system


def attempt(
    trial: Trial, jobs: list[Job], clean: dict[str, tuple[CaseResult, Outputs, float]]
) -> MutantResult:
    """Run the cases that show the classes, the cheapest first, until one fails."""
    able = [job for job in jobs if trial.is_shown_by(clean[job.key][0])]
    able.sort(key=lambda job: clean[job.key][2])
    if not able:
        return trial.became("not reached")
    trial.inject()
    result = trial.became("equivalent", num_cases=len(able[:MOST_CASES]))
    for number, job in enumerate(able[:MOST_CASES], 1):
        found, outputs = run(job)
        seen: dict[str, Any] = {"case": job.case.id, "num_cases": number}
        if found.verdict in FAILED:
            return trial.became(
                "killed", by=found.findings[0].oracle, reason=found.reason[:MOST_WORDS], **seen
            )
        if found.verdict is not Verdict.PASS:
            result = trial.became("error", reason=found.reason[:MOST_WORDS], **seen)
        elif result.status == "equivalent" and (changed := difference(outputs, clean[job.key][1])):
            result = trial.became("survived", reason=changed, **seen)
    return result


def look(jobs: list[Job]) -> bytes:
    """The result of each job without an error, its outputs and its seconds, by its key: pickled by
    torch.
    """
    clean = {}
    for job in jobs:
        started = time.perf_counter()
        clean[job.key] = (*run(job), time.perf_counter() - started)
    buffer = io.BytesIO()
    torch.save(clean, buffer)
    return buffer.getvalue()


def main(parent: Parent) -> None:
    """Run the cases once, then try the errors.

    The cases that cannot judge, and each trial, are a progress.
    """
    torch.set_num_threads(1)
    request = parent.request(Trials)
    assert request is not None
    of_files = load_plugins(dict.fromkeys(path for job in request.jobs for path in job.plugins))
    able = [job for job in request.jobs if _op(job) in (*ERRORS, *op_errors.ERRORS, ENGINE)]
    parts = [able[number :: request.workers] for number in range(request.workers)]
    clean: dict[str, tuple[CaseResult, Outputs, float]] = {}
    for _, part in in_forks(parts, look, request.workers):
        if isinstance(part, Died):
            raise HarnessError(f"the calls without an error ended with {part.exit_code}")
        if part:
            clean |= torch.load(io.BytesIO(part), weights_only=False)
    unused = [
        SurveyedCase(id=found.id, why_not=f"{found.verdict.value}: {found.reason}")
        for found, _, _ in clean.values()
        if found.verdict is not Verdict.PASS
    ]
    parent.reply(Reply(progress={"unused": [case.model_dump(mode="json") for case in unused]}))
    usable = [job for job in able if job.key in clean and clean[job.key][0].verdict is Verdict.PASS]
    ops = sorted({_op(job) for job in usable})
    # What a kernel of a file promises not to take, no call of it shows.
    spaces = {op: SPACES[op] for op in ops} | {spec.op: space_for(spec) for spec in of_files}
    trials = [
        trial
        for trial in drawn(request.count, request.seed, ops, spaces)
        if trial.name not in request.done
    ]
    gc.freeze()

    def try_one(trial: Trial) -> MutantResult:
        return attempt(trial, [job for job in usable if _op(job) == trial.op], clean)

    for trial, tried in in_forks(trials, try_one, request.workers):
        result = ended(trial.became, tried) if isinstance(tried, Died) else tried
        parent.reply(Reply(progress={"mutant": result.model_dump(mode="json")}))
    parent.reply(Reply(result={}))


if __name__ == "__main__":
    assert threading.active_count() == 1
    run_child(main)
