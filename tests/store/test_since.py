"""What can be written after `--since`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from harness.core.errors import InputError
from harness.store.history.entry import moment

NOW = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("7d", "2026-03-03T12:00:00+00:00"),
        ("36h", "2026-03-09T00:00:00+00:00"),
        ("90m", "2026-03-10T10:30:00+00:00"),
        ("2W", "2026-02-24T12:00:00+00:00"),
        ("2026-03-01", "2026-03-01T00:00:00+00:00"),
        ("2026-03-01T08:00:00+02:00", "2026-03-01T06:00:00+00:00"),
        ("2026-03-01T08:00:00Z", "2026-03-01T08:00:00+00:00"),
    ],
)
def test_times_ago_and_dates_are_moments_in_utc(text: str, meant: str) -> None:
    assert moment(text, NOW) == meant


@pytest.mark.parametrize(
    "text", ["yesterday", "7", "-3d", "d", "2026-13-01", "999999d", "7 days", "\u0667d", ""]
)
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match="--since"):
        moment(text, NOW)
