"""Kernels that cannot be called, that crash alike in each case, and that refuse: one line, a few
crashes, a count.
"""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transcripts import Approved, lines_with, page_text

from .conftest import GOOD_BODY, PLUGIN, SCENARIO  # type: ignore[import-not-found]

Cli = Callable[..., tuple[int, str, str]]
ONE = ("-n", 1, "--history", "none")
LAZY = "import no_such_package_of_mine"
TYPO = "return x.to(torch.float8_e4m3), x"
BAD = "return x.to(torch.float8_e4m3fn), torch.full((1,), float('nan'))"
REFUSES = "raise Refused('not today')"
REFUSES_PARTLY = (
    "\n    if num_live in (1, 2):\n        raise Refused('at least 3 rows')\n" + GOOD_BODY
)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Two scenarios with six cases each of a kernel of quantize_fp8."""
    folder = tmp_path / "many"
    folder.mkdir()
    for name in ("quantize", "quantize-more"):
        text = SCENARIO.format(name=name).replace("[1, 8]", "[1, 2, 3, 4, 5, 6]")
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture
def kernels(tmp_path: Path) -> Callable[..., list[object]]:
    """Write a plug-in for each kernel, by its name, with this body.

    Returns the options that judge them.
    """

    def write(**bodies: str) -> list[object]:
        words: list[object] = []
        for name, body in bodies.items():
            path = tmp_path / f"{name}_kernel.py"
            text = PLUGIN.format(body=body).replace('name="mine"', f'name="{name}"')
            path.write_text(text.replace("import kernel", "import Refused, kernel"))
            words += ["--plugin", path]
        return words

    return write


def newest(folder: Path) -> Path:
    return sorted((folder / "reports" / "runs").iterdir())[-1]


@pytest.mark.parametrize("how", [("-n", 1), ("-n", 0), ("-n", 2)])
def test_a_kernel_that_imports_what_is_not_there_ends_the_run_in_one_line(
    cli: Cli,
    many: Path,
    kernels: Callable[..., list[object]],
    tmp_path: Path,
    how: tuple[object, ...],
    approved: Approved,
) -> None:
    code, out, err = cli("run", *kernels(lazy=LAZY), "--scenarios", many, *how)
    assert (code, out, err.count("\n")) == (2, "", 1)
    approved(err)
    assert not (newest(tmp_path) / "results.jsonl").exists(), (
        "the run can be continued once the package is there"
    )


def test_an_argument_that_is_corrupted_is_not_to_blame_for_a_missing_package(
    cli: Cli, kernels: Callable[..., list[object]], approved: Approved
) -> None:
    code, out, err = cli("run", "reject-quantize", *kernels(lazy=LAZY), *ONE)
    assert (code, out) == (2, "")
    approved(err)


def test_a_missing_package_hides_no_failure_that_was_seen_before(
    cli: Cli, many: Path, kernels: Callable[..., list[object]], approved: Approved
) -> None:
    words = kernels(bad=BAD, lazy=LAZY)
    code, out, err = cli("run", "quantize", *words, "--scenarios", many, *ONE)
    assert code == 2
    approved(lines_with(out, "FAIL quantize_fp8/bad: 6", "6 cases not"))
    approved(err)


def test_after_three_crashes_alike_the_other_cases_of_the_kernel_are_left_out_and_counted(
    cli: Cli, many: Path, kernels: Callable[..., list[object]], approved: Approved
) -> None:
    words = ("run", *kernels(typo=TYPO, good=GOOD_BODY), "--scenarios", many, *ONE)
    code, out, _ = cli(*words)
    assert code == 1
    approved(lines_with(out, "12 pass, 3"))
    assert "crashed 3 times" in out and "typo_kernel.py:7" in out
    code, out, _ = cli(*words, "--keep-going")
    assert code == 1
    approved(lines_with(out, "12 pass, 12"))


def test_crashes_at_other_lines_or_for_other_causes_are_not_alike(
    cli: Cli, many: Path, kernels: Callable[..., list[object]]
) -> None:
    lines = "\n".join(
        f"    if num_live < {most}:\n        raise {error}"
        for most, error in ((3, "KeyError"), (5, "OSError"))
    )
    code, out, _ = cli(
        "run",
        "quantize",
        *kernels(each=f"\n{lines}\n    raise ValueError"),
        "--scenarios",
        many,
        *ONE,
    )
    assert code == 1 and "6 crash in " in out


@pytest.mark.nightly
def test_failures_that_are_accepted_are_compared_with_all_crashes(
    cli: Cli, many: Path, kernels: Callable[..., list[object]], tmp_path: Path, approved: Approved
) -> None:
    words = ("run", "quantize", *kernels(typo=TYPO), "--scenarios", many, "-n", 1)
    approved(lines_with(cli(*words)[1], "3 crash"))
    assert cli(*words, "--keep-going")[0] == 1
    code, out, _ = cli(*words, "--fail-on", "new", "--against", newest(tmp_path).name)
    assert code == 0 and "6 crash in" in out


@pytest.mark.nightly
def test_what_a_kernel_refuses_is_counted_apart_in_each_report(
    cli: Cli, many: Path, kernels: Callable[..., list[object]], tmp_path: Path, approved: Approved
) -> None:
    words = ("run", "quantize", *kernels(mine=REFUSES_PARTLY), "--scenarios", many, *ONE)
    code, out, _ = cli(*words)
    assert code == 0
    approved(lines_with(out, "4 pass, 2", "refused 2 cases:", "judged: 4 of"))
    assert cli(*words, "--fail-on", "skip")[0] == 1
    approved(lines_with(cli("report", "--markdown")[1], "refused"))
    folder = newest(tmp_path)
    skipped = ET.parse(folder / "junit.xml").findall(".//skipped")
    assert [one.get("type") for one in skipped] == ["kernel-refused"] * 2
    approved([one.get("message") for one in skipped])
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [row["cause"] for row in rows].count("kernel_refused") == 2
    cases = json.loads((folder / "summary.json").read_text())["cases"]
    assert [case["cause"] for case in cases].count("kernel_refused") == 2
    page = (folder / "report.html").read_text()
    approved(lines_with(page_text(page), "4 of 6 cases of", "All 4 cases"))


def test_a_kernel_that_refuses_everything_is_not_green(
    cli: Cli, many: Path, kernels: Callable[..., list[object]], approved: Approved
) -> None:
    code, out, err = cli("run", *kernels(mine=REFUSES), "--scenarios", many, *ONE)
    assert code == 2
    approved(lines_with(out, "judged: 0 of"))
    assert err.count("\n") == 1
    approved(err)
    code, out, err = cli("run", *kernels(good=GOOD_BODY, mine=REFUSES), "--scenarios", many, *ONE)
    assert code == 2, "another kernel's passes say nothing about it"
    approved(lines_with(out, "12 pass, 12"))
    approved(err)
    code, _, _ = cli(
        "run", *kernels(good=GOOD_BODY, partly=REFUSES_PARTLY), "--scenarios", many, *ONE
    )
    assert code == 0


def test_a_kernel_that_refuses_everything_with_the_names_of_all_arguments_rejects_nothing(
    cli: Cli, kernels: Callable[..., list[object]]
) -> None:
    body = "raise Refused('x and num_live are not what it takes')"
    code, out, err = cli("run", "reject-quantize", *kernels(mine=body), *ONE)
    assert code == 2 and "1 refused in" in out and "nothing was judged" in err
