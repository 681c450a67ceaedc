"""Sites for these tests, whatever else of the process has registered its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch_poison import sites

SITES = {"workspace": 3, "output": 1, "cache.tail": 6, "expert.ids": 15, "last": sites.MOST_TAG}


@pytest.fixture(autouse=True)
def _only_the_sites_of_these_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sites, "_tag_of", dict(SITES))
    monkeypatch.setattr(sites, "_site_of", {tag: site for site, tag in SITES.items()})
    monkeypatch.setattr(sites, "_to_ask", [])
    yield
