"""Check by its text that a release of vLLM has each name, parameter and option that the harness
uses.

    python3 -m pip install -c constraints.txt -e '.[dev]'
    python -m adapters.shared.tests.download vllm SITES 0.24.0 0.33.0
    python -m adapters.vllm.tests.fits SITES/vllm-0.24.0 SITES/vllm-0.33.0
    python -m adapters.vllm.tests.fits --newest SITES
    python -m adapters.vllm.tests.fits SITES/vllm-0.33.0:FLASHINFER --docs docs/data/vllm-fits.md
    python tools/records.py docs/data/vllm-fits.md
    python -m adapters.vllm.tests.fits --docs docs/data/vllm-fits.md

No GPU is needed. Nothing of a release is imported or run, so a release that fits may still fail.
FlashInfer's functions are checked if a folder with FlashInfer is given too. Without a release, only
the page's numbers of cases that ran are updated. Exit code 1: something is missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from adapters.vllm.tests.fits.checks import fits
from adapters.vllm.tests.fits.page import document, missing, refreshed, table
from adapters.vllm.tests.fits.release import Release
from harness.core.errors import InputError
from mla_harness_adapters.releases import release_of


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m adapters.vllm.tests.fits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "site", nargs="*", help="a folder with a release, or folders as in PYTHONPATH"
    )
    parser.add_argument(
        "--docs", type=Path, help="also write this page; the records of runs must be beside it"
    )
    parser.add_argument(
        "--newest", action="store_true", help="of the releases that are named, check the newest"
    )
    options = parser.parse_args()
    if not options.site and not options.docs:
        parser.error("name a release's folder, or a page with --docs")
    page = options.docs
    try:
        if options.site:
            releases = [Release.at(site) for site in expanded(options.site)]
            if options.newest:
                releases = [max(releases, key=lambda release: release_of(release.version))]
            return _check(releases, page)
        page.write_text(refreshed(page.read_text(encoding="utf-8"), page.parent), encoding="utf-8")
    except (InputError, FileNotFoundError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


def expanded(sites: list[str]) -> list[str]:
    """The folders of releases: a folder that `download` filled stands for all that it holds."""
    found: list[str] = []
    for site in sites:
        is_release = any(Path(part, "vllm").is_dir() for part in site.split(":"))
        held = sorted(map(str, Path(site).glob("vllm-*/"))) if not is_release else []
        found += held or [site]
    return found


def _check(releases: list[Release], page: Path | None) -> int:
    found = {release.version: fits(release) for release in releases}
    print("\n".join([*table(found), *missing(found)]))
    if page:
        page.write_text(document(found, page.parent), encoding="utf-8")
    return int(any(fit.missing for parts in found.values() for fit in parts))


if __name__ == "__main__":
    sys.exit(main())
