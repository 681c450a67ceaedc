"""The page says what was run as the pages say it that hold the runs, and has a row for every
part.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.vllm.tests.fits.__main__ import expanded
from adapters.vllm.tests.fits.checks import Fit, fits
from adapters.vllm.tests.fits.conftest import Maker
from adapters.vllm.tests.fits.page import (
    HOSTED,
    SERVED,
    cell,
    document,
    missing,
    refreshed,
    run_on_a_cpu,
    run_on_a_gpu,
    table,
)
from tests.transcripts import Approved, lines_with
from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[4]
RECORDS = ROOT / "docs" / "data"
PAGE = RECORDS / "vllm-fits.md"
PARTS = RECORDS / "vllm-fits" / "what-fits-by-its-code.csv"
GPU = """\
case,vLLM,run 1,run 2
a[x=1],0.24.0,"pass, 1.0000, 30 s",not run
b,0.24.0,"fail, 0.0000, 30 s",not run
c,0.24.0,skipped: no such GPU,not run
a[x=1],0.22.1,not run,not run
"""
CPU = """\
 case              bug           vLLM 0.24.0     vLLM 0.33.0   first bad
 vllm-host-one     1             pass            skip          none bad
 vllm-host-two     1             FAIL finite     pass          0.24.0, the oldest
   with vllm.bug                 caught finite   caught        caught 2 of 2
vLLM 0.24.0: python3, vllm-host-one pass
"""


def docs(folder: Path) -> Path:
    for name, release in zip(SERVED, ("0.24.0", "0.30.0"), strict=True):
        (folder / name).parent.mkdir()
        (folder / name).write_text(GPU.replace("0.24.0", release), encoding="utf-8")
    (folder / HOSTED).mkdir()
    (folder / HOSTED / "one.txt").write_text(CPU, encoding="utf-8")
    return folder


def test_only_cases_that_came_to_a_verdict_count_as_run(tmp_path: Path) -> None:
    assert run_on_a_gpu(docs(tmp_path) / SERVED[0]) == {"0.24.0": {"a[x=1]", "b"}}
    assert run_on_a_cpu(tmp_path / HOSTED) == {
        "0.24.0": {"vllm-host-one", "vllm-host-two"},
        "0.33.0": {"vllm-host-two"},
    }


def test_a_release_that_only_fits_is_not_said_to_have_run(
    tmp_path: Path, approved: Approved
) -> None:
    found = {
        "0.33.0": [Fit("steps", 7)],
        "0.30.0": [Fit("steps", 7)],
        "0.24.0": [Fit("steps", 7, ("`vllm.x:y`",))],
    }
    approved(document(found, docs(tmp_path)))


def test_a_cell_says_what_is_missing_or_why_nothing_was_looked_at(approved: Approved) -> None:
    lacking, whole = Fit("steps", 7, ("a", "b")), Fit("steps", 7)
    approved(map(cell, (lacking, whole, Fit("kernel", skipped="no flashinfer"))))
    assert missing({"0.33.0": [whole]}) == []


def test_the_page_is_up_to_date_with_what_was_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert refreshed(text, RECORDS) == text, (
        "run python -m adapters.vllm.tests.fits --docs docs/data/vllm-fits.md"
    )


def test_the_page_has_a_row_for_every_part_and_no_other(release: Maker) -> None:
    rows = table({"0.33.0": fits(release({}))})
    wanted = [row.split("|")[1].strip().replace("`", "") for row in rows[2:]]
    with PARTS.open(encoding="utf-8", newline="") as file:
        there = [row["what of the harness"] for row in csv.DictReader(file)]
    assert there == wanted, (
        "run adapters.vllm.tests.fits on the releases of the page again, and tools/records.py"
    )


def command(*words: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "adapters.vllm.tests.fits"]
    return subprocess.run(
        [*start, *words], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS
    )


def test_a_folder_of_releases_stands_for_each_of_them(tmp_path: Path) -> None:
    for name in ("vllm-0.9.0", "vllm-0.10.0"):
        (tmp_path / name / "vllm").mkdir(parents=True)
    site = str(tmp_path / "vllm-0.9.0")
    assert sorted(expanded([str(tmp_path)])) == [str(tmp_path / "vllm-0.10.0"), site]
    assert expanded([site, f"{site}:elsewhere", "nowhere"]) == [
        site,
        f"{site}:elsewhere",
        "nowhere",
    ]


@pytest.mark.nightly
def test_the_command_fails_where_something_is_missing_and_refuses_a_folder_without_a_release(
    release: Maker, tmp_path: Path, approved: Approved
) -> None:
    release({"vllm/plugins/__init__.py": "GROUP = 'vllm.general_plugins'\n"})
    done = command(str(tmp_path))
    assert done.returncode == 1
    approved(lines_with(done.stdout, "| entry points", "DeepseekV2ForCausalLM"), "what is missing")
    for refused in (
        command(str(tmp_path / "nowhere")),
        command(str(tmp_path), "--docs", str(tmp_path / "page.md")),
    ):
        assert refused.returncode == 2
        approved(refused.stderr, "refused")


@pytest.mark.nightly
def test_the_command_writes_a_page_and_updates_its_runs(release: Maker, tmp_path: Path) -> None:
    release({})
    page = docs(tmp_path) / "page.md"
    command(str(tmp_path), "--docs", str(page))
    written = page.read_text(encoding="utf-8")
    page.write_text(written.replace("1 case", "9 cases"), encoding="utf-8")
    assert command("--docs", str(page)).returncode == 0
    assert page.read_text(encoding="utf-8") == written
