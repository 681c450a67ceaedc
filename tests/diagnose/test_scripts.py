"""Every known bug as a script of its own: short, tidy, free of this project, and right about its
bug.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.cases import Case
from harness.core.catalog import FAULTS
from harness.core.errors import InputError
from harness.diagnose.script.code import (
    MARKER,
    WIDTH,
    inline,
    kernel_in,
    without_bug,
    without_dead_code,
)
from harness.diagnose.script.export import check
from harness.diagnose.script.recipes import RECIPES
from harness.diagnose.script.render import why_not
from harness.diagnose.shrink import fields_of
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.scenario.expand import fault_cases
from tests.transcripts import Approved, lines_with
from tests.waiting import HANG_SECONDS, wait_until, wait_until_gone

from .cases import SCENARIOS, declared, script_of  # type: ignore[import-not-found]

ROOT = Path(__file__).parents[2]

DECLARED = declared()
IDS = [f"{fault}-{case.scenario}" for fault, case in DECLARED]
EXECUTED = ("merge-kernel",)
"""In every run of the tests the script of a merge is executed; all others every night."""
executed = [
    pytest.param(
        fault, case, id=IDS[number], marks=() if case.scenario in EXECUTED else pytest.mark.nightly
    )
    for number, (fault, case) in enumerate(DECLARED)
]
each = pytest.mark.parametrize(("fault", "case"), DECLARED, ids=IDS)


def test_every_recipe_is_tried() -> None:
    assert {fault for fault, _ in DECLARED} == set(RECIPES)


def test_a_bug_without_a_script_is_refused_with_those_that_have_one(approved: Approved) -> None:
    tried = {
        use.name: case for scenario in SCENARIOS.values() for use, case in fault_cases(scenario)
    }
    for fault in (
        "sparse.padding-overwrites-prefill",
        "merge.assume-minus-inf",
        "records.shuffled-written-flat",
    ):
        with pytest.raises(InputError) as error:
            script_of(fault, tried[fault])
        named = (*RECIPES, "mla-harness repro ", f"--fault {fault}")
        assert all(word in str(error.value) for word in named) and "\n" not in str(error.value)
    with approved.raises(InputError):
        script_of("vllm.router-int64-ids", tried["vllm.router-int64-ids"])


def test_a_case_of_another_layout_is_made_plain_first_and_refused_only_if_that_fails(
    approved: Approved,
) -> None:
    params = MlaDecodeParams(kernel="tiled", layout="block_major")
    case = Case(id="c", scenario="s", system="kernel", op="mla_decode", params=params)
    assert why_not(case, None) is None, "a refusal here would come before the case is made smaller"
    fields = [field for field in fields_of(case) if field in type(params).model_fields]
    assert fields[0] == "layout"
    with approved.raises(InputError):
        script_of(None, case)


@pytest.mark.parametrize(("fault", "case"), executed)
def test_a_script_fails_with_its_bug_and_passes_without_it_where_this_project_is_not(
    fault: str, case: Case
) -> None:
    done = check(script_of(fault, case))
    assert done.holds
    assert done.with_bug.last_line.startswith("AssertionError")


@each
def test_a_script_is_short_has_one_marked_line_and_imports_torch_only(
    fault: str, case: Case
) -> None:
    text = script_of(fault, case)
    assert len(text.splitlines()) < 120
    assert text.count(MARKER) == 1
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert {name.partition(".")[0] for name in imported} <= {"torch"}


@each
def test_a_script_is_as_ruff_wants_it_with_its_bug_and_without(
    fault: str, case: Case, tmp_path: Path
) -> None:
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    text = script_of(fault, case)
    for name, content in (("script.py", text), ("mended.py", without_bug(text))):
        (tmp_path / name).write_text(content)
    root = Path(__file__).parents[2]
    for words in (("check", "--no-cache"), ("format", "--check", "--no-cache")):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *words,
            "--config",
            str(root / "pyproject.toml"),
            "--config",
            f"line-length = {WIDTH}",
            str(tmp_path),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
        )
        assert done.returncode == 0, done.stdout


def test_the_numbers_of_a_script_are_those_of_its_case(approved: Approved) -> None:
    fault, case = next(pair for pair in DECLARED if pair[1].op == "merge_attn_states")
    params = case.params.model_copy(
        update={"num_tokens": 9, "num_with_context": 4, "num_heads": 3, "v_head_dim": 8}
    )
    text = script_of(fault, case.model_copy(update={"params": params, "seed": 5}))
    assert "SEED = 5\n" in text
    approved(lines_with(text, "NUM_TOKENS, WITH_CONTEXT, HEADS,"))


def test_a_script_names_the_address_of_its_thread() -> None:
    for fault, case in (DECLARED[0], DECLARED[-1]):
        repository, _, number = FAULTS.get(fault).ref.partition("#")
        assert f"# See https://github.com/{repository}/issues/{number}\n" in script_of(fault, case)


@each
def test_a_script_defines_and_imports_nothing_that_it_does_not_use(fault: str, case: Case) -> None:
    text = script_of(fault, case)
    assert without_dead_code(text) == text
    names = [
        word for line in text.splitlines() for word in re.findall(r"^(?:def|class) (\w+)", line)
    ]
    assert all(len(re.findall(rf"\b{name}\b", text)) > 1 for name in names)


def test_dead_code_goes_and_what_is_used_stays() -> None:
    dead = (
        "import math\nimport torch\nfrom a import b, c\n\nX = 1\nY = X\n\n\ndef used():\n    return"
        " c\n\n\n"
    )
    dead += "def unused():\n    return math.pi\n\n\ndef check():\n    torch.add(used())\n"
    left = without_dead_code(dead)
    assert "import math" not in left and "X = 1" not in left and "unused" not in left
    assert "def used" in left and "import torch" in left
    assert "from a" in left


def test_an_optional_keyword_that_no_call_gives_goes_unless_the_kernel_is_under_test(
    approved: Approved,
) -> None:
    text = (
        "def f(x, *, scale, extra=None):\n    return x * scale\n\n\ndef check():\n    f(1,"
        " scale=2)\n"
    )
    approved(without_dead_code(text))
    used = text.replace("x * scale", "x * scale * extra")
    assert without_dead_code(used) == used
    under_test = text.replace(
        "\n\n\ndef check", f"\n\n\nkernel = f{MARKER}\n\n\ndef check"
    ).replace("    f(1", "    kernel(1")
    assert "extra=None" in without_dead_code(under_test)


def test_the_function_of_a_plug_in_is_inlined(tmp_path: Path, approved: Approved) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nimport torch.nn.functional as F\nfrom harness import kernel\n\nSCALE ="
        " 2.0\n\n\ndef helper(x):\n    return F.relu(x) * SCALE\n\n\n@kernel(op='mla_decode',"
        " name='mine', devices=('cpu',))\ndef decode(q, kv_cache, *, scale):\n    return"
        " helper(q)\n\n\n@kernel(op='write_kv', name='mine')\ndef write(kv_c): ...\n"
    )
    assert kernel_in(str(file), "write_kv", "mine") == f"{file}:write"
    found = inline(kernel_in(str(file), "mla_decode", "mine"))
    assert found.name == "decode"
    assert "torch.nn.functional as F" in "\n".join(found.imports)
    assert "SCALE = 2.0" in found.code and "def helper" in found.code
    assert "@kernel" not in found.code and "harness" not in found.code
    with approved.raises(InputError):
        kernel_in(str(file), "mla_decode", "other")


@pytest.mark.parametrize("pattern", ["nan", "inf", "max", "random"])
def test_the_poison_of_a_script_is_the_pattern_that_failed(pattern: str) -> None:
    fault, case = next(pair for pair in DECLARED if pair[0] == "merge.ignore-context-count")
    poison = case.poison.model_copy(update={"patterns": (pattern,)})
    text = script_of(fault, case.model_copy(update={"poison": poison}))
    word = {
        "nan": 'float("nan")',
        "inf": 'float("inf")',
        "max": "torch.finfo(",
        "random": "torch.randn(",
    }[pattern]
    assert word in text.partition("def poison")[2].partition("\n\n\n")[0]


def test_only_the_sites_that_the_case_poisons_are_filled() -> None:
    fault, case = next(pair for pair in DECLARED if pair[0] == "merge.ignore-context-count")
    poison = case.poison.model_copy(update={"sites": ("context.lse",)})
    text = script_of(fault, case.model_copy(update={"poison": poison}))
    assert "poison(prefix_lse" in text and "poison(prefix_out" not in text


@pytest.mark.nightly
def test_a_script_can_be_a_test() -> None:
    fault, case = next(pair for pair in DECLARED if pair[0] == "router.int64-ids")
    text = script_of(fault, case, is_pytest=True)
    assert "def test_cudagraph_padding" in text and "__main__" not in text
    assert check(text, is_pytest=True).holds


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends a process with its parent")
def test_a_script_ends_with_the_process_that_tries_it(tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(
        "import os, time\nos.symlink(str(os.getpid()), 'pid')\ntime.sleep(3600)\n"
    )
    code = (
        "import sys\nfrom pathlib import Path\nfrom harness.diagnose.script.export import"
        " run\nrun(Path(sys.argv[1]))"
    )
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "hang.py")], env=environ
    ) as parent:
        wait_until((tmp_path / "pid").is_symlink, "the script began", parent)
        parent.kill()
    wait_until_gone(int(os.readlink(tmp_path / "pid")))
