"""`mla-harness schema`: the JSON Schema of scenario files."""

from __future__ import annotations

from harness.cli.output import print_json


def schema() -> None:
    """Print the JSON Schema of scenario files."""
    # Imported here only: a page of help must be instant.
    from harness.scenario.json_schema import json_schema

    print_json(json_schema())
