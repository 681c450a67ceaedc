"""Trials of mutants, as a child process: `python -m trust.mutants.trials`.

One process loads everything, and is forked for each mutant. The fork changes one function in its
memory and runs the cases that execute the changed lines, the cheapest of each scenario first, until
an oracle sees the change. No file is written. A survey of the unchanged code says which lines a
case executes, and what its outputs are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import multiprocessing
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

import torch
from torch_poison.patterns import bits_view

from harness.core.cases import Job
from harness.core.errors import HarnessError
from harness.core.records import FAILED, CaseResult, Verdict
from harness.evidence.observed import Observed
from harness.judge.run_case import outcome_of
from harness.kernels.plugins import load_plugins
from harness.run.launch import die_with_parent
from harness.run.protocol import Parent, Reply, run_child
from trust.mutants import equivalence
from trust.mutants.operators import KEEP_LAST, NOTE, Mutant, mutants_of, mutated
from trust.mutants.records import MutantResult, Status, SurveyedCase, Trials

ROOT = Path(__file__).resolve().parents[2] / "harness"
UNDER_TEST = (
    *(
        f"engine/{name}.py"
        for name in ("attention", "batch", "capture", "engine", "experts", "kernels", "memory")
    ),
    *(
        f"engine/{name}.py"
        for name in ("linear_attention", "paged_model", "runner", "sparse_attention", "speculation")
    ),
    *(f"engine/schedule/{name}.py" for name in ("block_pool", "scheduler", "sequence")),
    *sorted(
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("ops/*/kernels/*.py")
        if not path.stem.startswith("triton")
    ),
    *(
        f"ops/parts/{name}.py"
        for name in ("block_codes", "buffer_rows", "record_views", "slots", "split_plan")
    ),
)
"""The files that mutants change. The model is not among them: the reference shares it."""
SEVERAL, DRAWN = 4, "fuzz"
FIRST, SECOND, PROPERTY_SECONDS = 24, 120, 240.0
"""Cases before the property run, which takes so long at most: SECOND if outputs differ."""
ALL_SECONDS = 240.0
"""CPU time after which a mutant without a proof is tried on no further case. Until then all cases
that execute the line are, as what shows a change may be a pair of parameters.
"""
MORE_SECONDS, TIMES = 5.0, 10.0
"""A case of a mutant may take TIMES the CPU time that it took without it, and MORE_SECONDS: load
does not count.
"""
CHOICES = "policy"
"""The oracle of what another right engine may choose. A mutant that it alone sees is tried on SECOND
cases, as its kill says little.
"""
REAL_TIMES, REAL_SECONDS = 30.0, 900.0
"""After so many limits and seconds by the clock the process ends: it waits for what never comes.

That is an error of the trial and no kill.
"""
MORE_MEMORY = 8 * 2**40
"""Bytes of address space. A pool with pages past 2**31 elements and block numbers past 32,768 takes
2.4 TiB of it and next to no memory, and a case holds several copies.
"""
MOST_WORDS = 300
Outputs = dict[str, torch.Tensor]
T = TypeVar("T")
R = TypeVar("R")


class Late(BaseException):
    """A case took too much CPU time."""


@dataclass(frozen=True, slots=True)
class Died:
    """How a process ended that gave no result, as `multiprocessing` says it: a signal is
    negative.
    """

    exit_code: int

    @property
    def by_itself(self) -> bool:
        """Whether the code of the mutant ended it: the memory that it touched, an abort, or CPU
        time without end.
        """
        return -self.exit_code in (
            signal.SIGSEGV,
            signal.SIGBUS,
            signal.SIGFPE,
            signal.SIGABRT,
            signal.SIGXCPU,
        )


def all_mutants() -> list[Mutant]:
    """The mutants of all files under test, in order."""
    return [
        m
        for file in UNDER_TEST
        for m in mutants_of(file, (ROOT / file).read_text(encoding="utf-8"))
    ]


def drawn(count: int, seed: int) -> list[Mutant]:
    """`count` different mutants of a seed, in no order: the first of them are a sample as well."""
    known = all_mutants()
    return random.Random(seed).sample(known, min(count, len(known)))


def inject(mutant: Mutant, noted: equivalence.Noted | None = None) -> None:
    """Give the mutant's function its changed code, for the rest of this process.

    It counts with `noted`.
    """
    module = importlib.import_module("harness." + mutant.file.removesuffix(".py").replace("/", "."))
    text, path = (ROOT / mutant.file).read_text(encoding="utf-8"), str(ROOT / mutant.file)
    with contextlib.suppress(SyntaxWarning):
        code = compile(
            mutated(text, mutant, noting=noted is not None), path, "exec", dont_inherit=True
        )
    function = function_of(module, mutant.function, path)
    before: dict[int, Any] = {}

    def value_of_the_call_before(value: Any) -> Any:
        last = before.get(0, value)
        before[0] = value
        return noted.note(value, last) if noted else last

    function.__globals__[NOTE] = noted.note if noted else None
    function.__globals__[KEEP_LAST] = value_of_the_call_before
    _RIGHT.setdefault(mutant.name, (function, function.__code__))
    function.__code__ = _code(code, mutant.function)


_RIGHT: dict[str, tuple[FunctionType, CodeType]] = {}
"""The name of a mutant -> its function, and the code of it as it is in the file."""


@contextlib.contextmanager
def unchanged(mutant: Mutant) -> Iterator[None]:
    """Run a block on the right code."""
    function, right = _RIGHT[mutant.name]
    changed, function.__code__ = function.__code__, right
    yield
    function.__code__ = changed


def _code(module: CodeType, name: str) -> CodeType:
    """The code of a function or method inside a module's code."""
    for const in module.co_consts:
        if isinstance(const, CodeType):
            if const.co_qualname == name:
                return const
            if name.startswith(const.co_qualname + "."):
                return _code(const, name)
    raise LookupError(name)


def function_of(module: object, name: str, path: str) -> FunctionType:
    """The function that runs the code of a name, behind seams, decorators and properties."""
    found: Any = module
    for part in name.split("."):
        found = vars(found)[part]
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    while found.__code__.co_qualname != name or found.__code__.co_filename != path:
        found = found.__wrapped__
    assert isinstance(found, FunctionType)
    return found


def run(job: Job) -> tuple[CaseResult, Outputs]:
    """The result of a job, and the live rows of all outputs of its runs."""
    outcome = outcome_of(job)
    outputs = {
        f"{run.pattern} {observed.name}": observed.tensor[observed.live].contiguous()
        for run in outcome.runs
        for observed in run.all(Observed)
    }
    return outcome.result_of(job, 0.0), outputs


def difference(outputs: Outputs, clean: Outputs) -> str:
    """How outputs differ from the clean ones, in words; empty if all bits are equal."""
    shapes = [
        {name: (live.shape, live.dtype) for name, live in one.items()} for one in (outputs, clean)
    ]
    if shapes[0] != shapes[1]:
        return "there are other outputs"
    moved = [
        name
        for name, live in outputs.items()
        if not torch.equal(bits_view(live), bits_view(clean[name]))
    ]
    if not moved:
        return ""
    largest = max(_distance(outputs[name].double(), clean[name].double()) for name in moved)
    return f"outputs move by {largest:.1g} of their scale"


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / other.square().mean().sqrt().clamp(min=1e-30))


def survey(job: Job, seconds: float, clean: Outputs) -> SurveyedCase:
    """Run a case again, and note the lines that it executes.

    `clean` are its outputs in the run before.
    """
    with equivalence.executed_lines({str(ROOT / file): file for file in UNDER_TEST}) as executed:
        result, outputs = run(job)
    why_not = "" if result.verdict is Verdict.PASS else f"{result.verdict.value}: {result.reason}"
    why_not = why_not or difference(outputs, clean)
    lines = {file: tuple(sorted(found)) for file, found in executed.lines.items() if found}
    return SurveyedCase(
        id=job.case.id, seconds=seconds, steps=executed.steps, lines=lines, why_not=why_not
    )


def cases_for(mutant: Mutant, surveyed: dict[str, SurveyedCase], jobs: list[Job]) -> list[Job]:
    """The cases that execute the changed lines: the cheapest of each scenario, then the second of
    each, ...

    Each turn has SEVERAL of the drawn cases, which differ more from one another. What decides a
    schedule is tried first on the cases that declare their steps.
    """
    lines = set(mutant.lines)
    hits = [
        job
        for job in jobs
        if not lines.isdisjoint(surveyed[job.case.id].lines.get(mutant.file, ()))
    ]
    hits.sort(key=lambda job: surveyed[job.case.id].steps)
    seen: dict[str, int] = {}
    turns = []
    for job in hits:
        before = seen.setdefault(job.case.scenario, 0)
        is_declared = mutant.file.startswith(
            equivalence.SCHEDULE
        ) and job.case.params.model_dump().get("steps")
        turns.append(
            0 if is_declared else before // SEVERAL if job.case.scenario == DRAWN else before
        )
        seen[job.case.scenario] += 1
    return [job for _, job in sorted(zip(turns, hits, strict=True), key=lambda pair: pair[0])]


def became(mutant: Mutant, status: Status, **more: Any) -> MutantResult:
    """The result of a mutant."""
    same = ("name", "file", "function", "line", "operator", "change")
    return MutantResult(**{name: getattr(mutant, name) for name in same}, status=status, **more)


def trial(
    mutant: Mutant,
    jobs: list[Job],
    surveyed: dict[str, SurveyedCase],
    clean: dict[str, Outputs],
    inputs: Sequence[equivalence.Drawn] = (),
) -> MutantResult:
    """Run the cases on the changed code until one fails by more than its choices.

    `clean` has the outputs of each on unchanged code.

    If FIRST cases tell nothing, or SECOND show a difference alone, the drawn `inputs` are run
    before the others, and may prove that none can.
    """
    if not jobs:
        return became(mutant, "not reached")
    limit_memory()
    inject(mutant)
    result = became(mutant, "not exercised", num_cases=len(jobs))
    by_choice: MutantResult | None = None
    started = time.process_time()
    for number, job in enumerate(jobs, 1):
        if by_choice is not None and number > SECOND:
            return by_choice
        turn = {"not exercised": FIRST, "survived": SECOND}.get(result.status)
        if turn is not None and number > turn and inputs and by_choice is None:
            result = proved(mutant, result, inputs)
            if result.proof:
                return result.model_copy(update={"num_cases": number - 1})
            inputs = ()
        if number > SECOND and time.process_time() - started > ALL_SECONDS:
            return result.model_copy(update={"num_cases": number - 1})
        seen: dict[str, Any] = {"case": job.case.id, "num_cases": number}
        try:
            with time_limit(MORE_SECONDS + TIMES * surveyed[job.case.id].seconds):
                found, outputs = run(job)
        except Late:
            return became(mutant, "killed", by="crash", reason="it does not end", **seen)
        except MemoryError:
            return became(mutant, "killed", by="crash", reason="out of memory", **seen)
        if found.verdict in FAILED:
            oracles = [finding.oracle for finding in found.findings]
            by = next((oracle for oracle in oracles if oracle != CHOICES), CHOICES)
            killed = became(mutant, "killed", by=by, reason=found.reason[:MOST_WORDS], **seen)
            if by != CHOICES:
                return killed
            by_choice = by_choice or killed
            continue
        if found.verdict is Verdict.ERROR:
            if by_choice is not None:
                continue
            return became(mutant, "killed", by="error", reason=found.reason[:MOST_WORDS], **seen)
        seen["num_cases"] = len(jobs)
        if found.verdict is not Verdict.PASS:
            result = became(mutant, "error", reason=found.reason[:MOST_WORDS], **seen)
        elif result.status == "not exercised" and (
            changed := difference(outputs, clean[job.case.id])
        ):
            result = became(mutant, "survived", reason=changed, **seen)
    if by_choice is not None:
        return by_choice
    return (
        proved(mutant, result, inputs)
        if result.status in ("not exercised", "survived") and inputs
        else result
    )


def proved(
    mutant: Mutant, result: MutantResult, inputs: Sequence[equivalence.Drawn]
) -> MutantResult:
    """The result, with a proof if a property run gives one.

    Then the function has its changed code, as before.
    """
    noted = equivalence.Noted()
    inject(mutant, noted)
    try:
        with time_limit(PROPERTY_SECONDS):
            return equivalence.tried(mutant, result, inputs, noted, partial(unchanged, mutant))
    except (Late, MemoryError):
        return result.model_copy(update={"reason": "the property run does not end"})
    finally:
        inject(mutant)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise Late after `seconds` of CPU time.

    A call into C that takes twice as long ends the process.
    """

    def stop(signum: int, frame: object) -> None:
        raise Late

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + 2 * seconds) + 2, hard))
    faulthandler.dump_traceback_later(REAL_TIMES * seconds + REAL_SECONDS, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        faulthandler.cancel_dump_traceback_later()


def limit_memory() -> None:
    """A mutant that asks for too much memory gets an error, and the machine goes on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    # One that touches more than the machine has is ended by the kernel, before anything else is.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def in_forks(tasks: list[T], work: Callable[[T], R], at_most: int) -> Iterator[tuple[T, R | Died]]:
    """The result of each task from a process of its own, in order, or how it died.

    At most `at_most` run at once.
    """
    context = multiprocessing.get_context("fork")
    done: dict[int, R | Died] = {}
    running: dict[Connection, tuple[int, Any]] = {}
    following = 0
    for number in range(len(tasks)):
        while number not in done:
            while following < len(tasks) and len(running) < at_most:
                receive, send = context.Pipe(duplex=False)
                given = (os.getpid(), send, work, tasks[following])
                process = context.Process(target=_send, args=given, daemon=True)
                process.start()
                send.close()
                running[receive] = (following, process)
                following += 1
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                place, process = running.pop(ready)
                try:
                    found = ready.recv()
                except EOFError:
                    found = None
                ready.close()
                process.join()
                if isinstance(found, Exception):
                    raise found
                done[place] = Died(process.exitcode) if found is None else found
        yield tasks[number], done.pop(number)


def _send(parent: int, connection: Connection, work: Callable[[T], R], task: T) -> None:
    # It holds the end that its parent reads from, so a large result would keep it alive for ever.
    die_with_parent(parent)
    try:
        connection.send(work(task))
    except Exception as error:
        # What a mutant raises is caught where it runs, so this is an error of the trials.
        connection.send(error)


def ended(result: Callable[..., MutantResult], how: Died) -> MutantResult:
    """What `result` makes of a trial that ended with its process."""
    if how.by_itself:
        return result(
            "killed", by="crash", reason=f"the process died: {signal.Signals(-how.exit_code).name}"
        )
    return result("error", reason=f"the trial was stopped: exit code {how.exit_code}")


def _parts(tasks: list[T], count: int) -> list[list[T]]:
    """The tasks in `count` parts of nearly the same size."""
    return [part for number in range(count) if (part := tasks[number::count])]


def results_of(found: Iterator[tuple[T, R | Died]]) -> list[R]:
    """The results of forks that must not die."""
    results = []
    for _, result in found:
        if isinstance(result, Died):
            raise HarnessError(f"a process of the survey died: exit code {result.exit_code}")
        results.append(result)
    return results


def look(jobs: list[Job]) -> bytes:
    """The survey of each job, and its outputs by the id of its case: pickled, as no memory is
    shared.
    """
    limit_memory()
    found, clean = [], {}
    for job in jobs:
        started = time.process_time()
        clean[job.case.id] = run(job)[1]
        found.append(survey(job, time.process_time() - started, clean[job.case.id]))
    buffer = io.BytesIO()
    # pickle alone writes 8-bit floats in a form that it cannot read.
    torch.save((found, clean), buffer)
    return buffer.getvalue()


def run_right(ids: list[tuple[str, str, dict[str, Any]]]) -> list[equivalence.Drawn]:
    """The drawn inputs of `ids`, with the memory that a trial has."""
    limit_memory()
    return equivalence.drawn_inputs({str(ROOT / file): file for file in UNDER_TEST}, ids)


def main(parent: Parent) -> None:
    """Survey the cases, then try the mutants.

    The cases that cannot judge, and each mutant, are a progress.
    """
    torch.set_num_threads(1)
    request = parent.request(Trials)
    assert request is not None
    load_plugins(())
    for file in UNDER_TEST:
        importlib.import_module("harness." + file.removesuffix(".py").replace("/", "."))
    jobs = list(request.jobs)
    looks = [
        torch.load(io.BytesIO(part), weights_only=False)
        for part in results_of(in_forks(_parts(jobs, request.workers), look, request.workers))
    ]
    surveyed = {case.id: case for cases, _ in looks for case in cases}
    clean = {name: outputs for _, kept in looks for name, outputs in kept.items()}
    inputs: list[equivalence.Drawn] = []
    if request.proves:
        parts = _parts(equivalence.drawn_ids(), request.workers)
        found = results_of(in_forks(parts, run_right, request.workers))
        inputs = equivalence.schedules() + [drawn for some in found for drawn in some]
    # Forks share the objects that are there, also after a garbage collection.
    gc.freeze()
    unused = [
        case.model_dump(mode="json", exclude={"lines"})
        for case in surveyed.values()
        if case.why_not
    ]
    parent.reply(Reply(progress={"unused": unused}))
    usable = [job for job in jobs if job.case.id in surveyed and not surveyed[job.case.id].why_not]
    mutants = [
        mutant for mutant in drawn(request.count, request.seed) if mutant.name not in request.done
    ]

    def try_one(mutant: Mutant) -> MutantResult:
        return trial(mutant, cases_for(mutant, surveyed, usable), surveyed, clean, inputs)

    for mutant, tried in in_forks(mutants, try_one, request.workers):
        result = ended(partial(became, mutant), tried) if isinstance(tried, Died) else tried
        parent.reply(Reply(progress={"mutant": result.model_dump(mode="json")}))
    parent.reply(Reply(result={}))


if __name__ == "__main__":
    assert threading.active_count() == 1
    run_child(main)
