"""docs/scenario-keys.md: the keys of a scenario, from their schema."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from harness.report.markdown import table
from harness.scenario.json_schema import FILE, json_schema
from harness.scenario.matrix import MAX_POINTS
from harness.scenario.schema import IN_SCENARIOS

SCHEMA = json_schema()
PARTS = {
    "poison": "PoisonSettings",
    "faults": "FaultUse",
    "fuzz": "FuzzSettings",
}
"""Key of a scenario -> the definition of what stands below it."""
MOST_VALUES = 16
"""A key with more values than these shows none: `mla-harness list` prints them."""
LONGEST_DEFAULT = 48
"""A longer default is left to the schema, in characters."""

Keys = dict[str, dict[str, Any]]
"""Name of a key -> its schema."""


def document() -> str:
    kernels = {f"`{op}`": _keys_of(spec, op) for spec in IN_SCENARIOS for op in spec.ops()}
    engine = _keys_of(*_system("engine"))
    accuracy = _properties("AccuracySettings")
    served = {f"`{name}`": _keys_of(*_system(name)) for name in ("vllm", "vllm-cpu", "sglang")}
    hosts = "\n".join(
        f"- `{name}`: {_listed(_keys_of(*_system(name)))}" for name in ("vllm-host", "sglang-host")
    )
    own = {name: value for name, value in accuracy.items() if name not in engine}
    engines = ", ".join(
        f"`{name}`" for name in accuracy if name in engine and not name.endswith("_kernel")
    )
    return f"""# Keys of a scenario

For whoever writes a scenario file. Written by `python tools/pages.py scenario-keys`.

`mla-harness schema > {FILE}` writes the types, ranges and values for editors.
The number in its name rises when a file that was right is refused.
Write it to the folder of your scenario and put this line above the scenario. Then VS Code with its YAML extension, and every editor with yaml-language-server, completes keys and marks mistakes:

```yaml
# yaml-language-server: $schema={FILE}
```

A key stands here with its default. Lists of kernels, oracles, sites and faults are printed by `mla-harness list`.

{_rows(SCHEMA["properties"])}

An axis of `matrix` is a list of values of a parameter (`kv: [bf16, fp8_e4m3]`) or a mapping from label to value.
Labels of any other axis stand for several parameters (`ranks: {{two: {{dp: 2, ep: 2}}}}`). Labels make the ids of cases.
The axes make at most {MAX_POINTS:,} combinations; with `cover: pairs` or `triples`, at most so many pairs or triples.

[known-failures.md](known-failures.md) has the keys of `known`.

{_join(_section(f"`{key}`", name) for key, name in PARTS.items())}

## `accuracy`

{_summary("AccuracySettings")} These parameters of the engine stand here too, and its choices of kernels: {engines}.

{_rows(own)}

`nightly` asks every question of a task. It has own values for {_listed(_properties("NightlyAccuracy"))}.

## Parameters

They stand in `params`, for all cases, or in `matrix`.

### `system: kernel`

{_family(kernels, level=4)}

### `system: engine`

{_summary(_model(*_system("engine")))}

{_parameters(engine, {})}

### `system: moves`

{_summary(_model(*_system("moves")))}

{_parameters(_keys_of(*_system("moves")), {})}

### Served engines: `system: vllm`, `system: vllm-cpu` and `system: sglang`

A canary served by the engine in processes of its own.

{_family(served, level=4)}

### Parts of engines on a CPU: `system: vllm-host` and `system: sglang-host`

A part of the engine's own Python on inputs of the harness. What a key means for which part is in the schema.

{hosts}
"""


def _system(name: str) -> tuple[Any, str]:
    """The system of this name, and no op."""
    return next(spec for spec in IN_SCENARIOS if spec.name == name), ""


def _model(spec: Any, op: str) -> str:
    """The name of the definition that holds the parameters of a system or an op."""
    return str(spec.model(op).__name__)


def _keys_of(spec: Any, op: str) -> Keys:
    return _properties(_model(spec, op))


def _properties(name: str) -> Keys:
    return dict(SCHEMA["$defs"][name]["properties"])


def _summary(name: str) -> str:
    return " ".join(SCHEMA["$defs"][name].get("description", "").split())


def _join(parts: Iterable[str]) -> str:
    return "\n\n".join(parts)


def _section(title: str, name: str) -> str:
    return f"## {title}\n\n{_summary(name)}\n\n{_rows(_properties(name))}"


def _family(models: dict[str, Keys], level: int) -> str:
    """The keys that several models share in one table, then what each has besides."""
    count = Counter((key, _means(value)) for keys in models.values() for key, value in keys.items())
    shared: Keys = {}
    for keys in models.values():
        for key, value in keys.items():
            if _means(value) and count[key, _means(value)] > 1:
                shared.setdefault(key, value)
    # A key that all share, with the same default, is listed once.
    first, *others = models.values()
    common = {key for key in shared if all(one.get(key) == first.get(key) for one in others)}
    blocks = [_rows(shared, with_default=common)]
    for title, keys in models.items():
        blocks.append(f"{'#' * level} {title}")
        left = {key: value for key, value in keys.items() if key not in common}
        blocks.append(_parameters(left, shared))
    return _join(blocks)


def _parameters(keys: Keys, shared: Keys) -> str:
    """A table of the keys with a meaning of their own, and a line of the others."""
    told = {
        key: value
        for key, value in keys.items()
        if _means(value) and _means(value) != _means(shared.get(key, {}))
    }
    others = {key: value for key, value in keys.items() if key not in told}
    return _join(
        filter(None, (_listed(others) + "." if others else "", _rows(told) if told else ""))
    )


def _rows(keys: Keys, with_default: set[str] | None = None) -> str:
    """The table of some keys. `with_default` names those whose default is shown; all if None."""
    return table(
        ("key", "means"),
        (
            (_named(key, value, with_default is None or key in with_default), _means(value))
            for key, value in keys.items()
        ),
    )


def _listed(keys: Keys) -> str:
    return ", ".join(_named(key, value) for key, value in keys.items())


def _named(key: str, value: dict[str, Any], with_default: bool = True) -> str:
    """A key as YAML has it, with its default."""
    default = value.get("default")
    words = default if isinstance(default, str) else json.dumps(default)
    is_shown = with_default and default not in (None, "", [], {}) and len(words) <= LONGEST_DEFAULT
    return f"`{key}: {words}`" if is_shown else f"`{key}`"


def _means(value: dict[str, Any]) -> str:
    """What a key means: its description, or its values if it has none."""
    return value.get("description", "") or ", ".join(f"`{one}`" for one in _values(value))


def _values(schema: dict[str, Any]) -> Iterator[Any]:
    """The values that a key or the items of its list may have; none if there are too many."""
    if "enum" in schema and len(schema["enum"]) <= MOST_VALUES:
        yield from schema["enum"]
    elif schema.get("type") == "array":
        yield from _values(schema.get("items", {}))
    elif "anyOf" in schema:
        parts = [part for part in schema["anyOf"] if part.get("type") != "null"]
        if len(parts) == 1:
            # A key with names of kernels may be any text besides.
            yield from _values(parts[0])
