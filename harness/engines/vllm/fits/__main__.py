"""Check, by text alone, that each name, parameter and option that the harness relies on is in a release of vLLM.

    python3 -m pip install -c constraints.txt -e '.[dev]'
    python -m harness.engines.vllm.download SITES 0.24.0 0.33.0
    python -m harness.engines.vllm.fits SITES/vllm-0.24.0 SITES/vllm-0.33.0
    python -m harness.engines.vllm.fits SITES/vllm-0.33.0:FLASHINFER --docs docs/vllm-releases.md
    python -m harness.engines.vllm.fits --docs docs/vllm-releases.md

No GPU is needed. Nothing is imported from a release and nothing of it runs: a release that fits may still fail.
FlashInfer's own functions are checked where a folder that holds it is named too. Without a release, the page is updated
with the cases that other pages list as run. Exit code 1: something is missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.core.errors import InputError
from harness.engines.vllm.fits.checks import fits
from harness.engines.vllm.fits.page import document, missing, refreshed, table
from harness.engines.vllm.fits.release import Release


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.engines.vllm.fits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("site", nargs="*", help="a folder with a release, or folders as in PYTHONPATH")
    parser.add_argument("--docs", type=Path, help="also write this page; the pages of runs lie beside it")
    wanted = parser.parse_args()
    if not wanted.site and not wanted.docs:
        parser.error("name a release's folder, or a page with --docs")
    try:
        return _check(wanted.site, wanted.docs) if wanted.site else _update(wanted.docs)
    except (InputError, FileNotFoundError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _check(sites: list[str], page: Path | None) -> int:
    releases = [Release.at(site) for site in sites]
    found = {release.version: fits(release) for release in releases}
    print("\n".join([*table(found), *missing(found)]))
    if page:
        page.write_text(document(found, page.parent), encoding="utf-8")
    return int(any(fit.missing for parts in found.values() for fit in parts))


def _update(page: Path) -> int:
    page.write_text(refreshed(page.read_text(encoding="utf-8"), page.parent), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
