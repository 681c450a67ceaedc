"""The JSON Schema that editors complete scenario files with."""

from __future__ import annotations

import json

from harness.core.catalog import FAULTS, ORACLES, SITES
from harness.core.op_params import KERNEL_PARAMS
from harness.scenario.schema import Scenario, json_schema


def test_schema_names_the_keys_as_a_file_writes_them() -> None:
    properties = json_schema()["properties"]
    assert set(properties) == {field.alias or name for name, field in Scenario.model_fields.items()}
    assert "except" in properties


def test_schema_lists_the_names_that_exist() -> None:
    text = json.dumps(json_schema())
    for registry in (SITES, ORACLES, FAULTS):
        assert json.dumps(registry.names()) in text


def test_schema_holds_the_parameters_of_every_system() -> None:
    definitions = json_schema()["$defs"]
    assert "EngineParams" in definitions
    for model in KERNEL_PARAMS.values():
        assert set(definitions[model.__name__]["properties"]) == set(model.model_fields)


def test_schema_refuses_unknown_keys() -> None:
    assert json_schema()["additionalProperties"] is False
