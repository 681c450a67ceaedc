"""Write docs/survey.md from runs of `mla-harness survey`.

mla-harness survey vllm --out RUNS
python tools/survey_document.py RUN [RUN …] [--again RUN] > docs/survey.md

`--again` names runs of combinations that were not right, by `mla-harness run ID…`: the last column shows their results.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from markdown_page import brief, table

from harness.core.files import FIXTURES
from harness.core.records import CaseResult, Verdict
from harness.diagnose.options import by_symptom, is_failure, suspected
from harness.report.survey import command_of
from harness.scenario.schema import Given
from harness.scenario.variant import vary
from harness.store.run_folder import RunStore

HEAD = """# Options that users switch on, as released

Written by `python tools/survey_document.py` from runs of `mla-harness survey`; nothing here is typed by hand. A
combination is a row of a covering array: each three options of [the scenario](scenario-keys.md) occur together in one.
Nothing is filled or injected. A combination is right if at least 97 % of the answers are in each epoch, with no invalid
token. An array changes with its scenario, so two runs may have other rows."""
LEAST = 0.97


def outcome(result: CaseResult) -> str:
    """What became of a combination. A name too long for a file, or an oracle without work, says nothing of the engine."""
    if result.accuracy is None:
        words = {Verdict.SKIP: "refused", Verdict.CRASH: "crash"}
        return words.get(result.verdict, "not judged")
    right = all(epoch.accuracy >= LEAST and not epoch.invalid_tokens for epoch in result.accuracy.epochs)
    return "right" if right else "wrong"


def seen(result: CaseResult) -> str:
    epochs = result.accuracy.epochs if result.accuracy else ()
    return ", ".join([outcome(result), *(f"{epoch.accuracy:.4f}" for epoch in epochs)])


def suspects(store: RunStore, results: list[CaseResult], tried: list[Given]) -> Iterator[str]:
    """The options that all failures of a kind share and no right combination has, if no trials found them already."""
    jobs = store.jobs_by_key()
    plain = next(iter(jobs.values())).case
    right = [jobs[result.key].case.params for result in results if result.verdict is Verdict.PASS]
    for words, alike in by_symptom((jobs[result.key], result) for result in results if is_failure(result)).items():
        if (found := suspected(alike, right)) and found not in tried:
            kind = ", ".join(filter(None, words))
            yield f"{len(alike)} combinations with {shown(found)} fail alike ({kind}), and no right one has these options:"
            smallest = vary(plain, plain.params.model_copy(update=found), plain.poison)
            yield as_block(command_of(smallest))


def shown(options: Given) -> str:
    return " ".join(f"`{name}={value}`" for name, value in options.items()) or "plain options"


def as_block(command: str) -> str:
    """A command, from any checkout."""
    return "    " + re.sub(rf"\S*/{FIXTURES.name}/", f"{FIXTURES.name}/", command)


def section(run: Path, again: dict[str, CaseResult]) -> Iterator[str]:
    """Counts, the engine's words on what it refused, the sets of options that fail, and what is not right."""
    store = RunStore.open(run)
    environment, num_planned = store.plan.environment, len(store.plan.jobs)
    results = list(store.finished().values())
    found = {result.id: outcome(result) for result in results}
    counts = Counter(found.values())
    engines = ", ".join(f"{name} {version}" for name, version in environment["engines"].items())
    yield f"## {engines}, {environment['gpus'][0]['name']}, torch {environment['torch']}"
    names = ("right", "wrong", "crash", "refused", "not judged")
    row = [num_planned, len(found), *(counts[name] for name in names)]
    yield table(("combinations", "ran", *names), [row])
    seconds = sorted(result.seconds for result in results if result.accuracy is not None)
    if seconds:
        middle, last = seconds[len(seconds) // 2], seconds[-1]
        yield f"Seconds of a combination that gave answers, others beside it: median {middle:.0f}, at most {last:.0f}."
    reasons = Counter(brief(result.reason, 170) for result in results if found[result.id] == "refused")
    if reasons:
        yield table(("refused", "the engine says"), [(number, reason) for reason, number in reasons.most_common()])
    sets = run / "survey.json"
    reduced = json.loads(sets.read_text(encoding="utf-8")) if sets.exists() else []
    for one in reduced:
        smallest = "" if one["is_smallest"] else " (perhaps fewer: the time was up)"
        yield f"{len(one['combinations'])} not right with {shown(one['options'])}{smallest}, after {one['trials']} trials:"
        yield as_block(one["command"])
    bad = [result for result in results if found[result.id] in ("wrong", "crash")]
    yield from suspects(store, results, [one["options"] for one in reduced])
    if bad:
        rows = [
            (f"`{one.id}`", seen(one), seen(again[one.id]) if one.id in again else "", brief(one.reason, 200))
            for one in bad
        ]
        yield table(("not right", "seen", "seen again", "why"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--again", type=Path, action="append", default=[], metavar="RUN")
    given = parser.parse_args()
    again = {result.id: result for run in given.again for result in RunStore.open(run).finished().values()}
    print("\n\n".join([HEAD, *(part for run in given.runs for part in section(run, again))]))


if __name__ == "__main__":
    main()
