"""`python -m trust.changes [--write] [NAME]...`: make each trial change in a copy of the checkout,
and print how many files it touches.

`--write` puts the table into docs/data/changes.md. Exit code 1 if a patch does not apply, if a
change does not work, or if nothing sees that it is wrong; 2 for an unknown name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trust.changes.trials import ROOT, DoesNotApply, Trial, changes, code_pages, tried

PAGE = ROOT / "docs" / "data" / "changes.md"
HEAD = """# Trial changes

Written by `python -m trust.changes --write`. Each row is a change that a stranger makes, kept as a patch in
`trust/changes/`. The program makes it in a copy of the checkout. *Files before* is the count for such a change when the
harness was ordered by layer, at commit dd4e0b01; it is not counted again here. *Pages* are pages of tables that a tool
writes again; those that need a run are named by the patch. *Works*: the command of the patch ends with exit code 0.
*Red when wrong*: an error is planted in the change or beside it, and the same command ends with exit code 1. TinyServe
and what vLLM 0.34.0 changes are made up.

"""
COLUMNS = (
    "change",
    "what",
    "files before",
    "new files",
    "edited files",
    "pages",
    "applies",
    "works",
    "red when wrong",
)


def row(trial: Trial) -> str:
    """The line of a table for a trial."""
    change = trial.change
    cells = [
        f"`{change.name}`",
        change.what,
        change.before,
        len(change.made),
        len(change.edited),
        len(trial.pages),
        "NO" if trial.does_not_apply else "yes",
        "yes" if trial.works else "NO",
        "yes" if trial.is_red_when_wrong else "NO",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def problem(trial: Trial) -> str:
    """What is wrong with a trial, in one line; empty if it is good."""
    if trial.does_not_apply:
        return trial.does_not_apply
    name, shows = trial.change.name, trial.change.shows
    if not trial.works:
        return f"{name} does not work: `{shows}` ended with {trial.code}: {trial.last_line}"
    if not trial.is_red_when_wrong:
        return f"{name} is not judged: with an error `{shows}` ended with {trial.wrong_code}, not 1"
    return ""


def main(names: list[str], page: Path | None) -> int:
    """Print a row for each change. Returns the exit code."""
    try:
        known = changes()
    except DoesNotApply as error:
        print(f"changes: {error}", file=sys.stderr)
        return 1
    for name in names:
        if name not in known:
            print(
                f"changes: unknown change {name!r}; there are {', '.join(known)}", file=sys.stderr
            )
            return 2
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    print("\n".join(lines), flush=True)
    pages_before = code_pages(ROOT)
    trials = []
    for name in names or known:
        trials.append(tried(known[name], pages_before))
        lines.append(row(trials[-1]))
        print(lines[-1], flush=True)
    problems = [found for trial in trials if (found := problem(trial))]
    print("\n".join([f"{len(trials)} changes, {len(problems)} bad", *problems]))
    if page:
        page.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m trust.changes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true", help="write docs/data/changes.md")
    given = parser.parse_args()
    if given.write and given.names:
        parser.error("--write takes no NAME: the page has every change")
    sys.exit(main(given.names, PAGE if given.write else None))
