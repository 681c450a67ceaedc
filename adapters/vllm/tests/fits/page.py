"""The tables of what fits, in Markdown, and the page with the numbers of cases that ran."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from adapters.vllm.tests.fits.checks import Fit
from mla_harness_adapters.releases import release_of

Fits = dict[str, list[Fit]]
"""The parts of each release."""
SERVED = (
    "vllm-served-0.21-to-0.26/clean-scenarios.csv",
    "vllm-served-0.28-to-0.33/clean-scenarios.csv",
)
"""The clean cases that ran on a GPU."""
HOSTED = "vllm-host"
"""The folder of the outputs of runs on a CPU."""

HEAD = """# Record: what of the harness fits a release of vLLM

For whoever adapts the harness to a release. Made by `python -m adapters.vllm.tests.fits` from the text of each release; nothing here is typed by
hand. The harness does three things with a release. Each proves less than the one before:

- **Run on a GPU**: vLLM served canaries under poison, and its kernels were judged ([the releases](../vllm-releases.md)).
- **Host side run on a CPU**: parts of vLLM's own Python ran under poison ([vllm-host.md](vllm-host.md)).
- **Fits by its code**: every class, method, parameter, option, variable and patched line that the harness relies on is
  in the release's text. Nothing ran, so a release may fit and still fail. Compiled code is not checked.

"""  # noqa: E501
DETAILS = """
## What fits by its code

A number is how many names were checked. Where a release lacks some, the cell has their number, and the list below their
names. A bug that a release has itself is not injected. A kernel of FlashInfer is checked where a folder with FlashInfer
is named beside the release.

"""  # noqa: E501


def table(found: Fits) -> list[str]:
    """A table with a row for each part and a column for each release, oldest first."""
    releases = sorted(found, key=release_of)
    rows = [
        f"| what of the harness | {' | '.join(releases)} |",
        "| --- |" + " --- |" * len(releases),
    ]
    by_part = {release: {fit.part: fit for fit in found[release]} for release in releases}
    for part in dict.fromkeys(fit.part for release in releases for fit in found[release]):
        rows.append(
            f"| {part} | {' | '.join(cell(by_part[release][part]) for release in releases)} |"
        )
    return rows


def cell(fit: Fit) -> str:
    """The cell of one part and release."""
    if fit.skipped:
        return fit.skipped
    return (
        f"**{len(fit.missing)} of {fit.num_names} missing**"
        if fit.missing
        else f"yes ({fit.num_names})"
    )


def missing(found: Fits) -> list[str]:
    """One line for each name that a release lacks, with all such releases; empty if all fit."""
    lacking: dict[str, list[str]] = {}
    for release in sorted(found, key=release_of):
        for fit in found[release]:
            for what in fit.missing:
                lacking.setdefault(f"{fit.part}: {what}", []).append(release)
    lines = [f"- {name} ({', '.join(releases)})" for name, releases in lacking.items()]
    return ["", "Missing:", "", *lines] if lines else []


def document(found: Fits, docs: Path) -> str:
    """The page in Markdown, with the cases that ran from the records in the folder `docs`."""
    rows = [
        "| vLLM | run on a GPU | host side run on a CPU | fits by its code |",
        "| --- | --- | --- | --- |",
    ]
    for release in sorted(found, key=release_of):
        num_missing = sum(len(fit.missing) for fit in found[release])
        num_names = sum(fit.num_names for fit in found[release])
        fitting = (
            f"no: {num_missing} of {num_names} names are missing"
            if num_missing
            else f"yes ({num_names} names)"
        )
        rows.append(f"| {release} |  |  | {fitting} |")
    page = (
        HEAD + "\n".join([*rows, DETAILS.rstrip("\n"), "", *table(found), *missing(found)]) + "\n"
    )
    return refreshed(page, docs)


def refreshed(page: str, docs: Path) -> str:
    """The page with the numbers of cases that ran, read again from the records in `docs`.

    Other tables are unchanged.
    """
    served = {
        release: cases for name in SERVED for release, cases in run_on_a_gpu(docs / name).items()
    }
    hosted = run_on_a_cpu(docs / HOSTED)
    lines = page.splitlines()
    for number, line in enumerate(lines):
        if row := re.fullmatch(r"\| (\d+\.\d+\.\d+) \|[^|]*\|[^|]*\|([^|]*)\|", line):
            release, fitting = row.groups()
            lines[number] = (
                f"| {release} | {_cases(served, release)} | {_cases(hosted, release)} |{fitting}|"
            )
    return "\n".join(lines) + "\n"


def _cases(run: dict[str, set[str]], release: str) -> str:
    cases = run.get(release, set())
    return f"{len(cases)} case{'s' if len(cases) > 1 else ''}" if cases else "no"


def run_on_a_gpu(rows: Path) -> dict[str, set[str]]:
    """The clean cases of a file of SERVED that ended with a verdict, by release."""
    found: dict[str, set[str]] = {}
    with rows.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if re.match(r"pass|fail|known|crash", row["run 1"]):
                found.setdefault(row["vLLM"], set()).add(row["case"])
    return found


def run_on_a_cpu(folder: Path) -> dict[str, set[str]]:
    """The cases of the outputs in a folder that ended with a verdict, by release.

    A column of such a table begins at its title.
    """
    found: dict[str, set[str]] = {}
    for output in sorted(folder.glob("*.txt")):
        title, *lines = output.read_text(encoding="utf-8").splitlines()
        columns = [
            (one.start(), one.group(1)) for one in re.finditer(r"vLLM (\d+\.\d+\.\d+)", title)
        ]
        for line in lines:
            case = re.match(r" (vllm-host-\S+)", line)
            for start, release in columns if case else []:
                if case and re.match(r"pass|FAIL|CRASH", line[start:]):
                    found.setdefault(release, set()).add(case.group(1))
    return found
