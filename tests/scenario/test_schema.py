"""The JSON Schema that editors complete scenario files with, and the page on their keys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.core.catalog import FAULTS, ORACLES, SITES
from harness.core.op_params import KERNEL_PARAMS
from harness.scenario.json_schema import json_schema
from harness.scenario.load import read_document, scenario_files, shipped_directory
from harness.scenario.schema import Scenario

ROOT = Path(__file__).parents[2]
SCHEMA = json_schema()
KERNEL = {"name": "x", "summary": "x", "system": "kernel", "op": "mla_decode"}


def problems(**keys: Any) -> list[str]:
    errors = jsonschema.Draft202012Validator(SCHEMA).iter_errors(KERNEL | keys)
    return [".".join(map(str, error.path)) for error in errors]


def test_schema_names_the_keys_as_a_file_writes_them() -> None:
    properties = SCHEMA["properties"]
    assert set(properties) == {field.alias or name for name, field in Scenario.model_fields.items()}
    assert "except" in properties


def test_schema_lists_the_names_that_exist() -> None:
    text = json.dumps(SCHEMA)
    for registry in (SITES, ORACLES, FAULTS):
        assert json.dumps(registry.names()) in text


def test_schema_holds_the_parameters_of_every_system() -> None:
    definitions = SCHEMA["$defs"]
    assert "EngineParams" in definitions
    for model in KERNEL_PARAMS.values():
        assert set(definitions[model.__name__]["properties"]) == set(model.model_fields)


def test_schema_refuses_unknown_keys() -> None:
    assert SCHEMA["additionalProperties"] is False


@pytest.mark.parametrize("path", scenario_files(shipped_directory()), ids=lambda path: path.stem)
def test_every_shipped_scenario_fits_the_schema(path: Path) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(read_document(path.read_bytes()).data)


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"params": {"num_head": 16}}, "params"),
        ({"params": {"kv": "fp9"}}, "params.kv"),
        ({"params": {"num_live": 8}}, "params"),
        ({"matrix": {"kv": ["bf16", "fp9"]}}, "matrix.kv"),
        ({"matrix": {"kv": {"small": "fp9"}}}, "matrix.kv"),
        ({"matrix": {"num_head": [1, 2]}}, "matrix.num_head"),
        ({"matrix": {"size": {"small": {"num_head": 1}}}}, "matrix.size.small"),
        ({"matrix": {"pattern": ["nun"]}}, "matrix.pattern.0"),
        ({"matrix": {"site": ["kv.tial"]}}, "matrix.site.0"),
        ({"system": "engine", "op": None, "params": {"query_len": 1}}, "params"),
    ],
)
def test_wrong_parameters_are_refused_by_system_and_op(keys: dict[str, Any], where: str) -> None:
    assert problems(**keys) == [where]


@pytest.mark.parametrize(
    "keys",
    [
        {"params": {"num_heads": 16, "kernel": "of-a-plug-in"}},
        {
            "matrix": {
                "kernel": ["all"],
                "kv": {"small": "bf16"},
                "pattern": ["nan", "max"],
                "site": ["kv.tail"],
            }
        },
        {"matrix": {"size": {"small": {"num_heads": 1, "kv": "bf16"}}}},
        {"op": "quantize_fp8", "params": {"num_live": 8}},
        {"system": None, "op": None, "fuzz": {"examples": 3}},
    ],
)
def test_right_parameters_are_accepted(keys: dict[str, Any]) -> None:
    assert problems(**keys) == []


def test_an_editor_can_complete_kernels_of_the_op_and_only_those() -> None:
    known = SCHEMA["$defs"]["MlaDecodeParams"]["properties"]["kernel"]["anyOf"][0]["enum"]
    assert "tiled" in known and "per-token" not in known


def test_the_page_of_keys_is_what_the_code_gives() -> None:
    tool, page = ["tools/pages.py", "scenario-keys"], "docs/scenario-keys.md"
    done = subprocess.run(
        [sys.executable, *tool], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == (ROOT / page).read_text(encoding="utf-8"), (
        f"write it again: python {' '.join(tool)} > {page}"
    )
