"""Counters in the text of a server's /metrics, and the file of what they came to in each epoch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from harness.core.files import write_atomic
from harness.core.stored import NoFile, read_json, value_of

# Bounded, so that it is finite: 99 digits and an exponent of 99 are less than 1.8e308.
NUMBER = r"\d{1,99}(?:\.\d*)?(?:[eE][+-]?\d\d?)?"
"""A number in /metrics, which is finite and not negative."""

CountsT = TypeVar("CountsT")


class Counters:
    """The counters of some names: `names` is name -> what it counts."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        # The Prometheus client adds `_total` to the name of a counter.
        self._line = re.compile(
            rf"^({'|'.join(names)})(?:_total)?(?:\{{[^}}]*\}})? ({NUMBER})\s*$",
            re.MULTILINE | re.ASCII,
        )

    def summed(self, metrics: str) -> dict[str, float]:
        """What is counted -> its sum over engines, for each counter that is there."""
        found: dict[str, float] = {}
        for name, value in self._line.findall(metrics):
            found[self._names[name]] = found.get(self._names[name], 0.0) + float(value)
        return found


def read_epochs(file: Path, stored: TypeAdapter[dict[int, CountsT]]) -> dict[int, CountsT]:
    """Epoch -> its counts, in order; nothing without the file."""
    try:
        return dict(sorted(value_of(stored, read_json(file), file).items()))
    except NoFile:
        return {}


def write_epochs(file: Path, counts: Mapping[int, Sequence[object]]) -> None:
    write_atomic(file, json.dumps(counts))
