"""What a plug-in changes in its process reaches no other case: each gets the verdict that it has
alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.run import plugin_files
from tests.transcripts import Approved

from .conftest import GOOD_BODY  # type: ignore[import-not-found]

Cli = Callable[..., tuple[int, str, str]]

HEAD = """
import os, signal, sys, threading

import torch
from torch.overrides import TorchFunctionMode

from harness import kernel

EMPTY = torch.empty


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def spin():
    while True:
        pass


LOOKED = set()


def look(name):
    '''Raise if another kernel left something behind. A thread of the kernel itself is there in its next call.'''
    if name in LOOKED:
        return
    LOOKED.add(name)
    assert torch.empty is EMPTY and torch.get_default_dtype() is torch.float32
    assert torch.get_default_device().type == "cpu" and torch._C._len_torch_function_stack() == 0
    assert sys.getrecursionlimit() == 1000 and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert not any(thread.name == "spinner" for thread in threading.enumerate())
    with open(os.environ["PIDS"], "a") as stream:
        stream.write(f"{os.getpid()}\\n")


def quantized(x, num_live):
"""  # noqa: E501
KERNEL = """

@kernel(op="quantize_fp8", name="{name}")
def {function}(x, *, num_live=None):
    look("{name}")
    found = quantized(x, num_live)
    {change}
    return found
"""
CHANGES = {
    "replaces": "torch.empty = torch.zeros",
    "dtype": "torch.set_default_dtype(torch.float64)",
    "device": "torch.set_default_device('meta')",
    "mode": "Mode().__enter__()",
    "recursion": "sys.setrecursionlimit(200)",
    "alarm": "signal.alarm(3600)",
    "thread": "threading.Thread(target=spin, daemon=True, name='spinner').start()",
}
LAZY = "found = torch.empty(x.shape).to(torch.float8_e4m3fn), found[1]"
SAYS = {
    "replaces": "quantize_fp8/replaces replaced torch.empty (restored)",
    "dtype": "quantize_fp8/dtype set the default dtype to torch.float64 (restored)",
    "device": "quantize_fp8/device set the default device to meta (restored)",
    "mode": "quantize_fp8/mode left a mode of torch on: Mode (restored)",
    "recursion": "quantize_fp8/recursion set the recursion limit to 200 (restored)",
    "alarm": "quantize_fp8/alarm left an alarm set (signal.alarm, signal.setitimer) (restored)",
    "thread": "quantize_fp8/thread left running: thread 'spinner'",
}
FAIL = {"replaces", "mode"}
"""What stands between the harness and the memory or the numbers of a kernel."""


def source(*names: str) -> str:
    """A plug-in with the kernels of these names: of CHANGES, `lazy`, or a good one."""
    changes = CHANGES | {"lazy": LAZY}
    kernels = [
        KERNEL.format(name=n, function=n.replace("-", "_"), change=changes.get(n, "pass"))
        for n in names
    ]
    return HEAD + GOOD_BODY + "".join(kernels)


def run(cli: Cli, scenarios: Path, *words: object) -> dict[str, list[dict[str, Any]]]:
    """Kernel -> the results of its cases, in order."""
    code, out, err = cli("run", "quantize", "--scenarios", scenarios, "--json", *words)
    assert code in (0, 1), err
    found: dict[str, list[dict[str, Any]]] = {}
    for case in json.loads(out)["cases"]:
        found.setdefault(case["id"].partition("kernel=")[2].partition(",")[0], []).append(case)
    return found


def check(found: dict[str, list[dict[str, Any]]]) -> None:
    """Each kernel has its own verdict, and each change is said."""
    for name, says in SAYS.items():
        for result in found[name]:
            assert result["verdict"] == ("fail" if name in FAIL else "pass"), result
            assert says in result["reason"], result
            assert {one["oracle"] for one in result["findings"]} == (
                {"process"} if name in FAIL else set()
            )
    assert {result["verdict"] for result in found["good"]} == {"pass"}
    assert {result["verdict"] for result in found["lazy"]} == {"fail"}
    assert not any(result["reason"] for result in found["good"])


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The processes in which kernels were called, in order, each once for the calls in a row."""
    file = tmp_path / "pids"
    monkeypatch.setenv("PIDS", str(file))

    def read() -> list[str]:
        found = file.read_text().split()
        return [pid for before, pid in zip(["", *found], found, strict=False) if pid != before]

    return read


@pytest.mark.nightly
def test_what_plugins_leave_behind_reaches_no_other_case(
    cli: Cli, scenarios: Path, tmp_path: Path, pids: Callable[[], list[str]]
) -> None:
    words: list[object] = ["-n", 1]
    for name in (*CHANGES, "good", "lazy"):
        file = tmp_path / f"{name}_kernel.py"
        file.write_text(source(name))
        words += ["--plugin", file, "--kernel", name]
    check(run(cli, scenarios, *words))
    # No process is used twice: not for a case, and not for a trial of the search for blame.
    assert len(set(pids())) == len(pids()) >= 2 * (len(CHANGES) + 2)


def test_cases_that_share_a_process_begin_with_the_state_of_a_new_one(
    cli: Cli,
    scenarios: Path,
    tmp_path: Path,
    pids: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, and for a plug-in that takes long to import."""
    monkeypatch.setattr(plugin_files, "CHEAP_SECONDS", -1.0)
    (tmp_path / "all.py").write_text(source(*CHANGES, "good", "lazy"))
    check(run(cli, scenarios, "-n", 1, "--plugin", tmp_path / "all.py"))
    # A thread that computes cannot be ended, so the process is, after each of its two cases.
    assert len(pids()) == 3


@pytest.mark.nightly
def test_what_an_import_leaves_behind_is_restored_and_said_for_its_kernels_alone(
    cli: Cli, scenarios: Path, tmp_path: Path, pids: Callable[[], list[str]], approved: Approved
) -> None:
    words: list[object] = ["-n", 1]
    for name, change in (
        ("first", CHANGES["dtype"]),
        ("second", CHANGES["replaces"]),
        ("lazy", "pass"),
    ):
        file = tmp_path / f"{name}_kernel.py"
        file.write_text(source(name) + f"\n\n{change}\n")
        words += ["--plugin", file, "--kernel", name]
    found = run(cli, scenarios, *words)
    for result in found["first"]:
        assert result["verdict"] == "pass"
        approved(result["reason"])
    for result in found["second"]:
        assert result["verdict"] == "fail"
        approved(result["reason"])
    assert {result["verdict"] for result in found["lazy"]} == {"fail"}
    assert not any("import" in result["reason"] for result in found["lazy"])


@pytest.mark.nightly
def test_a_remark_on_the_process_is_beside_the_failure_that_it_may_explain(
    cli: Cli, scenarios: Path, tmp_path: Path, pids: Callable[[], list[str]], approved: Approved
) -> None:
    (tmp_path / "needs.py").write_text(
        source("needs").replace(
            "found = quantized(x, num_live)", "assert torch.get_default_dtype() is torch.float64"
        )
        + f"\n\n{CHANGES['dtype']}\n"
    )
    first, _ = run(cli, scenarios, "-n", 1, "--plugin", tmp_path / "needs.py")["needs"]
    assert first["verdict"] == "crash" and "raised AssertionError" in first["reason"]
    approved(first["findings"][0]["message"])


def test_a_remark_is_printed_with_its_number_of_cases(
    cli: Cli, scenarios: Path, tmp_path: Path, pids: Callable[[], list[str]]
) -> None:
    (tmp_path / "dtype.py").write_text(source("dtype"))
    code, out, _ = cli(
        "run", "quantize", "--scenarios", scenarios, "-n", 1, "--plugin", tmp_path / "dtype.py"
    )
    assert code == 0
    assert "remark on 2" in out and "torch.float64" in out


def test_one_name_in_two_files_is_refused(
    cli: Cli, scenarios: Path, tmp_path: Path, approved: Approved
) -> None:
    for file in ("a.py", "b.py"):
        (tmp_path / file).write_text(source("same"))
    words = ("--plugin", tmp_path / "a.py", "--plugin", tmp_path / "b.py")
    code, _, err = cli("run", "quantize", "--scenarios", scenarios, "-n", 1, *words)
    assert code == 2 and err.count("\n") == 1
    assert "a.py; rename one" in err
    approved(err)
