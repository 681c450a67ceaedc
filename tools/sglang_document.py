"""Write the measured tables of docs/sglang.md, between two markers, from run folders on GPUs.

mla-harness run -m sglang --out RUNS;  mla-harness run sglang-padded-rows --fault sglang.stale-pad-slots --out RUNS
mla-harness run -m kernel-matrix --device cuda --kernel sglang-triton … --out RUNS
mla-harness run vllm-as-released sglang-as-released -m nightly --out RUNS
python tools/sglang_document.py RUNS [RUNS …] [--later]

`--later` writes the second pair of markers: cases that were run after the first tables.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from markdown_page import brief, table
from matrix_document import release_parts

from harness.accuracy.answer_log import read_run
from harness.core.errors import HarnessError, InputError
from harness.core.records import CaseResult
from harness.engines.base import release_of
from harness.store.run_folder import NEVER_RAN, RunStore

PAGE = Path(__file__).parents[1] / "docs" / "sglang.md"
MARKERS = ("<!-- {}: tools/sglang_document.py -->", "<!-- end of {} -->")
BESIDE = {"TRITON_MLA": "triton", "FLASHMLA": "flashmla"}
"""SGLang's name of each of vLLM's backends."""
Found = list[tuple[RunStore, CaseResult]]


def measured(stores: list[RunStore]) -> str:
    """The tables of all runs: clean cases, faults, SGLang beside vLLM, kernels."""
    all_found = [(store, result) for store in stores for result in store.results()]
    beside = [one for one in all_found if one[1].scenario.endswith("-as-released")]
    served = [one for one in all_found if _release(one[0]) and one[1].scenario.startswith("sglang-")]
    clean = [one for one in served if one not in beside and not one[1].fault and one[1].reason != NEVER_RAN]
    faulty = [one for one in served if one[1].fault]
    parts = [_machine(stores)]
    if clean:
        parts += ["### Clean cases", _by_release(clean, lambda result: result.id)]
    if faulty:
        parts += ["### Faults in a release", _by_release(faulty, lambda result: str(result.fault))]
    if beside:
        parts += ["### Beside vLLM", *_beside(beside)]
    for store in stores:
        if any(result.scenario.startswith("kernel-matrix") for result in store.results()):
            parts += [part.replace("## ", "### ", 1) for part in release_parts(f"Kernels of {_release(store)}", store)]
    return "\n\n".join(parts)


def _release(store: RunStore) -> str:
    return str((store.plan.environment.get("engines") or {}).get("sglang") or "")


def _machine(stores: list[RunStore]) -> str:
    found = set()
    for store in stores:
        machine = store.plan.environment
        names = ", ".join(sorted({gpu["name"] for gpu in machine.get("gpus") or ()}))
        found.add(f"{names}, torch {machine.get('torch')}, Triton {machine.get('triton')}")
    return (
        f"{len(stores)} runs; each saw one GPU: {'; '.join(sorted(found))}. Several cases ran at a time, so seconds are "
        "upper bounds. Accuracy is by epoch."
    )


def _by_release(found: Found, row_of: object) -> str:
    """A row for each case or fault, a column for each release."""
    assert callable(row_of)
    releases = sorted({_release(store) for store, _ in found}, key=release_of)
    cells: dict[str, dict[str, list[str]]] = {}
    for store, result in found:
        cells.setdefault(f"`{row_of(result)}`", {}).setdefault(_release(store), []).append(_outcome(store, result))
    rows = [
        (name, *("; ".join(by_release.get(release, ["not run"])) for release in releases))
        for name, by_release in sorted(cells.items())
    ]
    return table(("", *releases), rows)


def _outcome(store: RunStore, result: CaseResult) -> str:
    """Verdict, accuracy and seconds of a result; of a failure also the first NaN's writer, or the reason."""
    if result.reason == NEVER_RAN:
        return _unfinished(store, result)
    words = [f"{result.verdict.value} {_accuracy(result)}".strip(), f"{result.seconds:.0f} s"]
    blame = store.blames().get(next(job.key for job in store.plan.jobs if job.case.id == result.id))
    writer = blame.first_nan.writer if blame and blame.first_nan else ""
    if writer:
        words.append(f"first NaN: `{re.sub(r'^layers.[0-9]+', 'layers.N', writer)}`")
    elif result.reason:
        words.append(brief(result.reason, 130))
    return ", ".join(words)


def _accuracy(result: CaseResult) -> str:
    return " ".join(f"{epoch.accuracy:.4f}" for epoch in (result.accuracy.epochs if result.accuracy else ()))


def _unfinished(store: RunStore, result: CaseResult) -> str:
    words = "cut off when the machine was given back"
    try:
        answers = read_run(_folder(store, result) / "nan" / "asked").epoch(1)
    except HarnessError:
        return words
    return f"{words}: {sum(one.correct for one in answers)} of {len(answers)} right in the first epoch"


def _folder(store: RunStore, result: CaseResult) -> Path:
    return Path(str(store.placed(next(job for job in store.plan.jobs if job.case.id == result.id)).directory))


def _beside(found: Found) -> Iterator[str]:
    """The same cases on both engines."""
    rows = []
    for store, result in found:
        options = dict(re.findall(r"(\w+)=([^,\]]+)", result.id))
        engines = store.plan.environment["engines"]
        engine = f"SGLang {engines['sglang']}" if engines.get("sglang") else f"vLLM {engines['vllm']}"
        changed = sum(epoch.changed for epoch in result.accuracy.epochs) if result.accuracy else 0
        backend = BESIDE.get(options["backend"], options["backend"])
        differ = _differ(store, result) if options["graph"] != "none" else ""
        rows.append((
            backend, options["kv"], options["graph"], engine, result.verdict.value, _accuracy(result), changed, differ,
            f"{result.seconds:.0f}",
        ))  # fmt: skip
    yield table(
        ("backend", "`kv`", "graph", "engine", "verdict", "accuracy", "changed between epochs",
         "graphs against eager", "seconds"), sorted(rows),
    )  # fmt: skip


def _differ(store: RunStore, result: CaseResult) -> str:
    """How many answers of the first epoch differ between the engine with graphs and without."""
    folders = [_folder(store, result) / "zeros" / name for name in ("asked", "eager")]
    asked, eager = ({one.question: one.answer_hash for one in read_run(folder).epoch(1)} for folder in folders)
    return f"{sum(eager[question] != answer for question, answer in asked.items())} of {len(asked)}"


def _stores(folders: Iterable[str]) -> Iterator[RunStore]:
    for folder in folders:
        for plan in sorted(Path(folder).rglob("run.json")):
            store = RunStore.open(plan.parent)
            if store.plan.seconds:
                yield store


def main(words: list[str]) -> None:
    name = "measured later" if "--later" in words else "measured"
    first, last = (marker.format(name) for marker in MARKERS)
    stores = list(_stores(word for word in words if word != "--later"))
    if not stores:
        raise InputError("no folder with a finished run; name at least one")
    tables = measured(stores)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(first)[0], text.partition(last)[2]
    PAGE.write_text(f"{before}{first}\n{tables}\n{last}{after}", encoding="utf-8")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except HarnessError as error:
        sys.exit(f"sglang_document: {error}")
