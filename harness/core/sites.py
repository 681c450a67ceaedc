"""The one table of sites, the kinds of memory that the poison can fill, and the bits of its sentinels. No torch."""

from __future__ import annotations

from dataclasses import dataclass

QUIET_BITS = {"bfloat16": 0x7FC0, "float16": 0x7F40, "float32": 0x7FD50000, "float64": 0x7FF8_5EED_0000_0000}
"""The sentinel without its tag. Other types have no room for a tag: their sentinel is all ones."""

TAG_MASK = 0x3F

OUT_OF_RANGE = 2_147_480_000
"""The index of strict mode: no pool has so many pages, so a read through it must fault (after FlashMLA's tests)."""


@dataclass(frozen=True, slots=True)
class Site:
    """A kind of memory that a kernel or an engine could read before it is written.

    `tag` (1..60) is the number in the payload of a NaN sentinel. Stored results contain it, so a tag is never reused.
    """

    name: str
    tag: int
    summary: str


SITES: tuple[Site, ...] = (
    Site("output", 1, "rows of a kernel's output that it does not write, such as padded requests"),
    Site("lse", 2, "entries of a decode kernel's log-sum-exp that it does not write"),
    Site("workspace", 3, "scratch that a kernel allocates for itself: split-KV partials, semaphores"),
    Site("context.output", 4, "context-attention output of tokens that have no context in this chunk"),
    Site("context.lse", 5, "context-attention log-sum-exp of tokens that have no context in this chunk"),
    Site("kv.tail", 6, "slots of a request's last page at or past its length"),
    Site("kv.free", 7, "pages that belong to no request"),
    Site("kv.new", 8, "a block at the moment it is given to a request, before the request writes it"),
    Site("kv.null", 9, "block 0, which unused block-table entries point to"),
    Site("block_table.pad", 10, "block-table entries past the last page a request needs"),
    Site("graph.pad_rows", 11, "rows of a captured batch past the live requests"),
    Site("graph.pool", 12, "memory of a graph's private pool that is free for reuse between replays"),
    Site("sched_meta", 13, "the split-KV plan before this step's planning wrote it"),
    Site("scale.pad", 14, "rows past the live tokens in the input of a quantizer"),
    Site("router.ids", 15, "the expert-id buffer before the router wrote it"),
    Site("router.weights", 16, "the expert-weight buffer before the router wrote it"),
    Site("sparse.logits", 17, "an indexer's scores of slots past a request's length"),
    Site("sparse.topk", 18, "the buffer of token positions that an indexer's top-k fills"),
    Site("context.pad", 23, "columns past the value dim, where a context output is part of a wider tensor"),
    Site("scale.blocks", 24, "rows of a block-scale tensor that round it up to whole tiles"),
    Site("dp.pad_rows", 25, "rows that pad a data-parallel rank's tokens to the longest rank's"),
    Site("kv.neighbor", 26, "memory beside a layer's pages: pages of other layers, padding between pages"),
    Site("weights.gone", 30, "weights, and tensors made of them, that a reload replaced or a sleep unmapped"),
    Site("kv.unmapped", 31, "the KV pool after a sleep unmapped it"),
    Site("move.unsent", 27, "memory that was given for a move, and that nothing was moved to"),
    Site("move.foreign", 28, "memory that holds what belongs to another layer, group, rank, token or sequence"),
    Site("move.late", 29, "memory that a former owner's copy wrote after it was given away"),
)
