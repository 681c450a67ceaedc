"""The runs in a folder of runs, newest first, and which of them came before one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.core.errors import InputError
from harness.store.history.entry import RunEntry, read_entry
from harness.store.summary import SUMMARY

MAX_LOOKED_BACK = 300
"""Runs that are searched for one with a case in common."""
_AGO = re.compile(r"(\d{1,5})\s*(m|h|d|w)", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class PastRuns:
    """The runs below a folder, newest first by their names. Each is read when it is needed, and once."""

    def __init__(self, root: Path) -> None:
        """`root` holds run folders. A run without a summary, which has not ended, is none of the past."""
        self.root = root
        self.damaged: list[str] = []
        """Why a run that was needed could not be read, a line each."""
        self._folders = sorted((file.parent for file in root.glob(f"*/{SUMMARY}")), reverse=True)
        self._read: dict[str, RunEntry | None] = {}

    def __iter__(self) -> Iterator[RunEntry]:
        return self.before("")

    @property
    def names(self) -> list[str]:
        return [folder.name for folder in self._folders]

    def before(self, run_id: str) -> Iterator[RunEntry]:
        """The runs that began before this one, newest first; all for an empty id."""
        for folder in self._folders:
            if (not run_id or folder.name < run_id) and (entry := self.named(folder.name)):
                yield entry

    def named(self, name: str) -> RunEntry | None:
        """The run in the folder of that name; None when there is none or it cannot be read."""
        if name not in self._read:
            self._read[name] = None
            if name in self.names:
                try:
                    self._read[name] = read_entry(self.root / name)
                except InputError as error:
                    self.damaged.append(str(error))
        return self._read[name]

    def earlier(
        self, run: RunEntry, *, limit: int = 1, wanted: Callable[[RunEntry], bool] = lambda run: True
    ) -> list[RunEntry]:
        """The newest runs before `run` that judged some case, and have a case or a fault in common with it."""
        found: list[RunEntry] = []
        for place, one in enumerate(self.before(run.run_id)):
            if len(found) == limit or place == MAX_LOOKED_BACK:
                break
            if one.has_judged and any(map(one.alike, run.entries.values())) and wanted(one):
                found.append(one)
        return found


def moment(text: str, now: datetime | None = None) -> str:
    """`7d`, `12h`, `2w`, `90m`, `2026-11-01` or an ISO time -> UTC, as a run writes it. Raises InputError.

    A time without a zone is UTC, as all times in reports are.
    """
    match = _AGO.fullmatch(text.strip().lower())
    try:
        if match:
            when = (now or datetime.now(UTC)) - timedelta(**{_UNITS[match[2]]: int(match[1])})
        else:
            when = datetime.fromisoformat(text.strip())
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return when.astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        raise InputError(f"--since {text!r}: write how long ago (7d, 12h, 90m, 2w) or a date (2026-11-01)") from None
