"""An option given twice counts twice, or is refused: the last never wins in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from harness.cli.commands import COMMANDS, Command
from harness.cli.main import app
from tests.transcripts import Approved

Cli = Callable[..., tuple[int, str, str]]
GROUP = typer.main.get_command(app)


def leaves(command: Any) -> list[Any]:
    return (
        [leaf for child in command.commands.values() for leaf in leaves(child)]
        if hasattr(command, "commands")
        else [command]
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_an_option_that_it_would_overwrite(name: str) -> None:
    for command in leaves(GROUP.get_command(None, name)):  # type: ignore[attr-defined, arg-type]
        assert isinstance(command, Command), command.name


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("run", "--scenarios", "a", "--scenarios", "b"), "--scenarios"),
        (("run", "--seed", "1", "--seed=2"), "--seed"),
        (("run", "--fault", "a", "--fault", "b"), "--fault"),
        (("run", "-n1", "-n", "2"), "-n"),
        (("shrink", "x", "--kernel", "a", "--kernel", "b"), "--kernel"),
        (("baseline", "show", "--dir", "a", "--dir", "b"), "--dir"),
    ],
)
def test_a_second_value_is_refused_in_one_line(
    cli: Cli, words: tuple[str, ...], option: str, approved: Approved
) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    approved(err)


def test_flags_and_lists_may_be_repeated(cli: Cli, scenarios: Path) -> None:
    code, out, _ = cli("list", "--cases", "--json", "--json", "--scenarios", scenarios)
    assert code == 0 and len(json.loads(out)["cases"]) == 6


@pytest.mark.nightly
def test_cases_of_any_of_the_tags_are_run(cli: Cli, scenarios: Path) -> None:
    (scenarios / "merge.yaml").write_text(
        (scenarios / "merge.yaml").read_text() + "tags: [other]\n"
    )

    def num_run(*words: object) -> int:
        code, out, err = cli("run", *words, "--scenarios", scenarios, "-n", 1, "--json")
        assert code == 0, err
        return len(json.loads(out)["cases"])

    assert num_run("-m", "quantization") == 4
    assert num_run("-m", "other", "-m", "quantization") == 6
    assert num_run("-m", "kernel", "-m", "not other") == 4
    code, _, err = cli("run", "-m", "other", "-m", "othr", "--scenarios", scenarios)
    assert code == 2 and "unknown tag 'othr'" in err


def test_each_kernel_is_judged_and_named_in_the_command_to_copy(cli: Cli, scenarios: Path) -> None:
    words = (
        "run",
        "quantize",
        "--kernel",
        "torch",
        "--kernel",
        "torch-fmax",
        "--scenarios",
        scenarios,
        "-n",
        1,
    )
    code, out, err = cli(*words, "--json")
    assert code == 0, err
    found = json.loads(out)
    for kernel in ("torch", "torch-fmax"):
        assert sum(f"kernel={kernel}," in case["id"] for case in found["cases"]) == 2
    assert found["environment"]["options"]["kernel"] == ["torch", "torch-fmax"]
    (folder,) = Path("reports/runs").iterdir()
    assert "torch --kernel torch-fmax" in (folder / "report.html").read_text()
    code, _, err = cli("run", "--kernel", "torch", "--kernel", "no-such", "--scenarios", scenarios)
    assert code == 2 and "no-such" in err
