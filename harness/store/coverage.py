"""What the calls of a run showed of the conditions of each op: counts, the combinations that are
missing, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from harness.core.cases import Job
from harness.core.catalog import KERNELS
from harness.core.conditions.model import Combination, Shown, words
from harness.core.conditions.table import SPACES, space_at, space_for
from harness.core.records import CaseResult, Verdict

STRENGTHS = {1: "classes", 2: "pairs", 3: "triples"}
EVERY_KERNEL = "all"


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the calls of one kernel of an op showed, or of all its kernels together."""

    op: str
    kernel: str
    shown: Shown
    others: Mapping[str, set[str]] = field(default_factory=dict)
    """Verdict and reason of cases that did not pass, with the first of them as example -> the
    points of these cases.
    """

    def unmet_pairs(self) -> dict[str, list[Combination]]:
        """Why pairs were not met -> these pairs."""
        left = list(self.shown.unmet(2))
        found = {}
        for why, points in self.others.items():
            part = Shown(self.shown.space)
            part.add(points)
            if here := [pair for pair in left if part.has(pair)]:
                found[why] = here
                # A pair is told once, with the first reason that explains it.
                left = [pair for pair in left if not part.has(pair)]
        return found | ({"no call shows it": left} if left else {})

    def share(self, strength: int) -> str:
        """`100 %`, which no smaller share is rounded to."""
        met, every = self.shown.counts(strength)
        return f"{100 * met // every} %" if every else "none"

    @property
    def statement(self) -> str:
        """`mla_decode: pairs 100 %, triples 92 %`."""
        return f"{self.op}: pairs {self.share(2)}, triples {self.share(3)}"

    def refusals(self) -> dict[str, list[str]]:
        """Why combinations are not allowed -> these combinations.

        Classes that a kernel refuses stand alone.
        """
        space = self.shown.space
        found: dict[str, list[str]] = {}
        for label, why in space.refused.items():
            found.setdefault(why, []).append(words([label]))
        for pair, why in space.refused_pairs():
            if not any(label in space.refused for label in pair):
                found.setdefault(why, []).append(words(pair))
        return found


def coverages(results: Iterable[CaseResult], jobs: Mapping[str, Job]) -> Iterator[Coverage]:
    """For each op with conditions: all its kernels together, then each kernel.

    Only cases that passed count.

    What all kernels of the run refuse does not count. Points that other classes coded are left out.
    """
    points: dict[str, dict[str, set[str]]] = {}
    others: dict[tuple[str, str], dict[Verdict, tuple[str, set[str]]]] = {}
    for result in results:
        for key, found in result.shown.items():
            space_of_points = space_at(key)
            if not found or space_of_points is None:
                continue
            op = space_of_points.op
            kernel = jobs[result.key].case.kernels().get("kernel", op)
            seen = points.setdefault(op, {}).setdefault(kernel, set())
            if result.verdict is not Verdict.PASS:
                words_of = result.reason or next(
                    (finding.message for finding in result.findings), ""
                )
                why = f"{result.verdict.value}, such as {result.id}: {words_of}"
                seen = others.setdefault((op, kernel), {}).setdefault(result.verdict, (why, set()))[
                    1
                ]
            seen.update(found)
    for op in (op for op in SPACES if op in points):
        by_kernel = points[op]
        by_kernel = {name: found for name, found in by_kernel.items() if found}
        spaces = {
            name: space_for(KERNELS.get(name)) if name in KERNELS else SPACES[op]
            for name in by_kernel
        }
        # The engine is no kernel, and stands alone.
        spaces.pop(op, None)
        refused = {label: why for space in spaces.values() for label, why in space.refused.items()}
        by_all = {
            label: why
            for label, why in refused.items()
            if all(label in s.refused for s in spaces.values())
        }
        whole = replace(SPACES[op], refused=by_all)
        if not by_kernel:
            continue
        for name, space in {EVERY_KERNEL: whole, **spaces}.items():
            shown = Shown(space)
            shown.add(by_kernel[name] if name in by_kernel else set().union(*by_kernel.values()))
            yield Coverage(op, name, shown, dict(others.get((op, name), {}).values()))
