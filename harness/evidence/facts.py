"""Facts of a run that no oracle judges: they may make a pass a skip, or explain a finding."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.oracles import OracleSpec


@dataclass(frozen=True, slots=True)
class Happened:
    """How often each event of an engine happened in a run."""

    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Allocated:
    """The `lines` of the engine's code that allocated memory of a site and left some unwritten."""

    site: str
    lines: list[str]


ORACLES: tuple[OracleSpec, ...] = ()
