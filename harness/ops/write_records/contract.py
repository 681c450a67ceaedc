"""The contract of `write_records`."""

from __future__ import annotations

from harness.core.contract import Arg, Keyword, Op


class WriteRecords(Op):
    """Stores rows as records in the blocks of a byte cache; negative slots are skipped.

    The cache may be one layer's part of blocks of several layers. docs/reference.md has the
    formats.
    """

    name = "write_records"
    scratch = ("kv.new",)

    x = Arg("T W", "bfloat16", unowned={"graph.pad_rows": "rows with a negative slot"})
    cache = Arg(
        "N P Y",
        "uint8",
        unowned={
            "kv.free": "pages that belong to no request",
            "kv.null": "page 0, which belongs to no request",
        },
        is_written=True,
    )
    slot_mapping = Arg("T", "int64", "page * P + place")

    record_format = Keyword("str", "the name of a record format in docs/reference.md")
    scale = Keyword("float | None", "the scale of the whole cache, for formats that have one")


CONTRACT = WriteRecords()
