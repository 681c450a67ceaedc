"""Calls with a corrupted argument, and oracle `rejects`: such a call is right, or ends in an error
that names the argument.

A result that agrees with the reference is right, if the op defines one. Any other result is silent
garbage. An error is clear if it has a name of the argument: the caller must know what to mend.
Where neither the contract of the op nor the kernel promises anything, a failure is a remark
(flashinfer-ai/flashinfer#3605).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from harness.core.cause_codes import Code
from harness.core.corruptions import Corruption, corruptions_named
from harness.core.errors import Refused, SystemUnderTestError
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.core.params import KernelParams
from harness.evidence.observed import finite, reference
from harness.evidence.records import Evidence, Judgement, Run
from harness.evidence.sentinel import sentinel

MOST_WORDS = 300
"""Characters of an error that a report shows. The name of the argument must be among them."""
ADVICE = 'a kernel that declares checks="arguments" or checks="values" is judged by such calls too'
_NO_ERRORS = {Code.DEVICE: Code.FAULT, Code.BAD_OUTPUT: Code.SILENT_GARBAGE}
_RIGHT = (Code.CORRECT, Code.CLEAN_ERROR)
_SILENT: tuple[Callable[[Evidence], Judgement], ...] = (reference, finite, sentinel)


@dataclass(slots=True)
class CorruptedCall:
    """A call with a corrupted argument: its error, or what was `seen` of its result.

    Unless the call `is_judged`, neither the contract nor the kernel promises anything for it.
    """

    corruption: Corruption
    is_judged: bool
    seen: Run
    error: SystemUnderTestError | Refused | None = None

    @property
    def has_fault(self) -> bool:
        """Whether the device failed, so that no other call can be made."""
        return isinstance(self.error, SystemUnderTestError) and self.error.cause is Code.DEVICE

    @property
    def crash(self) -> SystemUnderTestError | None:
        """The failure of the device, if the call is judged."""
        is_crash = self.has_fault and self.is_judged
        return self.error if is_crash and isinstance(self.error, SystemUnderTestError) else None


def rejects(evidence: Evidence) -> Judgement:
    """Look at what each call with a corrupted argument came to."""
    judgement = Judgement()
    counts = Counter[str]()
    num_undefined = 0
    calls = evidence.all(CorruptedCall)
    for call, pattern in calls:
        cause, sentence = _came_to(evidence, call)
        counts[cause] += 1
        if cause not in _RIGHT and call.is_judged:
            judgement.findings.append(
                Finding(
                    oracle="rejects",
                    tensor=call.corruption.argument,
                    cause=cause,
                    message=f"{sentence} (pattern {pattern})",
                    kernel=evidence.case.kernels()["kernel"],
                )
            )
        elif cause not in _RIGHT:
            judgement.notes.append(f"undefined by contract, {cause}: {sentence}")
            num_undefined += 1
        # A case of one call says in a sentence what it came to. Of many calls only the numbers are
        # told.
        elif len(calls) == 1:
            judgement.notes.append(sentence)
        if cause not in _RIGHT or not judgement.cause:
            judgement.cause = cause
    judgement.looked_at = len(calls)
    if num_undefined and evidence.case.has_plugin:
        judgement.notes.append(ADVICE)
    if len(calls) > 1:
        judgement.notes.insert(0, ", ".join(f"{count} {cause}" for cause, count in counts.items()))
        made = {call.corruption.name for call, _ in calls}
        named = corruptions_named(
            evidence.case.op or "", evidence.case.params_as(KernelParams).corrupt
        )
        if left_out := [one.name for one in named if one.name not in made]:
            judgement.notes.insert(1, f"left out: {', '.join(left_out)}")
    return judgement


def _came_to(evidence: Evidence, call: CorruptedCall) -> tuple[Code, str]:
    """What a call came to, and a sentence about it."""
    name = f"{call.corruption.argument} ({call.corruption.name})"
    error = call.error
    if error is None:
        if not call.corruption.right:
            return Code.SILENT_GARBAGE, f"{name}: a result where none is right"
        seen = Evidence(evidence.case, [call.seen])
        wrong = next((finding for oracle in _SILENT for finding in oracle(seen).findings), None)
        if wrong is None:
            return Code.CORRECT, f"{name}: right"
        # The pattern is said once, behind the whole sentence.
        return (
            Code.SILENT_GARBAGE,
            f"{name}: {wrong.message.replace(f' (pattern {call.seen.pattern})', '')}",
        )
    words = " ".join(str(error.__cause__ or error).split())[:MOST_WORDS]
    sentence = f"{name}: {type(error.__cause__ or error).__name__}, {words}"
    if isinstance(error, SystemUnderTestError) and error.cause in _NO_ERRORS:
        return _NO_ERRORS[error.cause], sentence
    # As a whole word: the letter of an argument such as `q` stands in many sentences.
    is_clear = any(re.search(rf"\b{re.escape(word)}\b", words) for word in call.corruption.names)
    return Code.CLEAN_ERROR if is_clear else Code.UNCLEAR_ERROR, sentence


ORACLES = (
    OracleSpec(
        "rejects",
        "a call with a corrupted argument is right, or raises an error that names the argument",
        rejects,
        rank=30,
    ),
)
