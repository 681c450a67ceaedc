"""The contract of `read_records`."""

from __future__ import annotations

from harness.core.contract import Arg, Keyword, Op, Out


class ReadRecords(Op):
    """The records of each request, one request after another, as float32 rows; other slots
    influence no row.
    """

    name = "read_records"

    cache = Arg(
        "N P Y",
        "uint8",
        unowned={
            "kv.tail": "slots of a request's last page at or past its length",
            "kv.free": "pages that belong to no request",
            "kv.null": "page 0, which unused table entries name",
        },
    )
    block_table = Arg(
        "B M",
        "int32",
        unowned={"block_table.pad": "entries past the last page that a request needs"},
    )
    cu_seq_lens = Arg(
        "B+1", "int32", "request b has the tokens cu_seq_lens[b] to cu_seq_lens[b + 1]"
    )

    record_format = Keyword("str", "the name of a record format in docs/reference.md")
    scale = Keyword("float | None", "the scale of the whole cache, for formats that have one")

    out = Out("T W", "float32", site="output")


CONTRACT = ReadRecords()
