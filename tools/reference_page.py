"""docs/reference.md: the tables of oracles, sites and kernels in the text of
`reference_template.md`.
"""

from __future__ import annotations

from pathlib import Path

from harness.core.catalog import KERNELS, ORACLES, SITES
from harness.core.ops import OPS
from harness.report.markdown import table
from harness.report.table import COLUMNS

TEXT = Path(__file__).with_name("reference_template.md")
"""The page with `{oracles}`, `{sites}`, `{kernels}` and `{columns}` in place of the tables."""


def reference() -> str:
    tables = {
        "oracles": table(
            ("oracle", "passes when"), [(f"`{one.name}`", one.summary) for one in ORACLES]
        ),
        "sites": table(("site", "memory"), [(f"`{one.name}`", one.summary) for one in SITES]),
        "columns": table(
            ("column", "holds"), [(f"`{name}`", words) for name, words in COLUMNS.items()]
        ),
        "kernels": table(("op", "kernels", "devices", "KV cache"), _kernels()),
    }
    page = TEXT.read_text(encoding="utf-8")
    for name, found in tables.items():
        page = page.replace(f"{{{name}}}", found)
    return page


def _kernels() -> list[tuple[str, ...]]:
    rows = []
    for op in OPS:
        specs = [spec for spec in KERNELS if spec.op == op.name]
        kinds = dict.fromkeys(kv for spec in specs for kv in spec.kv)
        rows.append(
            (
                f"`{op.name}`",
                ", ".join(f"`{spec.short_name}`" for spec in specs),
                ", ".join(sorted({device for spec in specs for device in spec.devices})),
                ", ".join(kinds) if "cache" in op.signature else "none",
            )
        )
    return rows
