"""Print a page of docs/ that is written from code or from a run: python tools/pages.py PAGE [RUN]

`ops`, `reference` and `scenario-keys` come from the code: write them to docs/PAGE.md. `bugs` comes
from a run of `mla-harness selftest`: write it to docs/data/bugs.md. Then
`python tools/records.py docs/data/bugs.md` puts its table into a file beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import bugs_page
import ops_page
import reference_page
import scenario_page

from harness.core.errors import HarnessError
from harness.store.run_folder import RunStore

PAGES = {
    "ops": ops_page.ops,
    "reference": reference_page.reference,
    "scenario-keys": scenario_page.document,
}


def page(words: list[str]) -> str:
    """The page that the words of the command line name. Exits with the usage for other words."""
    match words:
        case ["bugs", run]:
            return bugs_page.document(RunStore.open(Path(run)))
        case [name] if name in PAGES:
            return PAGES[name]()
    sys.exit(
        f"usage: python tools/pages.py {'|'.join(PAGES)}, or python tools/pages.py bugs"
        " RUN_DIRECTORY"
    )


if __name__ == "__main__":
    try:
        print(page(sys.argv[1:]).rstrip())
    except HarnessError as error:
        sys.exit(f"pages: {error}")
