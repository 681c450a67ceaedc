"""Write the cases of test_mla_reject_or_correct.py from the corrupted calls of this project.

    python contrib/flashinfer/generate.py            # rewrites the part between the two marks
    python contrib/flashinfer/generate.py --check    # exit code 1 if it is not what would be
    written

The arguments get the names of FlashInfer's wrapper. A corruption that the wrapper has no argument
for is left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.core.corruptions import Corruption, corruptions

TARGET = Path(__file__).with_name("test_mla_reject_or_correct.py")
BEGIN, END = "# begin generated cases\n", "# end generated cases\n"
ARGUMENTS = {
    "mla_decode": {
        "block_table": "kv_indices",
        "seq_lens": "kv_len_arr",
        "q": "q_nope",
        "kv_cache": "ckv_cache",
        "metadata": "plan",
    },
    "context_attention": {"query_start_loc": "qo_indptr", "chunk_start_loc": "kv_indptr"},
}
"""Op -> its arguments and those of `plan` and `run`."""
PARAMETERS = (
    "qo_indptr",
    "kv_indptr",
    "kv_indices",
    "kv_len_arr",
    "num_heads",
    "page_size",
    "q_nope",
    "q_pe",
    "ckv_cache",
    "kpe_cache",
)
RELATED = {
    "kv_indices": ("kv_indptr", "kv_len_arr"),
    "kv_len_arr": ("kv_indptr", "qo_indptr"),
    "q_nope": ("q_pe", "q_data_type"),
    "ckv_cache": ("kpe_cache", "kv_data_type"),
    "plan": ("qo_indptr", "q_nope"),
    "kv_indptr": ("kv_indices", "qo_indptr"),
}
"""Argument -> others that an error may name in place of it: they disagree with it."""
LEFT_OUT = ("starts-int64", "keys-none", "plan-of-shorter-requests", "fewer-starts")
"""Another index type is another compiled module; empty requests are `lengths-zero`; the others are
no error there.
"""
NUMBERS = {"blocks": "pages", "columns": "past-pages"}


def cases() -> list[str]:
    """A line of Python for each case."""
    lines = []
    for op, arguments in ARGUMENTS.items():
        for corruption in corruptions(op).values():
            if corruption.argument in arguments and corruption.name not in LEFT_OUT:
                lines.append(_case(corruption, arguments[corruption.argument]))
    return lines


def _case(corruption: Corruption, argument: str) -> str:
    where = "shape"
    if corruption.contract == "values":
        where = "device" if argument == "kv_indices" else "host"
    elif corruption.change in ("repeated", "filled") or (argument, corruption.change) == (
        "kv_indices",
        "fewer",
    ):
        where = "host"
    own = [name for name in corruption.names if name in PARAMETERS]
    names = tuple(dict.fromkeys([argument, *RELATED.get(argument, ()), *own]))
    given = {
        "to": NUMBERS.get(str(corruption.to), corruption.to),
        "right": corruption.right,
        "means": corruption.means,
    }
    words = [repr(corruption.name), repr(argument), repr(corruption.change)]
    words += [
        f"{key}={value!r}"
        for key, value in given.items()
        if value is not None and value is not False
    ]
    words += [f"names={names!r}"] + ([f"where={where!r}"] if where != "shape" else [])
    return f"    Case({', '.join(words)}),".replace("'", '"')


def written(text: str) -> str:
    """The file with its cases replaced."""
    head, _, rest = text.partition(BEGIN)
    return "".join(
        [
            head,
            BEGIN,
            "_CASES = [\n",
            *(f"{line}\n" for line in cases()),
            "]\n",
            END,
            rest.partition(END)[2],
        ]
    )


if __name__ == "__main__":
    before = TARGET.read_text()
    if "--check" in sys.argv[1:]:
        sys.exit(f"{TARGET.name}: run generate.py again" if written(before) != before else 0)
    TARGET.write_text(written(before))
