"""A parameter is read by its name, without a default that would hide a renamed one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from harness.core.params import Params
from harness.core.shapes import sizes_of
from harness.ops.mla_decode.params import MlaDecodeParams

ROOT = Path(__file__).parents[2]
FILES = [*ROOT.glob("harness/**/*.py"), *ROOT.glob("adapters/*/mla_harness_*/**/*.py")]


def test_no_parameter_is_read_with_a_default() -> None:
    found = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_getattr = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "getattr"
            )
            if is_getattr and len(node.args) == 3 and ast.unparse(node.args[0]).endswith("params"):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_a_size_that_the_parameters_lack_is_an_error_and_not_left_out() -> None:
    class Renamed(Params):
        heads: int = 16

    with pytest.raises(AttributeError, match="kv_lora_rank"):
        sizes_of("mla_decode", Renamed())
    assert sizes_of("mla_decode", MlaDecodeParams(num_heads=4))["num_heads"] == 4
