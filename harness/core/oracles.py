"""What an oracle says of itself, and the oracles that the harness has; engines add their own.

No torch here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.core.registry import attribute_at

LAST = 1000
"""The rank of an oracle that names none, and of one that no registry has."""

BETWEEN_PATTERNS = "patterns"
"""The need of an oracle that compares runs under several poison patterns."""


@dataclass(frozen=True, slots=True)
class OracleSpec:
    """One oracle; `impl` takes an `Evidence` and returns a `Judgement`.

    An engine names it as "module:function", so that its tables load no torch.

    `needs` is what a case must have, in the words of `Params.gives`; an oracle without a need
    judges any case. An oracle that judges `by_default` need not be named by a scenario.

    `rank` orders the findings of a failure, the lowest first: a mechanism explains a symptom.

    - below 100: the run ended, or nothing that it computed can be trusted
    - 100 to 199: a contract between two parts of an engine is broken
    - 200 to 299: memory that holds no result was read
    - 300 to 399: a value is wrong
    - 400 to 499: answers differ that should be alike
    """

    name: str
    summary: str
    impl: str | Callable[[Any], Any]
    needs: str = ""
    rank: int = LAST
    by_default: bool = False

    def judge(self, evidence: Any) -> Any:
        """The `Judgement` of an `Evidence`. Their types belong to a higher floor."""
        judge = attribute_at(self.impl) if isinstance(self.impl, str) else self.impl
        return judge(evidence)


def own_oracles() -> tuple[OracleSpec, ...]:
    """The `ORACLES` of every kind of evidence, the most telling first.

    The kinds are the files of `harness/evidence`, so a new one needs no list.
    """
    folder = importlib.import_module("harness.evidence")
    kinds = (
        importlib.import_module(f"harness.evidence.{file.name}")
        for file in pkgutil.iter_modules(folder.__path__)
        if file.name not in folder.NO_KINDS
    )
    found: list[OracleSpec] = [oracle for kind in kinds for oracle in kind.ORACLES]
    return tuple(sorted(found, key=lambda oracle: oracle.rank))
