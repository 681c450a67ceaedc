"""The JSON Schema of scenario files, for editors: it knows the keys of `params` and `matrix` by
system and op.
"""

from __future__ import annotations

from typing import Any

from harness.core.catalog import KERNELS, SITES
from harness.core.engine_params import AccuracyParams
from harness.core.params import Params
from harness.scenario.schema import IN_SCENARIOS, PATTERNS, Scenario

VERSION = 1
"""Rises when a file that was right is refused, because a key or a value is gone or means something
else.
"""
FILE = f"scenario.v{VERSION}.schema.json"
"""The name that a file of the schema gets."""

JsonSchema = dict[str, Any]
"""A JSON Schema. Its keywords are the standard's."""
_LABELLED = {"type": "object", "minProperties": 1}


def json_schema() -> JsonSchema:
    """The JSON Schema of a scenario file.

    What `params` and `matrix` may hold depends on `system` and `op`.
    """
    schema = Scenario.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    definitions[AccuracyParams.__name__] = AccuracyParams.model_json_schema()
    branches = []
    for spec in IN_SCENARIOS:
        for op in spec.ops() or [""]:
            model = spec.model(op)
            definitions[model.__name__] = _params(
                model, {k: o or "" for k, o in spec.kernels_of(op).items()}
            )
            definitions[f"{model.__name__}Matrix"] = _matrix(model, has_kernels=spec.with_op)
            given = {"system": {"const": spec.name}} | ({"op": {"const": op}} if op else {})
            parts = {"params": model.__name__, "matrix": f"{model.__name__}Matrix"}
            then = {"properties": {key: {"$ref": f"#/$defs/{name}"} for key, name in parts.items()}}
            branches.append({"if": {"properties": given, "required": list(given)}, "then": then})
    schema["allOf"] = branches
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"MLA harness scenario, version {VERSION}"
    return schema


def _params(model: type[Params], kernels: dict[str, str]) -> JsonSchema:
    """The parameters of a model.

    None is required, because the matrix may give it. Plug-ins add names of kernels.
    """
    schema = model.model_json_schema()
    schema.pop("required", None)
    for name, op in kernels.items():
        known = [spec.short_name for spec in KERNELS if spec.op == op]
        schema["properties"][name]["anyOf"] = [{"enum": known}, {"type": "string"}]
    return schema


def _matrix(model: type[Params], *, has_kernels: bool) -> JsonSchema:
    """Axes: parameters, the poison's two, and any other name, with labels that stand for several
    parameters.
    """
    whole = {"$ref": f"#/$defs/{model.__name__}"}
    axes: dict[str, JsonSchema] = {}
    for name in model.model_fields:
        value = {"$ref": f"#/$defs/{model.__name__}/properties/{name}"}
        listed = {"type": "array", "minItems": 1, "items": value}
        axes[name] = {"anyOf": [listed, _LABELLED | {"additionalProperties": value}]}
    if has_kernels:
        axes["kernel"]["anyOf"].append({"const": ["all"]})
    axes["pattern"] = {"type": "array", "minItems": 1, "items": {"enum": list(PATTERNS)}}
    axes["site"] = {"type": "array", "minItems": 1, "items": {"enum": SITES.names()}}
    return {
        "type": "object",
        "properties": axes,
        "additionalProperties": _LABELLED | {"additionalProperties": whole},
    }
