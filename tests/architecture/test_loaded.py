"""What a command loads: a kernel case reads the folder of its own op, and no engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASE = "decode-kernel[kernel=tiled,kv=fp32,planned=planned]"
OWN = ("mla_decode", "mla_decode_plan")
"""The op of the case, and the op of its plan."""
PROGRAM = """
import atexit, json, sys
atexit.register(lambda: json.dump(sorted(sys.modules), open(sys.argv[-1] + "/modules.json", "w")))
from harness.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules that a run of CASE in one process loads."""
    out = tmp_path_factory.mktemp("run")
    words = ["run", CASE, "-n", "0", "--history", "none", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads((out / "modules.json").read_text(encoding="utf-8"))
    return found


def test_a_kernel_case_loads_its_kernel(loaded: list[str]) -> None:
    assert {"harness.ops.mla_decode.kernels.tiled", "harness.judge.targets.kernel"} <= {*loaded}


def test_a_kernel_case_loads_no_module_of_the_reference_engine(loaded: list[str]) -> None:
    assert [name for name in loaded if re.match(r"harness\.engine(\.|$)", name)] == []


def test_a_kernel_case_loads_no_way_to_other_nodes(loaded: list[str]) -> None:
    assert [name for name in loaded if re.match(r"harness\.run\.ray_", name)] == []


def test_a_kernel_case_loads_of_other_ops_their_parameters_alone(loaded: list[str]) -> None:
    # The check of each scenario file needs the parameters of its op.
    parts = [re.match(r"harness\.ops\.(\w+)\.(\w+)", name) for name in loaded]
    others = {
        found[0]
        for found in parts
        if found and found[1] not in (*OWN, "parts") and found[2] != "params"
    }
    assert others == set()
