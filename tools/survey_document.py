"""Write docs/survey.md from runs of `mla-harness survey`.

mla-harness survey vllm --out RUNS
python tools/survey_document.py RUN [RUN …] > docs/survey.md
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from markdown_page import brief, table

from harness.core.files import read_json_lines
from harness.core.records import CaseResult, Verdict

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


def section(run: Path) -> Iterator[str]:
    """Counts of one run, the engine's words on what it refused, and each combination that is not right."""
    plan = json.loads((run / "run.json").read_text(encoding="utf-8"))
    environment, num_planned = plan["environment"], len(plan["jobs"])
    results = [CaseResult.model_validate(line) for line in read_json_lines(run / "results.jsonl")]
    found = {result.id: outcome(result) for result in results}
    counts = Counter(found.values())
    engines = ", ".join(f"{name} {version}" for name, version in environment["engines"].items())
    yield f"## {engines}, {environment['gpus'][0]['name']}, torch {environment['torch']}"
    names = ("right", "wrong", "crash", "refused", "not judged")
    row = [num_planned, len(found), *(counts[name] for name in names)]
    yield table(("combinations", "ran", *names), [row])
    reasons = Counter(brief(result.reason, 170) for result in results if found[result.id] == "refused")
    if reasons:
        yield table(("refused", "the engine says"), [(number, reason) for reason, number in reasons.most_common()])
    bad = [result for result in results if found[result.id] in ("wrong", "crash")]
    if bad:
        yield table(("not right", "why"), [(f"`{result.id}`", brief(result.reason, 300)) for result in bad])


if __name__ == "__main__":
    print("\n\n".join([HEAD, *(part for run in sys.argv[1:] for part in section(Path(run)))]))
