"""A finding as a report for an engine's maintainers: the issue's text, the script, and what the script printed.

The folder of a report may hold `notes.yaml`: what a person knows and no run shows. Its words go into the text.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from harness.core.files import FIXTURES, write_atomic
from harness.core.params import Record
from harness.core.registry import attribute_at
from harness.diagnose.script.export import Exported
from harness.report.wording import one_line, printable, ref_url
from harness.scenario.load import load_record

NOTES, ISSUE, SCRIPT, OUTPUT = "notes.yaml", "issue.md", "script.py", "output.txt"
MODEL = "The model is a canary of this project, trained for such checks: it is small, and every token of it matters."


class Notes(Record):
    """What a person adds to a report. What is empty is left out of the text."""

    title: str | None = Field(default=None, description="the issue's title")
    cause: str | None = Field(default=None, description="the lines that are wrong, and why")
    fix: str | None = Field(default=None, description="the suggested fix")
    tests: str | None = Field(default=None, description="the engine's own tests that come nearest, and why they pass")


def read_notes(folder: Path) -> Notes:
    """The notes in the folder of a report. Without a file, an empty one is made to be filled in.

    Raises InputError for a file with other keys.
    """
    path = folder / NOTES
    if not path.exists():
        lines = [f"{name}:  # {field.description}" for name, field in Notes.model_fields.items()]
        write_atomic(path, "\n".join(lines) + "\n")
    return load_record(path, Notes)[0]


def write_report(folder: Path, exported: Exported, notes: Notes, command: str) -> None:
    """Write the script, its output and the issue's text into `folder`. `command` runs the case with this project."""
    write_atomic(folder / SCRIPT, exported.text)
    write_atomic(folder / OUTPUT, _output(exported))
    write_atomic(folder / ISSUE, issue_text(exported, notes, command))


def issue_text(exported: Exported, notes: Notes, command: str) -> str:
    """The issue in Markdown: what, versions, commands, expected and seen, cause, fix, and why tests miss it."""
    case, story, check = exported.case, exported.story, exported.check
    path = case.kind.serve_command
    steps = [
        f"Run [{SCRIPT}]({SCRIPT}), which needs nothing of the harness that found this:",
        _code(f"python {SCRIPT}"),
    ]
    if path:
        steps = [
            f"{MODEL} Run [{SCRIPT}]({SCRIPT}) beside its folder:",
            _code(
                f"git clone https://github.com/mla-harness/mla-harness\nFIXTURES=mla-harness/fixtures python {SCRIPT}"
            ),
            "A server with the same options is wrong too:",
            _code(str(attribute_at(path)(case)).replace(str(FIXTURES), "mla-harness/fixtures")),
        ]
    parts = [
        f"# {notes.title or story.title}",
        one_line(story.finding or story.title),
        " ".join(ref_url(ref) for ref in story.refs),
        f"Seen with {story.versions}.",
        "## Steps",
        *steps,
        "## Expected",
        "The script passes, as it does without its line marked `BUG`.",
        _code(check.without_bug.printed),
        "## Seen",
        _code(check.with_bug.printed),
    ]
    for title, text in (("Cause", notes.cause), ("Suggested fix", notes.fix), ("Why no test fails", notes.tests)):
        parts += [f"## {title}", text.strip()] if text else []
    parts += [f"Found with `{command}`."]
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _output(exported: Exported) -> str:
    """What the script printed as it is, and without its marked line."""
    check = exported.check
    runs = (("as it is", check.with_bug), ("without the line marked BUG", check.without_bug))
    return "\n".join(f"{SCRIPT}, {how}: exit status {run.status}\n{printable(run.printed)}" for how, run in runs)


def _code(text: str) -> str:
    """A block of code; four backticks, so that no line of `text` ends it."""
    return f"````\n{printable(text).strip()}\n````" if text.strip() else ""
