"""The file beside docs/data/process-changes.md lists what the harness looks at in the process of a
plug-in, as the code has it, and docs/judge-your-kernel.md has its numbers.
"""

from __future__ import annotations

import csv
from pathlib import Path

from harness.kernels.watched import WATCHED
from harness.memory.triton_interpreter import REPAIRED_VERSIONS
from harness.run.plugin_files import CHEAP_SECONDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "judge-your-kernel.md").read_text(encoding="utf-8")
LIST = DOCS / "data" / "process-changes" / "process-changes.csv"


def test_the_page_has_each_row_of_the_table_with_its_reason() -> None:
    _, *rows = csv.reader(LIST.read_text(encoding="utf-8").splitlines())
    kinds = {True: "failure", False: "remark"}
    assert rows == [[row.name, kinds[row.is_failure], row.why] for row in WATCHED]


def test_the_page_has_the_numbers_of_the_code() -> None:
    assert f"takes less than {CHEAP_SECONDS:g} s" in PAGE
    assert f"in version {' and '.join(REPAIRED_VERSIONS)};" in PAGE
