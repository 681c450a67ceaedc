"""One trial change: its patch, the files that it touches, and a trial in a copy of the checkout.

A patch `trust/changes/NAME.patch` is what `git diff` printed of a whole, working change. In front of
it stands a head in YAML:

- `what`: the change in one line.
- `before`: the files that such a change touched when the harness was ordered by layer.
- `shows`: the command that ends with exit code 0 because the change works.
- `wrong`: a text of a `file`, `old`, that becomes `new`. The change is then wrong, and the command
  must end with exit code 1.
- `pages_of_a_run`: pages of docs/ that have to be written again from a run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent
FIRST_LINE = "diff --git "
"""How the diff begins behind the head of a patch."""
CODE_PAGES = ("ops", "reference", "scenario-keys")
"""The pages of docs/ that `tools/pages.py` writes from the code."""
LEFT_OUT = (".git", ".tox", ".venv", "venv", "site", "runs", "__pycache__", "*_cache", "*.egg-info")
"""What a copy of the checkout does not have."""
PATIENT = ("-n", "1", "--timeout", "86400")
"""Options of each `mla-harness` command: a busy machine may be as slow as it likes."""


class DoesNotApply(Exception):
    """A patch that does not fit the checkout. The message is one line, with the file."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """The text `old` of a file that becomes `new`, so that the change is wrong."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Change:
    """The head of a patch, and the files that its diff makes or edits."""

    patch: Path
    what: str
    before: int
    shows: str
    wrong: Wrong
    pages_of_a_run: tuple[str, ...]
    made: tuple[str, ...]
    edited: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.patch.stem


def read(patch: Path) -> Change:
    """The change of a patch. Raises DoesNotApply for a head that is not complete."""
    head, mark, diff = patch.read_text(encoding="utf-8").partition(FIRST_LINE)
    try:
        given = yaml.safe_load(head)
        made, edited = files_of(mark + diff)
        return Change(
            patch=patch,
            what=given["what"],
            before=given["before"],
            shows=given["shows"],
            wrong=Wrong(**given["wrong"]),
            pages_of_a_run=tuple(given.get("pages_of_a_run", ())),
            made=made,
            edited=edited,
        )
    except (yaml.YAMLError, KeyError, TypeError) as error:
        reason = str(error).replace("\n", " ")
        raise DoesNotApply(f"{patch.name}: the head is not complete: {reason}") from None


def changes() -> dict[str, Change]:
    """Every trial change, by its name."""
    return {patch.stem: read(patch) for patch in sorted(FOLDER.glob("*.patch"))}


def files_of(diff: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files that a diff of git makes, and those that it edits. A file that it removes counts as
    edited.
    """
    made, edited = list[str](), list[str]()
    for part in diff.split(f"\n{FIRST_LINE}"):
        words, _, rest = part.removeprefix(FIRST_LINE).partition("\n")
        name = words.rpartition(" b/")[2]
        (made if rest.startswith("new file mode") else edited).append(name)
    return tuple(made), tuple(edited)


def why_not_applied(change: Change, root: Path) -> str:
    """Why a patch does not fit the checkout at `root`, in one line; empty if it does."""
    done = _git_apply(root, "--check", str(change.patch))
    if done.returncode == 0:
        return ""
    # git prints the place first: "error: patch failed: FILE:LINE", "error: FILE: already exists".
    reason = (done.stderr.strip().splitlines() or ["git said nothing"])[0].removeprefix("error: ")
    return f"{change.patch.name} does not apply: {reason}; make the change again and keep its diff"


def apply(change: Change, root: Path) -> None:
    """Make the change in the checkout at `root`. Raises DoesNotApply, and changes nothing then."""
    if reason := why_not_applied(change, root):
        raise DoesNotApply(reason)
    _git_apply(root, str(change.patch)).check_returncode()


def _git_apply(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # Within another repository git would leave out, without a word, what lies outside of it.
    environ = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    return subprocess.run(
        ["git", "apply", *words], cwd=root, env=environ, capture_output=True, text=True, check=False
    )


def make_wrong(wrong: Wrong, root: Path) -> None:
    """Plant the error. Raises DoesNotApply unless the file has the old text exactly once."""
    file = root / wrong.file
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text.count(wrong.old) != 1:
        raise DoesNotApply(
            f"{wrong.file} has {wrong.old!r} {text.count(wrong.old)} times, where the error is"
            " planted; mend `wrong` in the head of the patch"
        )
    file.write_text(text.replace(wrong.old, wrong.new), encoding="utf-8")


@contextmanager
def copy_of_checkout() -> Iterator[Path]:
    """A folder with the files of this checkout, which is gone behind the block."""
    with TemporaryDirectory(prefix="change-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        yield copy


def run(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout at `root`, with the code of that checkout."""
    words = shlex.split(command)
    if words[0] == "mla-harness":
        words = ["python", "-m", "harness.cli.main", *words[1:], *PATIENT]
    words[0] = sys.executable
    # An editable installation would put the code of this checkout in front of the copy's.
    path = [root, root / "poison", *sorted(root.glob("adapters/*/"))]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        words,
        cwd=root,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def code_pages(root: Path) -> dict[str, str]:
    """The pages that the code of the checkout at `root` gives, by their names."""
    return {name: run(f"python tools/pages.py {name}", root).stdout for name in CODE_PAGES}


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one trial change."""

    change: Change
    pages: tuple[str, ...] = ()
    """The pages of docs/ that have to be written again."""
    does_not_apply: str = ""
    """Why the patch does not fit, in one line; empty if it does."""
    code: int = 0
    """The exit code of the command that shows that the change works."""
    last_line: str = ""
    """The last line that it printed."""
    wrong_code: int = 1
    """The exit code of the same command once the change is wrong."""

    @property
    def works(self) -> bool:
        return not self.does_not_apply and self.code == 0

    @property
    def is_red_when_wrong(self) -> bool:
        return not self.does_not_apply and self.wrong_code == 1

    @property
    def is_good(self) -> bool:
        return self.works and self.is_red_when_wrong


def tried(change: Change, pages_before: dict[str, str]) -> Trial:
    """Make the change in a copy, look at what it needs, show that it works, and that it is judged.

    `pages_before` are the `code_pages` of the checkout without the change.
    """
    with copy_of_checkout() as root:
        try:
            apply(change, root)
            pages = code_pages(root)
            stale = [f"docs/{name}.md" for name in CODE_PAGES if pages[name] != pages_before[name]]
            done = run(change.shows, root)
            make_wrong(change.wrong, root)
        except DoesNotApply as error:
            return Trial(change, does_not_apply=str(error))
        lines = (done.stdout + done.stderr).strip().splitlines()
        return Trial(
            change,
            pages=(*stale, *change.pages_of_a_run),
            code=done.returncode,
            last_line=lines[-1] if lines else "",
            wrong_code=run(change.shows, root).returncode,
        )
