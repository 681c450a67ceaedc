"""A plug-in's kernel is judged, and its crash or error is a finding and never breaks the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import HANG_SECONDS

from .conftest import GOOD_BODY  # type: ignore[import-not-found]

Cli = Callable[..., tuple[int, str, str]]


def judge(cli: Cli, scenarios: Path, path: Path, *more: object) -> dict[str, object]:
    code, out, err = cli(
        "run",
        "--plugin",
        path,
        "--kernel",
        "mine",
        "--scenarios",
        scenarios,
        "-n",
        1,
        "--json",
        *more,
    )
    assert code in (0, 1), err
    summary: dict[str, object] = json.loads(out)
    return summary


def test_a_good_kernel_is_judged_by_every_scenario_of_its_op_and_passes(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path]
) -> None:
    summary = judge(cli, scenarios, plugin(GOOD_BODY))
    assert [case["id"] for case in summary["cases"]] == [
        "quantize[kernel=mine,num_live=1]",
        "quantize[kernel=mine,num_live=8]",
    ]
    assert summary["totals"]["pass"] == 2


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("raise RuntimeError('out of luck')", "crash"),
        ("return torch.zeros(1, 1), torch.ones(1)", "crash"),
        ("return x, torch.ones(1)", "crash"),
        ("return None", "crash"),
        ("import os; os._exit(0)", "crash"),
        ("import ctypes; ctypes.string_at(0)", "crash"),
        ("import sys; sys.exit(0)", "crash"),
        ("while True: pass", "crash"),
        ("return torch.empty(x.shape, dtype=torch.float8_e4m3fn), torch.empty(1)", "fail"),
        (GOOD_BODY.replace("x if num_live is None else x[:num_live]", "x"), "fail"),
    ],
    ids=[
        "raises",
        "wrong shape",
        "wrong dtype",
        "returns none",
        "os._exit",
        "segfault",
        "sys.exit",
        "hang",
        "unwritten",
        "padded amax",
    ],
)
def test_a_misbehaving_kernel_is_a_finding_and_the_run_goes_on(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path], body: str, verdict: str
) -> None:
    # Only the kernel that hangs comes to its limit, so that one is short.
    summary = judge(
        cli, scenarios, plugin(body), "--timeout", 3 if "while True" in body else HANG_SECONDS
    )
    worst = summary["cases"][0]
    assert worst["verdict"] == verdict, worst
    assert worst["findings"] and worst["findings"][0]["message"]
    assert sum(summary["totals"].values()) == 2 and summary["totals"]["error"] == 0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("raise RuntimeError('at import')", "at import"),
        ("import os; os._exit(3)", "exited with code 3"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("def broken(:", "SyntaxError"),
        ("x = 1", "registers no kernel"),
    ],
)
def test_a_plugin_file_that_does_not_load_is_bad_input_in_one_line(
    cli: Cli, scenarios: Path, tmp_path: Path, content: str, sentence: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(content)
    code, _, err = cli(
        "run", "--plugin", path, "--kernel", "mine", "--scenarios", scenarios, "-n", 1
    )
    assert code == 2
    assert sentence in err and err.count("\n") == 1 and "broken.py" in err


def test_the_only_kernel_of_a_plugin_need_not_be_named(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path]
) -> None:
    code, out, _ = cli("run", "--plugin", plugin(GOOD_BODY), "--scenarios", scenarios, "-n", 1)
    assert code == 0 and "2 pass in" in out


TWO_OPS = """

@kernel(op="merge_attn_states", name="other")
def other(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    return suffix_out.clone(), suffix_lse.clone()
"""


def test_of_a_file_with_kernels_of_two_ops_those_that_nothing_selected_uses_are_left_out(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path]
) -> None:
    path = plugin(GOOD_BODY)
    path.write_text(path.read_text() + TWO_OPS)
    options = ("--plugin", path, "--scenarios", scenarios, "-n", 1)
    code, out, err = cli("run", "quantize", *options, "--json")
    assert code == 0, err
    assert {case["id"].partition(",")[0] for case in json.loads(out)["cases"]} == {
        "quantize[kernel=mine"
    }
    code, out, err = cli("run", "merge[kernel=other,num_with_context=7]", *options, "--json")
    assert [case["verdict"] for case in json.loads(out)["cases"]] == ["fail"], err
    assert cli("run", "quantize[kernel=third,num_live=1]", *options)[0] == 2


SUMS_IN_BF16 = """
from harness import kernel
from harness.core.catalog import KERNELS

@kernel(op="mla_decode", name="mine", kv=("bf16",){promise})
def mine(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    tiled = KERNELS.get("mla_decode/tiled").load()
    out, lse = tiled(q, kv_cache, block_table, seq_lens, scale=scale, kv_scale=kv_scale, metadata=metadata)
    return out, lse + 0.001  # as far off as a sum of probabilities that are each rounded to bfloat16
"""  # noqa: E501


@pytest.mark.parametrize(
    ("promise", "verdict"),
    [("", "fail"), (", bf16_steps=('partials',)", "fail"), (", bf16_steps=('sums',)", "pass")],
)
def test_a_kernel_that_says_what_it_rounds_to_bfloat16_is_judged_by_it(
    cli: Cli, tmp_path: Path, promise: str, verdict: str
) -> None:
    path = tmp_path / "rounds.py"
    path.write_text(SUMS_IN_BF16.format(promise=promise))
    code, out, err = cli(
        "run",
        "decode-kernel[kernel=mine,kv=bf16,planned=planned]",
        "--plugin",
        path,
        "-n",
        1,
        "--json",
    )
    assert code == (verdict == "fail"), err
    assert [case["verdict"] for case in json.loads(out)["cases"]] == [verdict]


RAISING = """
    print("on standard output")
    import os
    os.write(2, b"on standard error\\n")
    return halve(x)

@torch.no_grad()
def halve(x):
    return torch.zeros(2) + torch.zeros(3)
"""


def test_a_kernel_that_raises_shows_its_line_its_traceback_and_what_it_printed(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path], tmp_path: Path
) -> None:
    path = plugin(RAISING)
    line = 1 + path.read_text().splitlines().index("    return torch.zeros(2) + torch.zeros(3)")
    place = f"my_kernel.py:{line} in halve: return torch.zeros(2) + torch.zeros(3)"
    code, out, _ = cli("run", "--plugin", path, "--scenarios", scenarios, "-n", 1)
    assert code == 1 and out.count(f"\n    at {place}\n") == 1, "both cases have one cause"
    assert "Traceback" not in out
    (folder,) = (tmp_path / "reports" / "runs").glob("2*")
    for text in (folder / "results.jsonl").read_text().splitlines():
        result = json.loads(text)
        assert result["findings"][0]["at"] == place
        log = result["log"]
        frame = f'{path}", line {line}, in halve'
        assert all(
            part in log
            for part in ("on standard output\n", "on standard error\n", frame, "RuntimeError: ")
        )
    page = (folder / "report.html").read_text()
    assert (
        f"at <code>{place}</code>" in page and "on standard output" in page and "Traceback" in page
    )


def test_what_a_failing_kernel_prints_is_kept_and_a_passing_one_leaves_no_log(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path], tmp_path: Path
) -> None:
    body = "\n    print('num_live', num_live)" + GOOD_BODY.replace(
        "x if num_live is None else x[:num_live]", "x"
    )
    cli("run", "--plugin", plugin(body), "--scenarios", scenarios, "-n", 1)
    (folder,) = (tmp_path / "reports" / "runs").glob("2*")
    logs = {
        r["verdict"]: r["log"]
        for r in map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    }
    assert logs.keys() == {"pass", "fail"}
    assert "num_live 1" in logs["fail"] and logs["pass"] == ""
