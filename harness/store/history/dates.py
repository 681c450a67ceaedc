"""`--since`: a date, a moment, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from harness.core.errors import InputError

_AGO = re.compile(r"(\d{1,5})\s*(m|h|d|w)", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str, now: datetime | None = None) -> str:
    """`7d`, `12h`, `2w`, `90m`, `2026-11-01` or an ISO time -> UTC, as the history writes it. Raises InputError.

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
