"""What commands print: lines for people, one JSON object for programs, warnings on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

from harness.report.console import console_for


def console(as_json: bool = False, moves: bool = True) -> Console:
    """The console for people: standard error if standard output gets one JSON object. Bars need one that `moves`."""
    return console_for(sys.stderr if as_json else sys.stdout, moves=moves)


def print_json(value: object, default: Callable[[Any], object] | None = None) -> None:
    """Print strict JSON on standard output; `default` converts what JSON has no type for. Raises ValueError for NaN."""
    sys.stdout.write(json.dumps(value, default=default, allow_nan=False, indent=1) + "\n")


def warn(message: str) -> None:
    print("mla-harness: warning:", " ".join(message.split()), file=sys.stderr)
