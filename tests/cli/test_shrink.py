"""The smallest failing case, from the command line: `shrink`, `repro`, `run --shrink-seconds`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from tests.transcripts import Approved, lines_with
from tests.waiting import HANG_SECONDS

Cli = Callable[..., tuple[int, str, str]]
FAULT = "merge.ignore-context-count"
BROKEN = """
    scale = (x.float().abs().amax() / 448).clamp_min(1e-12)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)
"""


def test_a_failing_case_is_shrunk_and_the_printed_command_fails_so_again(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    code, out, err = cli("shrink", "merge", "--fault", FAULT, "--scenarios", scenarios, "-n", 1)
    assert (code, err) == (0, "")
    assert "num_heads" in out and "4 -> 1" in out
    approved(lines_with(out, "no smaller case"))
    command = re.search(r"again: mla-harness (.*)", out)
    assert command is not None
    words = shlex.split(command[1])
    assert "num_tokens=1" in words[1]
    again, out, _ = cli(*words, "-n", 1)
    assert again == 1
    approved(lines_with(out, "NaN in live"))
    without = [word for word in words if word not in ("--fault", FAULT)]
    assert cli(*without, "-n", 1)[0] == 0


def test_the_result_as_json_has_the_case_the_steps_and_the_finding(
    cli: Cli, scenarios: Path
) -> None:
    _, out, _ = cli(
        "shrink", "merge", "--fault", FAULT, "--scenarios", scenarios, "-n", 1, "--json"
    )
    shrunk = json.loads(out)
    assert shrunk["case"]["params"]["num_heads"] == 1
    assert shrunk["steps"][0]["what"] == "sites"
    assert shrunk["finding"]["oracle"] == shrunk["oracle"] == "finite"


def test_a_kernel_of_a_user_is_shrunk_with_his_file_in_the_command(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path]
) -> None:
    path = plugin(BROKEN)
    code, out, _ = cli("shrink", "quantize", "--plugin", path, "--scenarios", scenarios, "-n", 1)
    assert code == 0
    assert "smallest: quantize[kernel=mine,num_live=1]@num_tokens=2" in out
    assert f"--plugin {path}" in out


def test_a_case_that_passes_is_refused_in_one_line(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    code, out, err = cli("shrink", "merge", "--scenarios", scenarios, "-n", 1)
    assert (code, out) == (2, "") or "merge" not in out
    assert err.count("\n") == 1
    approved(err)


def test_repro_shows_the_smallest_failing_case_of_a_fault(cli: Cli, scenarios: Path) -> None:
    code, out, _ = cli(
        "repro", "36540", "--scenarios", scenarios, "-n", 1, "--shrink-seconds", HANG_SECONDS
    )
    assert code == 0
    assert "smallest: merge[num_with_context=7]@num_tokens=1" in out


def test_a_run_keeps_the_smallest_case_of_each_reason_on_request(
    cli: Cli, scenarios: Path, tmp_path: Path, approved: Approved
) -> None:
    code, out, _ = cli(
        "run",
        "merge",
        "--fault",
        FAULT,
        "--scenarios",
        scenarios,
        "-n",
        1,
        "--shrink-seconds",
        HANG_SECONDS,
    )
    assert code == 1
    approved(lines_with(out, "smallest: mla-harness run"))
    (run,) = (tmp_path / "reports" / "runs").iterdir()
    (line,) = (run / "shrunk.jsonl").read_text().splitlines()
    assert json.loads(line)["id"] == "merge[num_with_context=7]"
    assert json.loads(line)["steps"]


def test_a_run_shrinks_nothing_unless_asked(cli: Cli, scenarios: Path, tmp_path: Path) -> None:
    cli("run", "merge", "--fault", FAULT, "--scenarios", scenarios, "-n", 1)
    (run,) = (tmp_path / "reports" / "runs").iterdir()
    assert not (run / "shrunk.jsonl").exists()
