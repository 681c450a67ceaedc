"""The conditions that a call of `write_records` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.conditions.model import Point
from harness.core.conditions.parts import of_records
from harness.core.conditions.token_rows import largest_of_rows, token_rows


def read(x: Any, cache: Any, slot_mapping: Any, *, record_format: str, **_: Any) -> Iterator[Point]:
    return token_rows(slot_mapping.tolist(), largest_of_rows(x), of_records(cache, record_format))
