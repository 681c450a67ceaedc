"""A real browser for the tests of the page; without one they are skipped, with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# Not for the whole session: while a Playwright is open, no other test could run an event loop of
# its own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium, the one that is installed on this machine."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install -e '.[dev]'"
    )
    path = next(
        filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None
    )
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()
