"""`mla-harness schema`: the JSON Schema of scenario files."""

from __future__ import annotations

from harness.cli.output import print_json
from harness.scenario.json_schema import json_schema


def schema() -> None:
    """Print the JSON Schema of scenario files."""
    print_json(json_schema())
