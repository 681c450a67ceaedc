"""docs/scenario-keys.md: the keys of a scenario, from their schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from harness.report.markdown import table
from harness.scenario.json_schema import FILE, json_schema
from harness.scenario.matrix import MAX_POINTS
from harness.scenario.schema import IN_SCENARIOS

SCHEMA = json_schema()
PARTS = {
    "poison": "PoisonSettings",
    "faults": "FaultUse",
    "known": "KnownUse",
    "accuracy": "AccuracySettings",
    "accuracy.nightly": "NightlyAccuracy",
    "fuzz": "FuzzSettings",
}


def document() -> str:
    parts = "\n".join(
        part for key, name in PARTS.items() for part in _section(f"`{key}`", SCHEMA["$defs"][name])
    )
    systems = "\n".join(
        part for spec in IN_SCENARIOS for op in spec.ops() or [""] for part in _system(spec, op)
    )
    return f"""# Keys of a scenario

Written by `python tools/pages.py` from `harness/scenario/schema.py` and `harness/core/*_params.py`. `mla-harness schema > {FILE}` writes the same for editors: keys and values are completed, and wrong ones are marked. The number in its name rises when a file that was right is refused. Write it to the folder of your scenario and put this line above the scenario (VS Code with its YAML extension, and every editor with yaml-language-server, reads it):

```yaml
# yaml-language-server: $schema={FILE}
```

{_keys(SCHEMA)}

`matrix` has axes. An axis is a list of values of a parameter (`kv: [bf16, fp8_e4m3]`) or a mapping from label to value. Any other name is an axis too, if its labels stand for several parameters (`ranks: {{two: {{dp: 2, ep: 2}}}}`). The axes `pattern` and `site` are the poison's. The names of labels make the ids of cases. The axes make at most {MAX_POINTS:,} combinations; with `cover: pairs` or `triples`, at most so many pairs or triples.

{parts}
## Parameters by system

They stand in `params`, for all cases, or in `matrix`.

{systems}"""


def _system(spec: Any, op: str) -> Iterator[str]:
    model = SCHEMA["$defs"][spec.model(op).__name__]
    yield from _section(f"`system: {spec.name}`" + (f", `op: {op}`" if op else ""), model, level=3)


def _section(title: str, schema: dict[str, Any], level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {title}\n"
    if summary := schema.get("description"):
        yield " ".join(summary.split()) + "\n"
    yield _keys(schema) + "\n"


def _keys(schema: dict[str, Any]) -> str:
    rows = []
    for name, value in schema["properties"].items():
        default = json.dumps(value["default"]) if "default" in value else ""
        default = "" if default == "null" else default
        about = value.get("description", "")
        rows.append(
            (
                f"`{name}`",
                _words(value),
                f"`{default}`" if default and len(default) < 60 else "",
                about,
            )
        )
    return table(("key", "value", "default", "means"), rows)


def _words(schema: dict[str, Any]) -> str:
    """What a value may be."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return next(
            (f"see `{key}` below" for key, part in PARTS.items() if part == name), "a value"
        )
    if "enum" in schema and len(schema["enum"]) > 16:
        # Their number is not told: the page would be stale with each new name.
        return "a name that `mla-harness list` shows"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(
            dict.fromkeys(_words(one) for one in schema["anyOf"] if one.get("type") != "null")
        )
    kind = schema.get("type", "a value")
    if isinstance(kind, list):
        return " or ".join(_words({"type": one}) for one in kind)
    if kind == "array":
        return f"list: {_words(schema.get('items', {}))}"
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"))
        if key in schema
    ]
    words = {
        "integer": "whole number",
        "string": "text",
        "boolean": "`true`, `false`",
        "object": "mapping",
        "null": "nothing",
        "number": "number",
    }
    return " ".join([words.get(kind, kind), *bounds])
