"""What the plug-in is told, by the environment. No torch: a serving process reads it before anything."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.errors import InputError
from harness.core.registry import nearest

VARIABLE = "MLA_HARNESS_POISON"
"""Unset or empty, nothing is filled."""
FIRST_NAN_VARIABLE = "MLA_HARNESS_FIRST_NAN"
"""1, or the folder into which each worker's recorder writes."""
FAULT_VARIABLE = "MLA_HARNESS_FAULT"
"""A bug of `harness.engines.vllm.faults` that the plug-in puts back in every process of a server."""
ROUTING_VARIABLE = "VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
"""vLLM's own; where it names STRATEGY, the plug-in registers it."""
STRATEGY = "mla_harness_topk"

FREED = ("output", "lse", "workspace", "context.output", "context.lse", "graph.pool", "graph.pad_rows", "sched_meta")
"""Sites that lie in memory which the caching allocator holds free before a step; one sweep fills them all."""
CONTEXT = ("context.output", "context.lse")
"""Rows of tokens without context, which the op does not promise to write; filled after each context chunk too."""
BLOCKS = ("kv.new", "kv.tail", "kv.null")
"""Sites inside vLLM's own KV pages."""
PATTERNS = ("nan", "max", "finite")
"""`finite` is what an older latent could have left behind: for kernels that are promised finite pages."""
SITES = (*FREED, *BLOCKS)


@dataclass(frozen=True, slots=True)
class ServePoison:
    """Which sites of a serving engine are filled, with what, and on which rank alone; None is all ranks."""

    sites: tuple[str, ...]
    pattern: str = "nan"
    rank: int | None = None

    @property
    def sweeps(self) -> bool:
        """Whether free memory is filled before each step."""
        return any(site in FREED for site in self.sites)

    def is_for(self, rank: int) -> bool:
        """Whether the worker of this rank is asked to fill anything."""
        return self.rank is None or self.rank == rank

    def text(self) -> str:
        """The value of the environment variable."""
        rank = "" if self.rank is None else f"@{self.rank}"
        return f"{','.join(self.sites)}:{self.pattern}{rank}"

    @classmethod
    def parse(cls, text: str) -> ServePoison:
        """Read `SITE,SITE[:PATTERN][@RANK]`, or `all` for the sites. Raises InputError naming what is unknown."""
        what, at, rank = text.strip().partition("@")
        if at and not (rank.isascii() and rank.isdigit()):
            raise InputError(f"{VARIABLE}={text!r}: {rank!r} is no rank; write a number, for example output:nan@1")
        names, _, pattern = what.partition(":")
        pattern = pattern or "nan"
        if pattern not in PATTERNS:
            raise InputError(f"{VARIABLE}={text!r}: unknown pattern {pattern!r}; {nearest(pattern, list(PATTERNS))}")
        sites = tuple(name.strip() for name in names.split(",") if name.strip())
        if sites == ("all",):
            sites = SITES
        for site in sites:
            if site not in SITES:
                raise InputError(f"{VARIABLE}={text!r}: unknown site {site!r}; {nearest(site, list(SITES))}")
        if not sites:
            raise InputError(f"{VARIABLE}={text!r}: names no site; write for example kv.new,output:nan")
        return cls(sites, pattern, int(rank) if at else None)
