"""Photograph pages as they are today: python docs/pictures/pages.py [NAME]...

Each picture is of a run that this script makes in a folder of its own, with the command that the
table names. It needs playwright and a Chromium, and some minutes. No path of this machine is in a
picture.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent
BROWSERS = ("chromium", "google-chrome", "chromium-browser")
WIDTH = 1080
PICTURES = {
    "report": (
        "mla-harness run mixed-context -n 1 --fault merge.ignore-context-count",
        "#overview",
        695,
    ),
    "accuracy": (
        "mla-harness run 'kv-cache-full[accuracy=gsm_symbolic]' -n 1"
        " --fault kv.skip-zero-new-blocks",
        "#accuracy",
        970,
    ),
}
"""Name of a picture -> the command of its run, the part of the page, the pixels of its height at
most.
"""


def page_of(command: str, folder: Path) -> Path:
    """The page of the run that a command makes in an empty folder. The run fails: that is shown."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    subprocess.run(["bash", "-c", command], cwd=folder, env=environment, check=False)
    (page,) = folder.glob("reports/runs/*/report.html")
    return page


def photograph(page: Path, part: str, height: int, picture: Path) -> None:
    """Write a part of a page as a PNG file."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        tab.goto(page.as_uri())
        box = tab.locator(part).first.bounding_box()
        assert box is not None
        clip = {**box, "x": 0, "width": WIDTH, "height": min(box["height"], height)}
        tab.screenshot(path=str(picture), full_page=True, clip=clip)
        browser.close()


def main(names: list[str]) -> None:
    for name in names or PICTURES:
        command, part, height = PICTURES[name]
        with tempfile.TemporaryDirectory() as folder:
            page = page_of(command, Path(folder))
            photograph(page, part, height, FOLDER / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
