"""What the plug-in is told, as one line in MLA_HARNESS_POISON. No torch: a serving process reads it before anything."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import InputError
from harness.registry import nearest

VARIABLE = "MLA_HARNESS_POISON"
"""Unset or empty, the plug-in does nothing."""

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
    """Which sites of a serving engine are filled, and with what."""

    sites: tuple[str, ...]
    pattern: str = "nan"

    @property
    def sweeps(self) -> bool:
        """Whether free memory is filled before each step."""
        return any(site in FREED for site in self.sites)

    def text(self) -> str:
        """The value of the environment variable."""
        return f"{','.join(self.sites)}:{self.pattern}"

    @classmethod
    def parse(cls, text: str) -> ServePoison:
        """Read `SITE,SITE[:PATTERN]`, or `all[:PATTERN]`. Raises InputError naming what is unknown."""
        names, _, pattern = text.strip().partition(":")
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
        return cls(sites, pattern)
