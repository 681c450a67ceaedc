"""The settings of the plug-in in the environment.

No torch here: a serving process reads them first.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.api import InputError, nearest
from mla_harness_adapters import serving

VARIABLE = "MLA_HARNESS_POISON"
"""What to fill, as `ServePoison.parse` reads it; nothing if unset or empty."""
FIRST_NAN_VARIABLE = "MLA_HARNESS_FIRST_NAN"
"""1, or the folder for the reports of the workers' recorders."""
FAULT_VARIABLE = "MLA_HARNESS_FAULT"
"""A fault of `mla_harness_vllm.faults` to inject into every process of a server."""
STREAMS_VARIABLE = "MLA_HARNESS_STREAMS"
"""A seed: copies from pinned memory are delayed and watched, see `copies`."""
ROUTING_VARIABLE = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
"""A variable of vLLM. The plug-in registers STRATEGY if it has this value."""
STRATEGY = "mla_harness_topk"

FREED = (*serving.FREED, "graph.pad_rows")
CONTEXT = ("context.output", "context.lse")
"""Rows of tokens without context, which a kernel need not write.

They are also filled within a step.
"""
BLOCKS = ("kv.new", "kv.tail", "kv.null")
"""Sites inside vLLM's KV pages."""
TOPK = "sparse.topk"
"""The places that an indexer chose in the step before, in a buffer that all layers share."""
PATTERNS = ("nan", "max", "finite")
"""`finite` has the size of a latent: for kernels that need finite pages."""
SITES = (*FREED, *BLOCKS, TOPK)


@dataclass(frozen=True, slots=True)
class ServePoison:
    """Which sites of a serving engine are filled, with which pattern, and on which rank; None is
    all ranks.
    """

    sites: tuple[str, ...]
    pattern: str = "nan"
    rank: int | None = None

    @property
    def sweeps(self) -> bool:
        """Whether free memory is filled before each step."""
        return any(site in FREED for site in self.sites)

    def is_for(self, rank: int) -> bool:
        """Whether the worker of this rank fills anything."""
        return self.rank is None or self.rank == rank

    def text(self) -> str:
        """The value of the environment variable."""
        rank = "" if self.rank is None else f"@{self.rank}"
        return f"{','.join(self.sites)}:{self.pattern}{rank}"

    @classmethod
    def parse(cls, text: str) -> ServePoison:
        """Read `SITE,SITE[:PATTERN][@RANK]`; `all` stands for all sites.

        Raises InputError for anything else.
        """
        what, at, rank = text.strip().partition("@")
        if at and not (rank.isascii() and rank.isdigit()):
            raise InputError(
                f"{VARIABLE}={text!r}: {rank!r} is no rank; write a number, for example"
                " output:nan@1"
            )
        names, _, pattern = what.partition(":")
        pattern = pattern or "nan"
        if pattern not in PATTERNS:
            raise InputError(
                f"{VARIABLE}={text!r}: unknown pattern {pattern!r};"
                f" {nearest(pattern, list(PATTERNS))}"
            )
        sites = tuple(name.strip() for name in names.split(",") if name.strip())
        if sites == ("all",):
            sites = SITES
        for site in sites:
            if site not in SITES:
                raise InputError(
                    f"{VARIABLE}={text!r}: unknown site {site!r}; {nearest(site, list(SITES))}"
                )
        if not sites:
            raise InputError(
                f"{VARIABLE}={text!r}: names no site; write for example kv.new,output:nan"
            )
        return cls(sites, pattern, int(rank) if at else None)
