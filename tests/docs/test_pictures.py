"""Pictures of pages come from a script, and the site of a night from the workflow's own steps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.nightly_site import steps
from tests.waiting import HANG_SECONDS

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"


def test_the_script_makes_each_picture_of_a_page_and_a_page_shows_it() -> None:
    made = set(re.findall(r'^    "(\w+)": \($', (PICTURES / "pages.py").read_text(), re.MULTILINE))
    assert made == {picture.stem for picture in PICTURES.glob("*.png")}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    texts = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert set(re.findall(r"!\[[^\]]{20,}\]\((?:docs/)?pictures/(\w+)\.png\)", texts)) == made


def test_pictures_are_small() -> None:
    assert all(picture.stat().st_size < 200_000 for picture in PICTURES.iterdir())


def test_the_site_of_a_night_is_made_by_the_steps_of_the_workflow() -> None:
    named = dict(steps("report"))
    assert "mla-harness merge" in named["Merge the shards"]
    assert "history" in named["One page of all nights"] and "Install" not in named


@pytest.mark.nightly
def test_the_site_of_a_night_has_no_link_that_leads_nowhere(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/nightly_site.py", str(tmp_path / "out"), "--nights", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    site = tmp_path / "out" / "reports" / "runs"
    for page in (site / "index.html", site / "compare.html"):
        links = re.findall(r'href="([^"#:]+)"', page.read_text(encoding="utf-8"))
        assert links and all((site / link).is_file() for link in links), page.name
