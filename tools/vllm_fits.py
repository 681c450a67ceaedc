"""Hold the harness to releases of vLLM by their text alone: every name, parameter and option that it relies on.

    tools/vllm_host_sites.py SITES 0.24.0 0.33.0
    tools/vllm_fits.py SITES/vllm-0.24.0 SITES/vllm-0.33.0
    tools/vllm_fits.py SITES/vllm-0.33.0:FLASHINFER --docs docs/vllm-releases.md
    tools/vllm_fits.py --docs docs/vllm-releases.md

No GPU is needed, nothing is imported from a release, and nothing of it runs: what fits may still fail. FlashInfer's
own functions are looked at where a folder that holds it is named too. Without a release, the page is brought up to
date with what other pages say was run. Exit code 1: something is missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.core.errors import InputError  # noqa: E402
from harness.engines.vllm.fits.checks import fits  # noqa: E402
from harness.engines.vllm.fits.page import document, missing, refreshed, table  # noqa: E402
from harness.engines.vllm.fits.release import Release  # noqa: E402


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", nargs="*", help="a folder with a release, or folders as in PYTHONPATH")
    parser.add_argument("--docs", type=Path, help="also write this page")
    wanted = parser.parse_args()
    if not wanted.site:
        if not wanted.docs:
            parser.error("name a release's folder, or a page with --docs")
        wanted.docs.write_text(refreshed(wanted.docs.read_text(encoding="utf-8"), ROOT / "docs"), encoding="utf-8")
        return 0
    try:
        releases = [Release.at(site) for site in wanted.site]
        found = {release.version: fits(release) for release in releases}
    except InputError as error:
        print(f"vllm_fits: {error}", file=sys.stderr)
        return 2
    print("\n".join([*table(found), *missing(found)]))
    if wanted.docs:
        wanted.docs.write_text(document(found, ROOT / "docs"), encoding="utf-8")
    return int(any(fit.missing for parts in found.values() for fit in parts))


if __name__ == "__main__":
    sys.exit(main())
