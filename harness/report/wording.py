"""Text that is safe to print in a terminal, XML and HTML; sentences and commands that several
reports share.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from harness.core.fault_outcomes import CAUGHT, MISSED, WRONG_BLAME, declared_blame

if TYPE_CHECKING:
    from harness.core.records import (
        AccuracyRecord,
        Blame,
        CaseResult,
        EpochAccuracy,
        FaultResult,
        Shrunk,
    )

# XML 1.0 cannot hold these characters, not even escaped. A terminal obeys some of them.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
OPTION_FLAGS = {
    "device": "--device",
    "kernel": "--kernel",
    "scenarios": "--scenarios",
    "engine_path": "--engine-path",
}
EPOCHS = "epochs"
SERVE_CHECK = "serve-check"
"""The scenario, and the key of `run.json`, of a run of `mla-harness epochs`."""
OTHER_BLAME = "seen with another blame than declared"


def printable(text: str) -> str:
    """`text` with control characters, lone surrogates and direction overrides escaped; tabs and
    newlines stay.
    """
    return _UNPRINTABLE.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def one_line(text: str, limit: int = 400) -> str:
    """`text` on one printable line, cut at `limit` characters."""
    joined = " ".join(printable(text).split())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def num(count: int, noun: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ref_url(ref: str) -> str:
    """The address of `owner/name#number` on GitHub."""
    repository, _, number = ref.partition("#")
    return f"https://github.com/{repository}/issues/{number}"


def fault_word(outcome: str) -> str:
    """What became of an injected fault, or a verdict, as readers see it: caught, wrong blame,
    missed, not run.
    """
    return outcome.replace("-", " ")


def expected_of(fault: FaultResult) -> str:
    """What the scenario declares for an injected fault: ``answers or streams, blaming no site``."""
    declared = declared_blame(fault.expected_blame, fault.allowed_blame)
    return f"{' or '.join(fault.expected_by)}, blaming {declared}"


def fault_counts(faults: Sequence[FaultResult], num_planned: int | None = None) -> str:
    """``caught: 3 of 5, 1 seen with another blame than declared, 1 missed``; of `num_planned`, or
    of all `faults`.
    """
    count = Counter(fault.outcome for fault in faults)
    words = [f"caught: {count[CAUGHT]} of {len(faults) if num_planned is None else num_planned}"]
    words += [f"{count[WRONG_BLAME]} {OTHER_BLAME}"] if count[WRONG_BLAME] else []
    return ", ".join(words + ([f"{count[MISSED]} missed"] if count[MISSED] else []))


def fault_problems(faults: Sequence[FaultResult]) -> str:
    """``1 of 5 faults was missed, and 2 of 5 faults were seen with another blame than declared``;
    empty without any.
    """
    count = Counter(fault.outcome for fault in faults)
    total = num(len(faults), "fault")
    words = {MISSED: "missed", WRONG_BLAME: OTHER_BLAME}
    found = {outcome: said for outcome, said in words.items() if count[outcome]}
    return ", and ".join(
        f"{count[outcome]} of {total} {'was' if count[outcome] == 1 else 'were'} {said}"
        for outcome, said in found.items()
    )


def known_line(result: CaseResult) -> str:
    """A known failure on one line: the issue, the engine with the versions that have it, and the
    case.
    """
    entry = result.known
    known = f"{entry.issue} in {entry.where}: " if entry else ""
    return known + one_line(result.id, 200)


def accuracy_title(record: AccuracyRecord) -> str:
    """What was measured: task, model, engine and dtype, and the injected fault."""
    fault = f", with fault {record.fault}" if record.fault else ""
    return f"accuracy of {record.task} on {record.model} ({record.engine}, {record.dtype}{fault})"


def model_sentence(record: AccuracyRecord) -> str:
    """The note of the model.

    A canary's must stand wherever its accuracy does: it measures inference, not ability.
    """
    return (
        f"{record.model} is {record.note}." if record.note.startswith("a canary") else record.note
    )


def interval_text(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.4f} to {interval[1]:.4f}"


def describe_faulty(epoch: EpochAccuracy) -> str:
    """`3 unanswered (HTTP 500: 3), 1 empty`, or nothing when each answer could be used."""
    reasons = "; ".join(f"{reason}: {count}" for reason, count in epoch.unanswered_reasons.items())
    counts = {
        "unanswered" + (f" ({reasons})" if reasons else ""): epoch.unanswered,
        "empty": epoch.empty,
        "not parsed": epoch.unparsed,
        "with invalid tokens": epoch.invalid_tokens,
        "retried": epoch.retried,
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def outcome_line(shrunk: Shrunk) -> str:
    """How the search ended: ``18 steps, 89 trials, 5.4 s; no smaller case fails alike``."""
    end = (
        "no smaller case fails alike"
        if shrunk.is_smallest
        else "the time was up; a smaller one may exist"
    )
    return (
        f"{num(len(shrunk.steps), 'step')}, {num(shrunk.num_trials, 'trial')}, {shrunk.seconds:.1f}"
        f" s; {end}"
    )


def blamed(blame: Blame) -> str:
    """The memory to blame with how it was found; without such memory, why there is none."""
    how = one_line(blame.how)
    return f"{', '.join(blame.sites)} ({how})" if blame.sites else how


def first_nan_lines(blame: Blame | None) -> list[str]:
    """The writer of the first NaN and the first reader of the memory to blame, a line each.

    Empty without a search.
    """
    found = blame.first_nan if blame else None
    if found is None:
        return []
    lines = [f"first writer: {one_line(found.statement, 400)}"]
    lines += [f"other rank: {one_line(report, 400)}" for report in found.other_ranks]
    if found.stage:
        lines.append(f"first wrong stage: {one_line(found.stage, 300)}")
    if found.reader:
        place = f" ({one_line(found.reader_at)})" if found.reader_at else ""
        lines.append(
            f"first reader: {one_line(found.reader, 200)}{place} of {', '.join(found.sites)}"
        )
    return lines


def reproduce(result: CaseResult, options: dict[str, Any]) -> str:
    """`mla-harness run ID` with all that decides the outcome: fault, kernel, plug-ins, seed,
    device.
    """
    if result.scenario in (EPOCHS, SERVE_CHECK) and result.scenario in options:
        baseline = {"baseline": options.get("baseline")}
        return _questions_command(result.scenario, options[result.scenario] | baseline)
    return reproduce_case(result.id, result.fault, options)


def reproduce_case(case_id: str, fault: str | None, options: dict[str, Any]) -> str:
    """`mla-harness run ID` for a case without a result, such as the smallest failing one."""
    return _command("run", case_id, options, OPTION_FLAGS, *(("--fault", fault) if fault else ()))


def _questions_command(command: str, questions: dict[str, Any]) -> str:
    words = ["mla-harness", command, *filter(None, [questions.get("url")])]
    settings = {
        name: value for name, value in questions.items() if name != "options"
    } | questions.get("options", {})
    for name, value in settings.items():
        # `--repeat` takes no 0, and an option without a value is said by its presence alone.
        if value is None or value is False or name == "url" or (name, value) == ("repeat", 0):
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return printable(shlex.join(words))


def show(case_id: str, options: dict[str, Any]) -> str:
    """`mla-harness show ID` with the options that decide which case the id names."""
    return _command("show", case_id, options, ("kernel", "scenarios"))


def _command(
    command: str, case_id: str, options: dict[str, Any], named: Iterable[str], *more: str
) -> str:
    """A command on a case, with those of the `named` options that were given, the plug-ins and the
    seed.
    """
    words = ["mla-harness", command, case_id]
    for name in named:
        value = options.get(name)
        if value and (name, value) != ("device", "auto"):
            words += _repeated(OPTION_FLAGS[name], value)
    words += _repeated("--plugin", options.get("plugins", []))
    words += ["--seed", str(options["seed"])] if options.get("seed") else []
    return printable(shlex.join([*words, *more]))


def _repeated(flag: str, value: object) -> list[str]:
    """The option with its value, or once with each value of a list."""
    return [
        word for one in (value if isinstance(value, list) else [value]) for word in (flag, str(one))
    ]
