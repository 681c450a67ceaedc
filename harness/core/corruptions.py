"""The table of corrupted calls: for each op what is wrong with an argument, and what its contract
allows. No torch.

A call is either right or ends in an error that names the argument. Silent garbage is neither.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from harness.core.errors import UnknownNameError
from harness.core.files import read_rows
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS_FOLDER
from harness.core.registry import nearest

Contract = Literal["defined", "values", "undefined"]


@dataclass(frozen=True, slots=True)
class Corruption:
    """One way to corrupt a call.

    `change` is a function of :mod:`harness.ops.parts.corrupted` for the `argument`, `to` its
    parameter. An error must have one of `names`.

    - `right`: the op defines a result. With `means` that is the result of the call with this value
      in place of `to`.
    - `legal`: the arguments keep the contract of the op, so the result is defined and every kernel
      must give it.
    - `contract`, of a call that is not legal: `values`: only a look at values in device memory can
      tell; `undefined`: no kernel is asked for anything; `defined`: the host can tell.
    """

    name: str
    argument: str
    change: str
    to: int | float | str | None = None
    means: int | None = None
    right: bool = False
    legal: bool = False
    contract: Contract = "defined"
    names: tuple[str, ...] = ()

    def is_judged(self, spec: KernelSpec) -> bool:
        """Whether `spec` may neither return garbage for this call, nor fail without a clear
        error.
        """
        size = _SIZES.get(self.change)
        # A kernel may refuse a size that it does not declare, though the op allows it.
        fits = size is None or spec.shapes is None or spec.shapes.accepts(size, int(self.to or 0))
        if self.legal and fits:
            return True
        if self.contract == "values":
            return spec.checks == "values"
        return self.contract == "defined" and spec.checks != "nothing"


_SIZES = {"heads": "num_heads"}
"""A change of an argument -> the size that it sets, which a kernel may have declared."""


OTHER_NAMES = {
    "q": ("query", "q_nope", "q_pe"),
    "block_table": ("block_tables", "page_table", "page_tables", "req_to_token", "kv_indices"),
    "seq_lens": (
        "cache_seqlens",
        "seqlens_k",
        "seqused_k",
        "seqlens",
        "kv_len",
        "kv_len_arr",
        "b_seq_len",
        "lengths",
        "context_lens",
    ),
    "kv_cache": (
        "k_cache",
        "kcache",
        "kv",
        "ckv_cache",
        "kpe_cache",
        "kv_c_and_k_pe_cache",
        "kv_buffer",
    ),
    "indices": ("topk_indices",),
    "slot_mapping": ("loc", "slots"),
    "query_start_loc": ("cu_seqlens_q", "cum_seq_lens_q", "qo_indptr"),
    "chunk_start_loc": ("cu_seqlens_k", "cum_seq_lens_kv", "kv_indptr"),
    "positions": ("token_indices",),
    "requests": ("req_id", "req_ids", "request"),
    "cu_seq_lens": ("cu_seq_lens_kv", "cu_seqlens"),
    "expert_offsets": ("offsets",),
    "num_heads": ("h_q", "heads", "num_qo_heads", "head"),
    "page_size": ("page_block_size", "block_size", "page"),
    "metadata": ("tile_scheduler_metadata", "num_splits", "plan"),
    "num_experts_per_tok": ("topk",),
}
"""Words by which an error may name an argument as well."""


@functools.cache
def corruptions(op: str) -> dict[str, Corruption]:
    """The corrupted calls of an op by name."""
    file = OPS_FOLDER / op / "corruptions.yaml"
    found = {}
    for name, row in (read_rows(file) if file.is_file() else {}).items():
        named = (row["argument"], *row.get("names", ()))
        right = row.get("right", False) or row.get("legal", False)
        every = dict.fromkeys(word for one in named for word in (one, *OTHER_NAMES.get(one, ())))
        found[name] = Corruption(name, **{**row, "names": tuple(every), "right": right})
    return found


def corruptions_named(op: str, name: str) -> tuple[Corruption, ...]:
    """The corrupted call `name` of an op, or `all` of them.

    Raises UnknownNameError with the nearest name.
    """
    known = corruptions(op)
    if name not in ("", "all", *known):
        raise UnknownNameError(
            f"unknown corrupted call of {op} {name!r};"
            f" {nearest(name, ['all', *known], see='docs/ops.md')}"
        )
    return tuple(known.values()) if name == "all" else (known[name],) if name else ()
