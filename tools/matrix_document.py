"""Write docs/kernel-matrix.md from runs of the matrix over all kernels of a release, on one GPU.

mla-harness run -m kernel-matrix --device cuda --per-gpu 6 --out RUNS
python tools/matrix_document.py RELEASE=RUN [RELEASE=RUN …] > docs/kernel-matrix.md
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from markdown_page import brief, main, table

from harness.core.records import BAD, CaseResult, Verdict
from harness.scenario.load import load_scenarios
from harness.store.run_folder import NEVER_RAN, RunStore

OP_OF = {scenario.name: scenario.op for scenario in load_scenarios(None)}
RECORD_OPS = {"write_records": "writer", "read_records": "reader"}
VERDICTS = [verdict for verdict in Verdict if verdict is not Verdict.KNOWN]


def document(runs: dict[str, RunStore]) -> str:
    """The page: for each release its cells by kernel and verdict, and the groups of cells that are not clean."""
    parts = [part for release, store in runs.items() for part in release_parts(release, store)]
    return (
        "# Every kernel on every axis\n\n"
        + (
            "Written by `python tools/matrix_document.py` from runs of `mla-harness run -m kernel-matrix`; nothing here is "
            "typed by hand. A cell is one case: a kernel, a cache type, and a point of the axes of a `kernel-matrix-*` "
            "scenario. [findings.md](findings.md) explains the cells that are not clean.\n\n"
        )
        + "\n\n".join([*parts, *_records(runs)])
    )


def _records(runs: dict[str, RunStore]) -> Iterator[str]:
    """Who writes and reads which record format, with the cells by verdict in each release."""
    found: dict[tuple[str, str, str], dict[str, Counter[Verdict]]] = {}
    for release, store in runs.items():
        for result in store.results():
            op, _, kernel = _kernel(result).partition("/")
            if op in RECORD_OPS:
                row = found.setdefault((_named(result, "kv"), op, kernel), {})
                row.setdefault(release, Counter())[result.verdict] += 1
    if found:
        yield "## Record formats: writers and readers"
        yield (
            "Each writer's bytes are decoded, and each reader gets bytes that were encoded, by this project's own "
            "description of the format ([record-formats.md](record-formats.md))."
        )
        rows = [
            (f"`{kv}`", RECORD_OPS[op], f"`{kernel}`", *(_counts(by_release.get(release)) for release in runs))
            for (kv, op, kernel), by_release in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] < "s"))
        ]
        yield table(("`kv`", "", "kernel", *runs), rows)


def _counts(found: Counter[Verdict] | None) -> str:
    return ", ".join(f"{count} {verdict.value}" for verdict, count in (found or {}).items())


def release_parts(release: str, store: RunStore) -> Iterator[str]:
    """A heading, the machine, and the tables of one release."""
    results = [result for result in store.results() if not result.reason.startswith(NEVER_RAN)]
    machine = store.plan.environment
    gpu = next(iter(machine.get("gpus") or ()), {})
    engines = ", ".join(f"{name} {version}" for name, version in (machine.get("engines") or {}).items() if version)
    yield f"## {release}"
    yield (
        f"{gpu.get('name', 'no GPU')}, torch {machine.get('torch', '?')}, {engines or 'no engine'}: {len(results):,} "
        f"of {len(store.plan.jobs):,} cells in {store.plan.seconds:.0f} s."
    )
    counts: dict[str, Counter[Verdict]] = {}
    for result in results:
        counts.setdefault(_kernel(result), Counter())[result.verdict] += 1
    rows = [[f"`{name}`", *(found[verdict] or "" for verdict in VERDICTS)] for name, found in sorted(counts.items())]
    total = sum(counts.values(), Counter[Verdict]())
    yield table(("kernel", *(v.value for v in VERDICTS)), [*rows, ["**all**", *(total[v] or "" for v in VERDICTS)]])
    groups: dict[tuple[str, str, str, str], list[CaseResult]] = {}
    for result in results:
        if result.verdict in BAD:
            oracle = result.findings[0].oracle if result.findings else ""
            key = (_kernel(result), result.scenario, f"{result.verdict.value} {oracle}", _alike(result.reason))
            groups.setdefault(key, []).append(result)
    if groups:
        bad = [
            (f"`{name}`", scenario, verdict, len(found), f"`{found[0].id}`", brief(_plain(found[0]), 160))
            for (name, scenario, verdict, _), found in groups.items()
        ]
        yield table(("kernel", "scenario", "verdict", "cells", "first cell", "its reason"), bad)
    skips = [result.reason for result in results if result.verdict is Verdict.SKIP]
    skipped = Counter(map(_alike, skips))
    if skipped:
        first = {_alike(reason): reason for reason in reversed(skips)}
        yield table(("skipped", "cells"), [(brief(first[key], 160), count) for key, count in skipped.most_common()])


def _kernel(result: CaseResult) -> str:
    return f"{OP_OF.get(result.scenario, result.scenario)}/{_named(result, 'kernel')}"


def _named(result: CaseResult, axis: str) -> str:
    found = re.search(rf"\b{axis}=([^,\]]+)", result.id)
    return found[1] if found else "?"


def _alike(reason: str) -> str:
    """A reason without the numbers, patterns and case ids in which equal failures differ."""
    return re.sub(r"\S+\[[^\]]*\]|\(pattern \w+\)|(?<!\w)-?\d+(\.\d+)?(e-?\d+)?", "#", reason).partition("; # of")[0]


def _plain(result: CaseResult) -> str:
    return result.reason.removeprefix(f"{result.id}: ")


def _stores(words: list[str]) -> dict[str, RunStore]:
    return {release: RunStore.open(Path(run)) for release, _, run in (word.partition("=") for word in words)}


if __name__ == "__main__":
    main("RELEASE=RUN...", lambda words: document(_stores(words)))
