"""What the command line takes beside names: files, patterns, the failures of the newest run; and
how much it prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transcripts import Approved, lines_with

Cli = Callable[..., tuple[int, str, str]]
FAULT = ("--fault", "merge.ignore-context-count")
ONE = ("-n", 1, "--history", "none")


@pytest.fixture
def own(scenarios: Path, tmp_path: Path) -> Path:
    """A scenario of the user, in a folder where the next file is malformed."""
    folder = tmp_path / "my"
    folder.mkdir()
    (folder / "broken.yaml").write_text("- no scenario")
    path = folder / "own.yaml"
    path.write_text((scenarios / "merge.yaml").read_text().replace("name: merge\n", "name: own\n"))
    return path


def test_a_file_is_run_by_its_path_and_its_failures_give_a_command_that_works(
    cli: Cli, own: Path, approved: Approved
) -> None:
    code, out, _ = cli("run", "my/own.yaml", *FAULT, *ONE)
    assert code == 1
    again = next(line for line in out.splitlines() if "again: " in line)
    approved(again)
    assert cli("run", "own[num_with_context=12]", "--scenarios", "my/own.yaml", *ONE)[0] == 0
    assert json.loads(cli("list", "my/own.yaml", "--cases", "--json")[1])["cases"] == [
        "own[num_with_context=7]",
        "own[num_with_context=12]",
    ]
    assert cli("show", "my/own.yaml")[0] == 0


def test_a_file_that_cannot_be_run_is_refused_in_one_line(
    cli: Cli, own: Path, approved: Approved
) -> None:
    for words in [
        ["my/nosuch.yaml"],
        ["my/own.yaml", "my/own.yaml"],
        ["my/broken.yaml"],
        ["my"],
    ]:
        code, _, err = cli("run", *words)
        assert code == 2 and err.count("\n") == 1
        approved(err, " ".join(words))


@pytest.mark.parametrize("words", [("-x",), ("--max-failures", 1)])
def test_a_run_stops_after_the_first_failure_and_can_go_on(
    cli: Cli,
    scenarios: Path,
    plugin: Callable[[str], Path],
    words: tuple[object, ...],
    approved: Approved,
) -> None:
    path = plugin("\n    return x.float(), x.float().sum()")
    code, out, err = cli(
        "run", "quantize", "--plugin", path, "--scenarios", scenarios, *ONE, *words
    )
    assert code == 1 and "blame" in out
    approved(lines_with(out, "1 case not"))
    approved(err)
    code, out, err = cli("run", "--resume", "latest", *ONE)
    assert (code, err) == (1, "") and "not run" not in out and "2 crash" in out


def test_a_run_with_fewer_failures_than_allowed_is_whole(cli: Cli, scenarios: Path) -> None:
    code, out, err = cli(
        "run", "merge", *FAULT, "--max-failures", 2, "--scenarios", scenarios, *ONE
    )
    assert (code, err) == (1, "") and "not run" not in out


def test_the_failures_of_the_newest_run_are_run_again_with_its_options(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    code, _, err = cli("run", "--last-failed", *ONE)
    assert code == 2 and "no run" in err
    cli("run", *FAULT, "--scenarios", scenarios, *ONE)
    code, out, _ = cli("run", "--last-failed", "--json", *ONE)
    found = json.loads(out)["cases"]
    assert code == 1 and [case["id"] for case in found] == ["merge[num_with_context=7]"]
    code, _, err = cli("run", "merge[num_with_context=12]", "--last-failed", *ONE)
    assert code == 2
    approved(err)
    assert cli("run", "--scenarios", scenarios, *ONE)[0] == 0
    code, _, err = cli("run", "--last-failed", *ONE)
    assert code == 2
    approved(err)


def test_quiet_and_verbose_runs_print_less_and_more(
    cli: Cli, scenarios: Path, plugin: Callable[[str], Path]
) -> None:
    path = plugin("\n    def deep():\n        raise ValueError('planned')\n    deep()")
    words = ("run", "quantize[num_live=8]", "--plugin", path, "--scenarios", scenarios, *ONE)
    _, usual, _ = cli(*words)
    _, quiet, _ = cli(*words, "-q")
    _, verbose, _ = cli(*words, "-v")
    assert (
        "blame" not in quiet
        and "again: " not in quiet
        and quiet.count("\n") == 2
        and "1 crash" in quiet
    )
    assert "Traceback" not in usual and "again: " in usual
    assert "Traceback" in verbose and "in deep" in verbose and "again: " in verbose
    _, verbose, _ = cli("run", "merge", "--scenarios", scenarios, *ONE, "-v")
    assert "pass merge[num_with_context=7]" in verbose


def test_the_list_takes_a_selector_and_shows_tags(cli: Cli, scenarios: Path) -> None:
    tables = json.loads(cli("list", "quan*", "--scenarios", scenarios, "--json")[1])
    assert list(tables) == ["scenarios"] and [row["name"] for row in tables["scenarios"]] == [
        "quantize"
    ]
    assert tables["scenarios"][0]["tags"] == "quantization"
    assert (
        json.loads(cli("list", "-m", "quantization", "--scenarios", scenarios, "--json")[1])
        == tables
    )
    code, out, _ = cli("list", "quantize[num_live=1]", "--cases", "--scenarios", scenarios)
    assert code == 0 and out.split() == [
        "quantize[kernel=torch,num_live=1]",
        "quantize[kernel=torch-fmax,num_live=1]",
    ]
    assert "tags" in cli("list", "--scenarios", scenarios)[1]


@pytest.mark.nightly
def test_the_doctor_says_each_reason_once(cli: Cli) -> None:
    code, out, _ = cli("doctor")
    found = json.loads(cli("doctor", "--json")[1])
    reasons = {row[device] for row in found["kernels"] for device in ("cpu", "cuda")} - {
        "yes",
        "not made for it",
    }
    text = " ".join(out.split())
    assert code == 0 and reasons
    assert {reason: text.count(reason) for reason in reasons} == dict.fromkeys(reasons, 1)
    assert all(row["kernel"] in out for row in found["kernels"])


def test_repro_takes_the_address_of_a_pull_request(
    cli: Cli, scenarios: Path, approved: Approved
) -> None:
    address = "https://github.com/vllm-project/vllm/pull/36540"
    code, out, err = cli("repro", address, "--scenarios", scenarios, "-n", 1)
    assert (code, err) == (0, "") and "fault merge.ignore-context-count" in out
    code, _, err = cli("repro", "mer*", "--scenarios", scenarios)
    assert code == 2
    approved(err)


def test_a_shell_completes_commands_and_options() -> None:
    def completed(typed: str) -> list[str]:
        environ = {
            "_MLA_HARNESS_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(typed.count(" ")),
        }
        code = "import sys; sys.argv[0] = 'mla-harness'; from harness.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | environ, capture_output=True, text=True
        )
        return done.stdout.split()

    assert completed("mla-harness sel") == ["selftest"]
    assert "--max-failures" in completed("mla-harness run --m")
