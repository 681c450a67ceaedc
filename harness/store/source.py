"""The state of the code that a run judged: git commit, branch, and whether something was not committed."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.core.params import Record

GIT_SECONDS = 60.0
MAX_HASHED_BYTES = 4 << 20
"""Larger files that git does not know count by size and time alone."""
SHORT = 7
# The files that runs write are no change of the code.
_OURS = re.compile(r"/reports/(runs/|history\.sqlite)|/__pycache__/")
# A repository may name programs of its own for diffs and for watching files; none of them is started.
GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")


class Source(Record):
    """Which code was under test; empty strings where that is not known."""

    commit: str = ""
    branch: str = ""
    changes: str = ""
    """A digest of what was not committed, or empty when nothing was; equal digests mean equal code."""

    @property
    def short_commit(self) -> str:
        """The commit in seven digits, with a `+` when something was not committed; empty when not known."""
        return self.commit[:SHORT] + ("+" if self.commit and self.changes else "")

    @property
    def words(self) -> str:
        return " ".join(filter(None, [self.branch, self.short_commit]))

    def in_full(self, commit: str) -> str:
        """`1a2b3c4 on main, with changes that are not committed`, as far as known; `commit` is as it shall be shown."""
        place = " ".join(filter(None, [commit, self.branch and f"on {self.branch}"]))
        return place + (", with changes that are not committed" if place and self.changes else "")

    def continued(self, now: Source) -> Source:
        """The source of a resumed run. After a change of the code, its results belong to neither state."""
        if (now.commit, now.changes) == (self.commit, self.changes):
            return self
        return self.but(changes=f"resumed at {now.commit} {now.changes}".strip())


def read_source(folder: Path, environ: Mapping[str, str], *, commit: str = "", branch: str = "") -> Source:
    """The state of the git repository that holds `folder`; `commit` and `branch` overrule git.

    Without git, a repository or a branch (CI checks out none), the variables of GitHub's runners count. Never raises.
    """
    found = _git(folder, "rev-parse", "HEAD") or environ.get("GITHUB_SHA", "")
    on_branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD")
    on_branch = on_branch or environ.get("GITHUB_HEAD_REF", "") or environ.get("GITHUB_REF_NAME", "")
    # A commit that the user named is of code that may not be in this repository.
    changes = _changes(folder) if found and not commit else ""
    return Source(commit=commit or found, branch=branch or on_branch, changes=changes)


def _changes(folder: Path) -> str:
    """A digest of everything that differs from the commit, new files included; empty when nothing does."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    difference = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--binary")
    if not top or difference is None:
        return ""
    new = _git(Path(top), "ls-files", "--others", "--exclude-standard", "-z") or ""
    names = [name for name in new.split("\0") if name and not _OURS.search(f"/{name}")]
    if not difference and not names:
        return ""
    digest = hashlib.sha256(difference.encode())
    for name in names:
        digest.update(name.encode() + b"\0" + _content(Path(top) / name))
    return digest.hexdigest()[:16]


def _content(path: Path) -> bytes:
    try:
        facts = path.lstat()
        if path.is_symlink() or not path.is_file() or facts.st_size > MAX_HASHED_BYTES:
            return f"{facts.st_size} {facts.st_mtime_ns}".encode()
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return b"gone"


def _git(folder: Path, *words: str) -> str | None:
    """The output of git, or None when it fails, hangs or is missing."""
    try:
        command = [*GIT, "-C", str(folder), *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip("\n") if done.returncode == 0 else None
