"""What the harness does in each process of a served engine. No torch here.

Every engine has the same plan. An adapter brings the plan into its processes in its own way: vLLM's
workers read it from their environment, SGLang's schedulers get it as an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.api import Record

if TYPE_CHECKING:
    from torch_poison.patterns import Poison

PATTERNS = ("nan", "max")
"""Patterns of a scenario that the hooks fill. Any other leaves memory as it is."""


@dataclass(frozen=True, slots=True)
class ServePoison:
    """Which sites of a served engine are filled, with which pattern, and on which rank; None is all
    ranks.
    """

    sites: tuple[str, ...]
    pattern: str = "nan"
    rank: int | None = None

    def fills(self, sites: Collection[str]) -> bool:
        """Whether at least one of these sites is filled."""
        return any(site in self.sites for site in sites)

    def is_for(self, rank: int) -> bool:
        """Whether the process of this rank fills anything."""
        return self.rank is None or self.rank == rank

    def text(self) -> str:
        """`SITE,SITE:PATTERN[@RANK]`, as people write it."""
        rank = "" if self.rank is None else f"@{self.rank}"
        return f"{','.join(self.sites)}:{self.pattern}{rank}"


class Plan(Record):
    """What each process of a served engine installs, and where it writes what it has to say."""

    folder: str
    """The folder of the answers, of the reports and of the refusals."""
    poison: ServePoison | None = None
    fault: str = ""
    records: bool = False
    """Whether to record the first NaN."""
    routing: str = ""
    """The strategy that chooses the experts; empty for the model's own choice."""
    streams: str = ""
    """The seed by which copies from pinned memory are delayed and watched; empty for neither."""


@dataclass(frozen=True, slots=True)
class ServedMemory:
    """The memory of an engine that can be filled, and the counts by which a process shows it.

    `counts` has the sites behind each count. A site behind several counts is filled in several
    ways. `always` are counts that a process has without poison too.
    """

    counts: Mapping[str, tuple[str, ...]]
    always: tuple[str, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(site for sites in self.counts.values() for site in sites))

    def poison(
        self, poison: Poison, excluded: Collection[str], rank: int | None = None
    ) -> ServePoison | None:
        """The sites of a case's poison that this engine has, without those `excluded`; None if none
        is left, or if no hook fills the pattern.
        """
        sites = tuple(site for site in self.sites if poison.covers(site) and site not in excluded)
        if poison.pattern not in PATTERNS or not sites:
            return None
        return ServePoison(sites, poison.pattern, rank)

    def unfilled(self, poison: ServePoison, counts: Mapping[str, int]) -> tuple[str, ...]:
        """The sites of the poison of which a process with these counts filled nothing."""
        missing = [
            site
            for count, sites in self.counts.items()
            for site in sites
            if site in poison.sites and not counts.get(count)
        ]
        return tuple(dict.fromkeys(missing))
