"""Run a script of requests against a server, and compare each answer with the same request asked
alone, uncached.

Both are greedy. A difference where the reference holds both tokens for nearly alike is a tie, and
ends the comparison of this answer. What a step must make happen (a hit, a preemption, ...) is read
from the server's counters: a script in which it did not happen shows nothing, whatever was
answered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from harness.accuracy.acceptance import Drafts, acceptance_in_words
from harness.accuracy.script import PagePool, Script, ScriptStep, StepRequest, requests_of
from harness.accuracy.script_server import NUM_BEST, ScriptServer
from harness.accuracy.server_replies import Scores, ServerReply
from harness.core.cause_codes import Code
from harness.core.errors import Refused
from harness.core.findings import Finding
from harness.core.params import Record
from harness.core.records import CaseResult, Verdict

ORACLE = "sequences"
SCENARIO = "serve-check"
PROMPT_IN_TEXT = "vllm-project/vllm#48853"
CACHE_IS_OFF = "no request looked a page up in the prefix cache: the server has it switched off"
ALONE = "asked alone"
"""Where a finding is that needs no other request."""
TOLERANCE = 0.3
"""How much a log probability may differ between two batches, in nats.

Two tokens closer than twice this are a tie.

A bfloat16 logit of 16 to 32 is rounded to 1/8; two of them move a log probability by at most a
quarter.
"""


class ScriptCheck(Record):
    """A server, a script for it, and what the server is compared with."""

    url: str
    script: Script
    served_model: str | None = None
    timeout: float = 120.0
    tolerance: float = TOLERANCE
    page_size: int | None = None
    """The tokens of a page, for a server that does not say it."""
    least_acceptance: float | None = None
    weights: str | None = None
    """The checkpoint that `reload` loads, as the server names it; None loads the server's own
    again.
    """
    against: str | None = None
    """A server that was started with these weights."""


@dataclass
class Judged:
    """What a script showed."""

    model: str
    script: str
    findings: list[Finding] = field(default_factory=list)
    not_shown: list[str] = field(default_factory=list)
    """What did not happen, and so was not tested."""
    notes: list[str] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)
    """The growth of the server's counters over the script."""
    num_tokens: int = 0
    """Tokens that were compared."""
    num_answers: int = 0
    ties: list[str] = field(default_factory=list)
    drift: float = 0.0
    """The largest difference of a log probability, of those within the tolerance."""

    @property
    def has_prompt_in_text(self) -> bool:
        return any(finding.cause == Code.PROMPT_IN_TEXT for finding in self.findings)

    @property
    def is_wrong_in_tokens(self) -> bool:
        """Whether something is wrong beside the text of answers."""
        return any(finding.cause != Code.PROMPT_IN_TEXT for finding in self.findings)

    @property
    def verdict(self) -> Verdict:
        """`fail` with a finding, `skip` if something was not shown."""
        if self.findings:
            return Verdict.FAIL
        return Verdict.SKIP if self.not_shown or not self.num_tokens else Verdict.PASS

    @property
    def reason(self) -> str:
        if count := len(self.findings):
            return (
                f"{count} difference{'s' if count > 1 else ''}; first {self.findings[0].where}:"
                f" {self.findings[0].message}"
            )
        if self.not_shown or not self.num_tokens:
            return f"not shown: {self.not_shown[0] if self.not_shown else 'no token was compared'}"
        return (
            f"{self.num_tokens} tokens of {self.num_answers} answers compared, {len(self.ties)}"
            " ties"
        )

    def as_dict(self) -> dict[str, Any]:
        found = [f"{finding.where}: {finding.message}" for finding in self.findings]
        is_ok = self.verdict is Verdict.PASS
        return asdict(self) | {
            "ok": is_ok,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "findings": found,
        }

    def lines(self) -> list[str]:
        counts = ", ".join(f"{name} {count}" for name, count in self.events.items()) or "none"
        return [
            f"model: {self.model}",
            f"script {self.script}: {self.verdict.value}: {self.reason}",
            f"counters of the server: {counts}",
            *([acceptance_in_words([self.drafts])] if self.drafts.drafted else []),
            f"largest drift of a log probability: {self.drift:.4f} nats",
            *(f"different: {finding.where}: {finding.message}" for finding in self.findings),
            *(f"not shown: {what}" for what in self.not_shown),
            *(f"tie: {tie}" for tie in self.ties),
            *self.notes,
        ]

    @property
    def drafts(self) -> Drafts:
        drafted, accepted = (
            self.events.get(f"spec_decode_num_{kind}_tokens", 0) for kind in ("draft", "accepted")
        )
        return Drafts(drafted, accepted)

    def judge_drafts(self, least: float) -> None:
        """A finding if the server accepted less than the share `least`; not shown if it drafted
        nothing.
        """
        drafts = self.drafts
        if not drafts.drafted:
            self.not_shown.append("the server's /metrics count no drafts")
        elif not drafts.is_possible:
            self.not_shown.append("the server's /metrics count more accepted drafts than drafts")
        elif drafts.share < least:
            message = (
                f"{drafts.share:.4f} of {drafts.drafted} drafts were accepted, less than {least}"
            )
            self.findings.append(
                Finding(oracle="acceptance", where="script", message=message, cause=Code.DROP)
            )

    def result(self) -> CaseResult:
        name = f"{SCENARIO}[script={self.script},model={self.model}]"
        return CaseResult(
            key=name,
            id=name,
            scenario=SCENARIO,
            verdict=self.verdict,
            reason=self.reason,
            findings=tuple(self.findings),
            looked_at={ORACLE: self.num_tokens},
        )


def server_of(check: ScriptCheck, url: str = "") -> ScriptServer:
    """The server of a check, or one at another `url`, asked as the check says."""
    name = None if url else check.served_model
    return ScriptServer(
        url or check.url, served_model=name, timeout=check.timeout, page_size=check.page_size
    )


def check_script(
    check: ScriptCheck, references: dict[StepRequest, ServerReply] | None = None
) -> Judged:
    """Run a script. `references` are lone answers that are known, and gets those that are not.

    Raises InputError without a server or with a wrong script.
    """
    with ExitStack() as opened:
        server = opened.enter_context(closing(server_of(check)))
        other = check.against and opened.enter_context(closing(server_of(check, check.against)))
        judged = Judged(server.identity.model, check.script.name)
        try:
            _Runner(
                check, server, other or None, judged, {} if references is None else references
            ).run()
            if check.least_acceptance is not None:
                judged.judge_drafts(check.least_acceptance)
        except Refused as refusal:
            judged.not_shown.append(str(refusal))
    return judged


@dataclass
class _Runner:
    """One script on one server."""

    check: ScriptCheck
    server: ScriptServer
    other: ScriptServer | None
    judged: Judged
    references: dict[StepRequest, ServerReply]

    def __post_init__(self) -> None:
        self.counts = self.server.metrics()
        if self.counts.cache is None:
            raise Refused(
                "the server's /metrics do not say the pages of its cache; proofs and lengths need"
                " them: add --page-size 16"
            )
        self.pool: PagePool = self.counts.cache

    def run(self) -> None:
        """Ask every request alone, then take the steps."""
        try:
            steps = [
                (step, requests_of(self.check.script, step, self.pool))
                for step in self.check.script.steps
            ]
        except ValueError as error:
            raise Refused(str(error)) from None
        self._ask_alone([request for _, requests in steps for request in requests])
        for number, (step, requests) in enumerate(steps, 1):
            where = f"step {number}" + (f" ({step.name})" if step.name else "")
            if step.do:
                self._change(step)
                happened = {"slept": step.do == "sleep" and self.server.is_sleeping()}
            else:
                happened = self._ask(step, requests, where)
            missed = [event for event in step.proves if not happened[event]]
            self.judged.not_shown += [f"{where}: {_WORDS[event]}" for event in missed]
            if "hits" in missed and self.judged.events.get("prefix_cache_queries") == 0:
                self._note(CACHE_IS_OFF)

    def _ask_alone(self, requests: Sequence[StepRequest]) -> None:
        for server, weights in ((self.server, "own"), (self.other or self.server, "other")):
            # Only a server with the other weights knows these answers.
            if weights == "other" and self.check.weights and self.other is None:
                continue
            alone = {request.alone: None for request in requests if request.weights == weights}
            asked = [request for request in alone if request not in self.references]
            for request, (reply, scores) in zip(asked, server.ask_alone(asked), strict=True):
                if reply.error:
                    raise Refused(f"{request.label}, asked alone: {reply.error}")
                self.references[request] = reply
                if request.schema:
                    self._obeys(request, reply, ALONE)
                else:
                    self._score(request, reply, scores)
        after = self.server.metrics()
        if (after - self.counts).get("prefix_cache_hits", 0):
            raise Refused(
                "requests that ask for no cached page hit the prefix cache, so it cannot be"
                " switched off"
            )
        self.counts = after

    def _score(self, request: StepRequest, reply: ServerReply, scores: Scores | None) -> None:
        """Check an answer given alone: a prefill of prompt and answer must prefer the same
        tokens.
        """
        if scores is None:
            self._note("lone answers were not checked: the server scores no prompt")
        for place, (margin, best) in enumerate(scores or ()):
            # Prefill and decode are two kernels, whatever a batch may change.
            # Not `>`: a NaN is a difference too.
            if not margin <= 2 * max(self.check.tolerance, TOLERANCE):
                message = (
                    f"{_named(request)}, token {place}: asked alone it answers"
                    f" {reply.tokens[place]}, a prefill of prompt and answer prefers"
                    f" token_id:{best} by {margin:.3f} nats"
                )
                self.judged.findings.append(
                    Finding(oracle=ORACLE, where=ALONE, message=message, cause=Code.DIVERGED)
                )
                return

    def _obeys(self, request: StepRequest, reply: ServerReply, where: str) -> bool:
        """Check an answer against the schema of its request.

        A server may put the text of the prompt before an answer whose tokens are right. That is
        told once, and the tokens are compared all the same.
        """
        if request.obeyed_by(reply.text, len(reply.tokens)):
            return True
        before = request.text_before(reply.text, len(reply.tokens))
        if not before:
            message = f"{_named(request)}: {reply.text[:60]!r} does not obey the schema"
            self.judged.findings.append(
                Finding(oracle=ORACLE, where=where, message=message, cause=Code.OUTSIDE_SCHEMA)
            )
        elif not self.judged.has_prompt_in_text:
            message = (
                f"{_named(request)}: {len(before)} characters stand before the answer that obeys"
                f" the schema: {before[:60]!r}; a prompt that ends inside a character is given"
                f" back with the answer ({PROMPT_IN_TEXT})"
            )
            self.judged.findings.append(
                Finding(oracle=ORACLE, where=where, message=message, cause=Code.PROMPT_IN_TEXT)
            )
        return bool(before)

    def _note(self, note: str) -> None:
        self.judged.notes += [note] if note not in self.judged.notes else []

    def _change(self, step: ScriptStep) -> None:
        if step.do == "reload":
            path = self.check.weights
            if path and step.weights == "own":
                # Without a path the engine loads what it loaded last.
                path = self.server.checkpoint()
            body = {"method": "reload_weights", "kwargs": {"weights_path": path} if path else {}}
            self.server.change("/collective_rpc", json=body)
        elif step.do == "sleep":
            self.server.change("/sleep", params={"level": step.level})
        else:
            self.server.change(f"/{step.do}")

    def _ask(
        self, step: ScriptStep, requests: Sequence[StepRequest], where: str
    ) -> dict[str, bool]:
        """Ask, judge the answers, and say what happened meanwhile."""
        replies = self.server.ask(requests, together=step.together)
        after = self.server.metrics()
        grown = after - self.counts
        self.counts = after
        for name, count in grown.items():
            self.judged.events[name] = self.judged.events.get(name, 0) + count
        for request, reply in zip(requests, replies, strict=True):
            self._judge(request, reply, where)
        page = self.pool.page
        # The last token of a prompt is computed in any case, so a page that it fills is never a
        # hit.
        could_hit = sum((len(request.prompt) - 1) // page * page for request in requests)
        wanted = sum(request.max_tokens for request in requests)
        return {
            "hits": grown.get("prefix_cache_hits", 0) > 0,
            # Without the counter the event is not shown.
            "evicted": grown.get("prefix_cache_hits", could_hit) < could_hit,
            "preemptions": grown.get("num_preemptions", 0) > 0,
            "aborted": grown.get("generation_tokens", wanted) < wanted,
            "lengths": all(
                r.num_prompt_tokens == len(q.prompt) for q, r in zip(requests, replies, strict=True)
            ),
            "changed": not self.check.weights or self._differs_from_own(requests, replies),
        }

    def _differs_from_own(
        self, requests: Sequence[StepRequest], replies: Sequence[ServerReply]
    ) -> bool:
        own = [self.references.get(replace(request.alone, weights="own")) for request in requests]
        return any(
            a is not None and a.tokens != b.tokens for a, b in zip(own, replies, strict=True)
        )

    def _judge(self, request: StepRequest, reply: ServerReply, where: str) -> None:
        expected = self.references.get(request.alone)
        if expected is None:
            return self._note(
                "answers with other weights were not compared: name a server with them by --against"
            )

        def found(message: str, cause: Code = Code.DIFFERS) -> None:
            message = f"{_named(request)}{message}"
            self.judged.findings.append(
                Finding(oracle=ORACLE, where=where, message=message, cause=cause)
            )

        if reply.error:
            return found(f": no answer: {reply.error}", Code.UNANSWERED)
        self.judged.num_answers += 1
        if not self._obeys(request, reply, where):
            return None
        for place, (token, right) in enumerate(zip(reply.tokens, expected.tokens, strict=False)):
            self.judged.num_tokens += 1
            if token != right:
                top = expected.top[place]
                now = reply.top[place]
                gaps = [abs(now[name] - top[name]) for name in now.keys() & top.keys()]
                if request.schema and max(gaps, default=math.inf) <= self.check.tolerance:
                    # A schema can exclude all of the best. They are alike, so the answer says how
                    # likely its token is.
                    top = {token: reply.logprobs[place]} | top
                # A token beyond the best is at least as far away as the last of them.
                last = (
                    min(top.values()) if len(top) >= NUM_BEST and not request.schema else -math.inf
                )
                margin = expected.logprobs[place] - top.get(token, last)
                known = (
                    f"margin {margin:.3f} nats"
                    if token in top
                    else f"which is not among the best {len(top)}"
                )
                what = f", token {place}: {token} instead of {right}, {known}"
                if margin <= 2 * self.check.tolerance:
                    return self.judged.ties.append(f"{where}: {_named(request)}{what}")
                return found(what, Code.WRONG_TOKEN)
            drift = abs(reply.logprobs[place] - expected.logprobs[place])
            # Not `>`: a NaN is a difference too.
            if not drift <= self.check.tolerance:
                pair = f"{reply.logprobs[place]:.3f} instead of {expected.logprobs[place]:.3f}"
                return found(f", token {place}: {token} has log probability {pair}")
            self.judged.drift = max(self.judged.drift, drift)
        if request.abort_after is None and len(reply.tokens) != len(expected.tokens):
            found(
                f": {len(reply.tokens)} tokens instead of {len(expected.tokens)}", Code.MISCOUNTED
            )
        return None


def _named(request: StepRequest) -> str:
    stop = "" if request.abort_after is None else f", stream closed after {request.abort_after}"
    more = "".join(
        f", {name}"
        for name in (request.model, request.schema and f"schema {request.schema}")
        if name
    )
    return f"request {request.label} ({len(request.prompt)} tokens{stop}{more})"


_WORDS = {
    "hits": "no page came from the prefix cache",
    "evicted": "every page was still in the prefix cache",
    "preemptions": "no request was preempted",
    "aborted": "every stream was generated to its end",
    "lengths": "the server counts other prompt tokens than were sent",
    "slept": "the server does not say that it sleeps",
    "changed": "the answers are as with the server's own weights",
}
