"""Traces of requests in time against a running server: drawn, steered by what the server's counters
showed, and shrunk.

A trace is a script of bursts: prompts that share prefixes, with lengths at the borders of pages and
chunks, streams that are closed early, arrivals apart by milliseconds. Its judgement is that of a
script: each answer beside the same request asked alone. As a module, `python -m
harness.diagnose.traces`, it is the child process of `serve-check`.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from harness.accuracy.script import (
    FIRST_TOKEN,
    SCHEMAS,
    PagePool,
    Script,
    ScriptStep,
    StepRequest,
    length_of,
    requests_of,
)
from harness.accuracy.script_check import ALONE, Judged, ScriptCheck, check_script, server_of
from harness.accuracy.script_server import ScriptServer
from harness.accuracy.server_replies import ServerReply
from harness.core.cause_codes import Code
from harness.core.errors import InputError, Refused
from harness.core.findings import Finding
from harness.diagnose.reduce import Reducer, fewer
from harness.diagnose.script.code import templates
from harness.run import protocol

PREFIXES = "abc"
TAILS = "stuvw"
PAGES = (1, 1, 2, 2, 3, 5, 8)
CHUNKS = (512, 2048, 8192)
"""Tokens of a chunk of prefill in servers as released."""
BUDGETS = ("1", "2", "8", "1p", "1p+1")
MOST_ADAPTERS = 4
LONGEST_VALUE = 32
"""Adapters of a server that are drawn, and a budget that ends no answer with a schema."""
TRIES = 3
"""How often a smaller trace is tried before it counts as right: the order on a server is not the
same each time.

As often a trace that fails, and its requests alone, are taken again as they are.
"""

MOST_IN_VAIN = 3
"""So many traces in a row without an answer to compare: the server answers no more."""


class TraceCheck(ScriptCheck):
    """A server, and the number and seed of its traces. Without a number it takes the `script`."""

    script: Script = Script(name="fuzz", summary="drawn traces of requests", steps=())
    fuzz: int = 0
    seed: int = 0
    shrink_seconds: float = 60.0


PLAINEST = ScriptStep(ask=("a:1",), max_tokens="1")
"""What each step is brought near to when a trace is made smaller."""


def drawn_step(draw: random.Random, pool: PagePool) -> ScriptStep:
    """A burst of requests that each fit the pool."""
    most = (pool.num_pages - 2) * pool.page
    budget = draw.choice([text for text in BUDGETS if length_of(text, pool.page) < most // 2])
    room = most - length_of(budget, pool.page)
    asked = tuple(
        _prompt(draw, pool.page, room) for _ in range(draw.choice((1, 2, 3, 4, 8, 8, 12)))
    )
    is_cut = draw.random() < 0.3
    gap = draw.choice((0, 0, 1, 5, 20))
    return ScriptStep(
        ask=asked,
        together=draw.random() < 0.8,
        max_tokens=budget,
        abort_after=tuple(draw.choice((None, 0, 1, 3)) for _ in asked) if is_cut else (),
        arrive_ms=tuple(gap * draw.randint(0, len(asked)) for _ in asked) if gap else (),
    )


def _prompt(draw: random.Random, page: int, room: int) -> str:
    """Up to two pieces, a prefix that others have and a tail, together at most `room` tokens."""
    pieces: list[str] = []
    for names in draw.choice(((PREFIXES, TAILS), (PREFIXES,), (TAILS,))):
        lengths = [f"{count}p{draw.choice(('', '-1', '+1'))}" for count in PAGES]
        lengths += [str(draw.randint(1, 17)), str(draw.choice(CHUNKS) + draw.randint(-1, 1))]
        fitting = [text for text in lengths if 1 <= length_of(text, page) <= room]
        if fitting:
            text = draw.choice(fitting)
            pieces.append(f"{draw.choice(names)}:{text}")
            room -= length_of(text, page)
    return " ".join(pieces) or f"{TAILS[0]}:1"


@dataclass
class TraceDraws:
    """Half of its traces change a trace that showed what was seen least: hits, preemptions, drafts.

    `more` has what requests of a step may carry: the adapters and schemas that the server knows. It
    has draws of its own, so that a seed gives the same steps on a server with neither.
    """

    seed: int
    pool: PagePool
    seen: Counter[frozenset[str]] = field(default_factory=Counter)
    kept: dict[frozenset[str], Script] = field(default_factory=dict)
    more: dict[str, list[str]] = field(default_factory=dict)

    def next(self, number: int) -> Script:
        draw = random.Random(f"{self.seed}/{number}")
        steps = [drawn_step(draw, self.pool) for _ in range(draw.randint(1, 3))]
        # A generator of its own, so that the steps are the same on servers that offer less.
        later = random.Random(f"{self.seed}/{number}/2")
        for place, step in enumerate(steps):
            drawn = {
                name: tuple(later.choice((None, *known)) for _ in step.ask)
                for name, known in self.more.items()
            }
            steps[place] = step.but(
                **{name: values for name, values in drawn.items() if later.random() < 0.5}
            )
        if self.kept and draw.random() < 0.5:
            # Events that few traces showed are reached again by what comes near the trace that
            # showed them.
            rarest = self.kept[min(self.seen, key=lambda shown: self.seen[shown])].steps
            steps = [*rarest[-2:], steps[0]] if draw.random() < 0.5 else [steps[0], *rarest[:2]]
        return Script(
            name="fuzz", summary=f"trace {number} of seed {self.seed}", steps=tuple(steps)
        )

    def note(self, trace: Script, judged: Judged) -> None:
        shown = frozenset(name for name, count in judged.events.items() if count)
        self.seen[shown] += 1
        self.kept.setdefault(shown, trace)


def smaller(trace: Script) -> Iterator[Script]:
    """Traces with fewer steps, requests, pieces, tokens, aborts and delays, the largest step
    first.
    """

    def changed(place: int, **more: Any) -> Script:
        steps = list(trace.steps)
        steps[place] = steps[place].but(**more)
        return trace.but(steps=tuple(steps))

    for rest in fewer(trace.steps, least=1):
        yield trace.but(steps=tuple(rest))
    for place, step in enumerate(trace.steps):
        for kept in fewer(range(len(step.ask)), least=1):
            names = ("ask", "abort_after", "arrive_ms", "models", "schemas")
            yield changed(
                place,
                **{n: tuple(getattr(step, n)[i] for i in kept) for n in names if getattr(step, n)},
            )
        for name in ("models", "schemas", "arrive_ms", "abort_after", "together", "max_tokens"):
            least = getattr(PLAINEST, name)
            if getattr(step, name) != least:
                yield changed(place, **{name: least})
        for number, prompt in enumerate(step.ask):
            for pieces in fewer(prompt.split(), least=1):
                asked = (*step.ask[:number], " ".join(pieces), *step.ask[number + 1 :])
                yield changed(place, ask=asked)


def offered(server: ScriptServer) -> dict[str, list[str]]:
    """The adapters and schemas that the server answers by: each is asked for once."""
    one = StepRequest("one token", (FIRST_TOKEN,), LONGEST_VALUE, "own")
    found: dict[str, list[str]] = {
        "models": [
            name
            for name in server.adapters()[:MOST_ADAPTERS]
            if server.has(replace(one, model=name))
        ],
        "schemas": [name for name in SCHEMAS if server.has(replace(one, schema=name))],
    }
    return {name: known for name, known in found.items() if known}


class _Fuzz:
    def __init__(self, check: TraceCheck) -> None:
        self.check = check
        self.references = dict[StepRequest, ServerReply]()
        with closing(server_of(check)) as server:
            more = offered(server)
            pool = server.metrics().cache
            longest = server.longest()
            self.total = Judged(
                server.identity.model, f"fuzz,seed={check.seed}" + (",draws=2" if more else "")
            )
            self.total.notes += [
                f"{name} of the server: {', '.join(known)}" for name, known in more.items()
            ]
        if pool is None:
            raise Refused(
                "the server's /metrics do not say the pages of its cache, which the lengths follow:"
                " add --page-size 16"
            )
        # Two pages of the pool stay free: so many tokens are the longest request.
        self.pool = pool
        fitting = replace(pool, num_pages=min(pool.num_pages, longest // pool.page + 2))
        self.draws = TraceDraws(check.seed, fitting, more=more)

    def run(self, say: Callable[[dict[str, Any]], object]) -> Script | None:
        """Take the traces to the server until one fails, and `say` how far it is.

        Returns that trace, shrunk. Wrong text alone is told, and the traces go on: a server gives
        it with every such prompt, and the later traces would not be tried.
        """
        only_text: tuple[Script, Judged] | None = None
        in_vain = 0
        for number in range(self.check.fuzz):
            if number and number % 10 == 0:
                say({"words": f"{number - in_vain} of {self.check.fuzz} traces pass"})
            trace = self.draws.next(number)
            judged = self._judged(trace)
            self.draws.note(trace, judged)
            in_vain = 0 if judged.num_tokens or judged.findings else in_vain + 1
            if in_vain == MOST_IN_VAIN:
                self._add(judged)
                return self._ended(trace, judged)
            if judged.findings and not judged.is_wrong_in_tokens:
                judged.findings, told = [], judged.findings
                only_text = only_text or (trace, replace(judged, findings=told))
            self._add(judged)
            if judged.findings:
                self.total.notes.append(f"trace {number} of {self.check.fuzz} fails")
                # A server that is gone can show no smaller trace.
                if _has_died(judged):
                    return trace
                trace = self._shrunk(trace, judged)
                self._repeat(trace)
                return trace
        kinds = [
            f"{count} with {', '.join(sorted(kind)) or 'none'}"
            for kind, count in self.draws.seen.items()
        ]
        self.total.notes.append(
            f"{self.check.fuzz} traces by the counters that they moved: {'; '.join(kinds)}"
        )
        if only_text is None:
            return None
        trace, judged = only_text
        self.total.findings = judged.findings
        return self._shrunk(trace, judged)

    def _ended(self, trace: Script, judged: Judged) -> Script | None:
        """The trace behind which no request is answered; None if none was from the start on."""
        why = judged.not_shown[0] if judged.not_shown else "no token was compared"
        words = f"{MOST_IN_VAIN} traces in a row had no answer to compare: {why}"
        if not self.total.num_tokens:
            self.total.not_shown.insert(0, words)
            return None
        # What the server answered before is judged. That it ended is a finding of its own.
        self.total.findings.append(_death(words))
        return trace

    def _judged(self, trace: Script, known: dict[StepRequest, ServerReply] | None = None) -> Judged:
        known = self.references if known is None else known
        try:
            return check_script(self.check.but(script=trace), known)
        except InputError as error:
            return Judged(self.total.model, trace.name, findings=[_death(str(error))])

    def _add(self, judged: Judged) -> None:
        total = self.total
        total.events = dict(Counter(total.events) + Counter(judged.events))
        total.num_tokens += judged.num_tokens
        total.num_answers += judged.num_answers
        total.drift = max(total.drift, judged.drift)
        for name in ("ties", "not_shown", "findings"):
            getattr(total, name).extend(getattr(judged, name))

    def _shrunk(self, trace: Script, judged: Judged) -> Script:
        in_tokens = judged.is_wrong_in_tokens

        def fails_alike(one: Judged) -> bool:
            wrong = one.is_wrong_in_tokens if in_tokens else one.has_prompt_in_text
            return wrong and not _has_died(one)

        def again(candidates: Sequence[Script]) -> list[Judged | None]:
            # One by one: the first try that fails is enough.
            tries = (self._again(candidates[0]) for _ in range(TRIES))
            return [next((one for one in tries if fails_alike(one)), None)]

        reducer = Reducer(again, 1, time.monotonic() + self.check.shrink_seconds)
        if again([trace]) == [None]:
            self.total.notes.append("the trace does not fail again by itself, so it was not shrunk")
            return trace
        while found := reducer.first(smaller(trace)):
            trace, judged = found
        self.total.findings = judged.findings
        return trace

    def _again(self, trace: Script) -> Judged:
        """The trace once more. A fault of a lone answer shows only where it is asked again."""
        return self._judged(
            trace, {} if any(finding.where == ALONE for finding in self.total.findings) else None
        )

    def _repeat(self, trace: Script) -> None:
        """Note what tells noise from a bug: how often the trace fails as it is, and its requests
        asked alone.
        """
        failed = sum(bool(self._again(trace).findings) for _ in range(TRIES))
        self.total.notes.append(
            f"taken again as it is, the trace fails in {failed} of {TRIES} tries"
        )
        requests = [
            one.alone for step in trace.steps for one in requests_of(trace, step, self.pool)
        ]
        with closing(server_of(self.check)) as server:
            for request in list(dict.fromkeys(requests))[:4]:
                answers = server.ask_alone([request] * TRIES)
                widest = [
                    sorted((margin for margin, _ in scores), reverse=True)[:2]
                    for _, scores in answers
                    if scores
                ]
                shown = "; ".join(", ".join(f"{margin:.3f}" for margin in two) for two in widest)
                count = (
                    f"{len({reply.tokens for reply, _ in answers})} different answers in {TRIES}"
                    " tries"
                )
                shown = f"the widest margins of a prefill, nats: {shown or 'unknown'}"
                self.total.notes.append(f"request {request.label} alone: {count}; {shown}")


def trace_script(
    check: ScriptCheck, model: str, steps: Sequence[tuple[bool, Sequence[StepRequest]]]
) -> str:
    """A trace as a script that needs `httpx` alone.

    A step says whether its requests come at once.
    """
    asked = {
        "url": check.url.rstrip("/"),
        "model": model,
        "near": 2 * check.tolerance,
        "timeout": check.timeout,
    }
    return templates().get_template("trace.py.j2").render(asked, steps=steps)


def _death(message: str) -> Finding:
    return Finding(oracle="sequences", where="the server", message=message, cause=Code.DIED)


def _has_died(judged: Judged) -> bool:
    return any(finding.cause == Code.DIED for finding in judged.findings)


def answer(check: TraceCheck, say: Callable[[dict[str, Any]], object] = dict) -> dict[str, Any]:
    """Take the script, or drawn traces, to the server.

    Returns what was found; of a trace that fails also a script.
    """
    if not check.fuzz:
        return _shown(check_script(check))
    found = _Fuzz(check)
    script = ""
    trace = found.run(say)
    if trace is not None:
        steps = [requests_of(trace, step, found.pool) for step in trace.steps]
        together = [step.together for step in trace.steps]
        script = trace_script(
            check,
            found.total.model.removeprefix("server:"),
            list(zip(together, steps, strict=True)),
        )
    return _shown(
        found.total,
        trace=trace and trace.model_dump(mode="json", exclude_defaults=True),
        python=script,
    )


def _shown(judged: Judged, **more: Any) -> dict[str, Any]:
    found = judged.as_dict() | more
    return {
        "found": found,
        "lines": judged.lines(),
        "result": judged.result().model_dump(mode="json"),
    }


def _main(parent: protocol.Parent) -> None:
    if (check := parent.request(TraceCheck)) is not None:
        found = answer(check, lambda words: parent.reply(protocol.Reply(progress=words)))
        parent.reply(protocol.Reply(result=found))


if __name__ == "__main__":
    protocol.run_child(_main)
