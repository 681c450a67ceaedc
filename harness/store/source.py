"""The state of the code that a run judged: git commit, branch, and whether something was not
committed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from harness.core.errors import InputError
from harness.core.params import Record
from harness.core.stored import opened

# It ends a hang. On a busy machine git takes seconds.
GIT_SECONDS = 60.0
MAX_HASHED_BYTES = 4 << 20
"""Larger files that git does not know count by size and time alone."""
MOST_FILES = 200
"""Changed files that are stored by name. All of them are in the digest."""
SHORT = 7
RUN_FILES = ("run.json", "summary.json")
"""A folder with one of them is one of a run: the whole of it, or what a cache keeps of it.

Its files are no code.
"""
_RUN = re.compile(rb'\A\{\s*"schema_version": \d+,\s*"run_id": "')
"""How these files begin."""
# Nor is what Python writes, or what lies where runs are by default.
_OURS = re.compile(r"/reports/runs/|/__pycache__/")
NEW = "new"
SUBMODULE = "160000"
"""In place of git's mode of a file: git does not know it. And git's mode of a submodule."""
# A repository may name programs of its own for diffs and for watching files; none of them is
# started.
UNTOUCHED = ("--no-ext-diff", "--no-textconv")
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")


class Source(Record):
    """Which code was under test; empty strings where that is not known."""

    commit: str = ""
    branch: str = ""
    changes: str = ""
    """A digest of what was not committed, or empty when nothing was; equal digests mean equal code.
    """
    files: dict[str, str] = Field(default={})
    """The changed files by their paths in the repository, each with a digest; of many the first."""

    @property
    def short_commit(self) -> str:
        """The commit in seven digits, with a `+` when something was not committed; empty when not
        known.
        """
        return self.commit[:SHORT] + ("+" if self.commit and self.changes else "")

    @property
    def words(self) -> str:
        return " ".join(filter(None, [self.branch, self.short_commit]))

    def in_full(self, commit: str) -> str:
        """`1a2b3c4 on main, with changes that are not committed`, as far as known; `commit` is as
        it shall be shown.
        """
        place = " ".join(filter(None, [commit, self.branch and f"on {self.branch}"]))
        return place + (", with changes that are not committed" if place and self.changes else "")

    def continued(self, now: Source) -> Source:
        """The source of a resumed run.

        After a change of the code, its results belong to neither state.
        """
        if (now.commit, now.changes) == (self.commit, self.changes):
            return self
        return self.but(files={}, changes=f"resumed at {now.commit} {now.changes}".strip())


def read_source(
    folder: Path, environ: Mapping[str, str], *, commit: str = "", branch: str = ""
) -> Source:
    """The state of the git repository that holds `folder`; `commit` and `branch` overrule git.

    Without git, a repository or a branch (CI checks out none), the variables of GitHub's runners
    count. Never raises.
    """
    found = _git(folder, "rev-parse", "HEAD") or environ.get("GITHUB_SHA", "")
    on_branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD")
    on_branch = (
        on_branch or environ.get("GITHUB_HEAD_REF", "") or environ.get("GITHUB_REF_NAME", "")
    )
    # A commit that the user named is of code that may not be in this repository.
    files = _changed_files(folder) if found and not commit else {}
    digest = hashlib.sha256(
        "".join(f"{name}\0{content}\0" for name, content in sorted(files.items())).encode()
    )
    return Source(
        commit=commit or found,
        branch=branch or on_branch,
        changes=digest.hexdigest()[:16] if files else "",
        files=dict(sorted(files.items())[:MOST_FILES]),
    )


def differences(one: Source, other: Source) -> list[str]:
    """What tells two states of the code apart: the commit, or the files that differ, as far as they
    are stored.
    """
    if one.commit != other.commit:
        return [f"commit {one.short_commit or 'unknown'} and {other.short_commit or 'unknown'}"]
    return sorted(
        name for name in {*one.files, *other.files} if one.files.get(name) != other.files.get(name)
    )


def _changed_files(folder: Path) -> dict[str, str]:
    """Each file that differs from the commit, new ones included, with a digest of its mode and
    content.

    The files in folders of runs are none, whatever these folders are called: a run that is stored,
    or a report that is written again, changes no code.
    """
    root = _git(folder, "rev-parse", "--show-toplevel")
    # A renamed file would have two paths behind one description.
    changed = _git(folder, "diff", "HEAD", "--raw", "-z", "--no-renames", *UNTOUCHED)
    if not root or changed is None:
        return {}
    top = Path(root)
    # At the top: it lists only what is below its folder, and names it from there.
    new = _git(top, "ls-files", "--others", "--exclude-standard", "-z") or ""
    # `:100644 100755 1a2b3c4 0000000 M` and a path, in turn.
    described = changed.split("\0")[:-1:2]
    paths = changed.split("\0")[1::2]
    modes = {path: words.split()[1] for words, path in zip(described, paths, strict=True)}
    modes |= {path: NEW for path in new.split("\0") if path}
    runs = {place for path in modes for place in (top / path).parents if place != top}
    runs = {place for place in runs if _is_run(place)}
    return {
        path: hashlib.sha256(mode.encode() + b"\0" + _content(top / path, mode)).hexdigest()[:16]
        for path, mode in modes.items()
        if not _OURS.search(f"/{path}") and runs.isdisjoint((top / path).parents)
    }


def _is_run(folder: Path) -> bool:
    """Whether a folder is one of a run, also one that is written at this moment."""
    for name in RUN_FILES:
        with contextlib.suppress(InputError, OSError), opened(folder / name) as stream:
            if _RUN.match(stream.read(200)):
                return True
    # A run that begins: `write_atomic` gives its temporary file such a name.
    return any(folder.glob(f".{RUN_FILES[0]}.*"))


def _content(path: Path, mode: str) -> bytes:
    """What stands for the content of a file: a digest, or for a large file that git does not know
    its size and time.
    """
    if mode == SUBMODULE:
        return (
            f"{_git(path, 'rev-parse', 'HEAD')} {_git(path, 'diff', 'HEAD', *UNTOUCHED)}".encode()
        )
    try:
        if path.is_symlink():
            # As git stores a link: what it names, not what is there.
            return os.readlink(path).encode(errors="surrogateescape")
        facts = path.stat()
        if stat.S_ISREG(facts.st_mode) and (mode != NEW or facts.st_size <= MAX_HASHED_BYTES):
            with path.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").digest()
        return f"{facts.st_size} {facts.st_mtime_ns}".encode()
    except OSError:
        return b"gone"


def _git(folder: Path, *words: str) -> str | None:
    """The output of git, or None when it fails, hangs or is missing."""
    try:
        command = [*GIT, "-C", str(folder), *words]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip("\n") if done.returncode == 0 else None
