"""The page that `vllm_report.py` writes: folders of runs in, Markdown out."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
FAULTS = {
    "vllm.plan-in-warmup-only": ("vllm-project/vllm#42444", "vllm-mrv2-capture", ("graph=full",)),
    "vllm.fresh-plan-each-step": ("vllm-project/vllm#35175", "vllm-fp8-decode-graphs", ("graph=full",)),
    "vllm.merge-ignore-context-count": ("vllm-project/vllm#36540", "vllm-mixed-context", ("backend=FLASHMLA",)),
    "vllm.skip-zero-new-blocks": (
        "vllm-project/vllm#43961", "vllm-kv-cache-full",
        ("backend=FLASHMLA", "backend=FLASH_ATTN_MLA", "backend=TRITON_MLA"),
    ),
    "vllm.router-int64-ids": ("vllm-project/vllm#38359", "vllm-expert-ids", ("routing=simulated",)),
    "vllm.context-for-first-rows": ("vllm-project/vllm#50613", "vllm-batch-order", ("runner=v2",)),
}  # fmt: skip
"""By fault: the PR that mended it, and the scenario and points of its matrix in which it is put back."""
BARE = ("vllm-context-rows", "vllm.merge-ignore-context-count")
"""Taken out without any poison: what a Hopper GPU shows by itself."""


RANKS = {
    "ranks-clean": ("", ("vllm-tensor-parallel", "vllm-tensor-parallel-context", "vllm-tensor-parallel-pages")),
    "ranks-merge": ("vllm.merge-ignore-context-count", ("vllm-tensor-parallel-context[poisoned=rank-1]",)),
    "ranks-plan": ("vllm.fresh-plan-each-step", ("vllm-tensor-parallel[serves=fp8-graphs]",)),
    "ranks-warm-up": ("vllm.plan-in-warmup-only", ("vllm-tensor-parallel[serves=second-runner]",)),
    "ranks-router": ("vllm.router-int64-ids", ("vllm-tensor-parallel[serves=experts]",)),
    "ranks-pages": ("vllm.skip-zero-new-blocks", ("vllm-tensor-parallel-pages",)),
}
"""What is split over two GPUs: the bug that is put back, and the cases."""


def document(out: list[Path]) -> str:
    """The page of all folders, oldest first."""
    releases = sorted({path.name for folder in out for path in folder.iterdir() if (path / "clean-1").is_dir()})
    parts = [HEAD, machine(out, releases), *fault_table(out, releases), *writers(out, releases)]
    parts += [*ranks_table(out, releases), *clean_table(out, releases), *susceptibility(out, releases)]
    return "\n".join(parts).rstrip() + "\n"


def results(place: Path) -> list[dict[str, Any]]:
    """Results of the runs below `place`, as far as they got; of two for one case the later holds."""
    files = sorted(place.glob("run/*/results.jsonl"))
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [result for result in {r["id"]: r for r in found}.values() if not result["reason"].startswith("never ran")]


def curve(result: dict[str, Any]) -> str:
    """Accuracy by epoch, or nothing."""
    record = result.get("accuracy")
    return ", ".join(f"{epoch['accuracy']:.4f}" for epoch in record["epochs"]) if record else ""


HEAD = """# vLLM under the harness

Made by `tools/vllm_report.py` from runs on one GPU each, and on two where it says so; the canaries measure inference,
not ability. Accuracy is by epoch over the first questions of `gsm_symbolic`; a crash shows the serving process's last
words. Times include starting vLLM, and several processes shared a GPU: they are no benchmark. What the tables mean, and
what they leave open, is in [findings.md](findings.md).
"""


def machine(out: list[Path], releases: list[str]) -> str:
    """One line on where it ran."""
    gpus: dict[str, None] = {}
    words: list[str] = []
    for folder, release in itertools.product(out, releases):
        for plan in sorted((folder / release).glob("*/run/*/run.json")):
            environment = json.loads(plan.read_text()).get("environment") or {}
            gpus |= {gpu["name"]: None for gpu in environment.get("gpus") or []}
            words = [
                f"{key} {environment[key]}" for key in ("python", "torch", "triton") if environment.get(key)
            ] or words
    return f"Machines: {' and '.join(gpus)}; {', '.join(words)}; vLLM {', '.join(releases)}.\n"


def fault_table(out: list[Path], releases: list[str]) -> Iterator[str]:
    """Bugs by release: as released, and with the fault put back."""
    from harness.engines.vllm.faults import why_not

    yield "## The five PRs, and the order of a batch\n"
    yield "| PR | vLLM | as released | fault put back | the harness says |\n|---|---|---|---|---|"
    for fault, (ref, scenario, points) in FAULTS.items():
        for release, point in itertools.product(releases, points):
            case = f"{scenario}[{point}]"
            clean, as_released = newest(out, release, "clean-1", case)
            faulty, with_fault = newest(out, release, fault, case)
            if faulty is None and "as released" in (why_not(fault, release) or ""):
                faulty, with_fault = {"verdict": "skip", "reason": ""}, "has the bug itself"
            where = f"{ref}, `{point}`" if len(points) > 1 else ref
            yield f"| {where} | {release} | {as_released} | {with_fault} | {cell(says(clean, faulty))} |"
    yield ""
    for release in releases:
        bare, words = newest(out, release, "bare", BARE[0])
        if bare is not None:
            ref = FAULTS[BARE[1]][0]
            yield f"With the fix of {ref} taken out of {release} and nothing filled in: {words}.\n"


Told = tuple[dict[str, Any] | None, str]


def newest(out: list[Path], release: str, name: str, case: str) -> Told:
    """The last result of a case, in words too; a time-out only where there is nothing else."""
    late: Told = (None, "not run")
    for folder in reversed(out):
        place = folder / release / name
        result = next((result for result in results(place) if result["id"] == case), None)
        if result is None:
            continue
        found = (result, told(result, partial(place, case)))
        if not timed_out(result):
            return found
        late = late if late[0] else found
    return late


def timed_out(result: dict[str, Any]) -> bool:
    """Whether it met the harness's own limit: nothing was seen of vLLM but that its machine was busy."""
    reason: str = result["reason"]
    return reason.startswith("no answer within")


def says(clean: dict[str, Any] | None, faulty: dict[str, Any] | None) -> str:
    """What the harness said of the fault, or of the release that has it itself."""
    if faulty is None:
        return "not run"
    if faulty["verdict"] == "pass":
        return "not caught: the poison changed no answer; the matrix below says what this kernel lets through"
    if faulty["verdict"] == "skip" and clean is not None:
        return clean["reason"] or "has the bug as released, and it changed no answer"
    reason: str = faulty["reason"]
    return reason


def partial(place: Path, case: str) -> str:
    """Accuracy of the epochs that were answered whole before a serving process died."""
    right: dict[int, list[bool]] = {}
    for file in sorted(place.glob(f"run/*/accuracy/{slug(case)}*/nan/asked/accuracy.jsonl"))[-1:]:
        header, *rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            right.setdefault(row["epoch"], []).append(row["correct"])
        whole = [answers for answers in right.values() if len(answers) == len(header["questions"])]
        return ", ".join(f"{sum(answers) / len(answers):.4f}" for answers in whole)
    return ""


def poisoned(place: Path, case: str) -> str:
    """What the poison filled in a case: sweeps of free memory, KV blocks, rows of context attention."""
    for file in sorted(place.glob(f"run/*/accuracy/{slug(case)}/nan/asked/poison.json"))[-1:]:
        found = json.loads(file.read_text())
        words = {"sweeps": "sweeps", "blocks": "blocks", "context_rows": "context rows"}
        return ", ".join(f"{found[key]:,} {word}" for key, word in words.items() if found.get(key))
    return ""


def slug(case: str) -> str:
    """The folder of a case's answers."""
    return re.sub(r"[^A-Za-z0-9_.=]+", "-", case).strip("-")


def told(result: dict[str, Any] | None, before: str = "") -> str:
    """One result in a cell: verdict, curve, seconds; of a crash, `before` is the curve up to it."""
    if result is None:
        return "not run"
    if result["verdict"] == "skip":
        return "has the bug itself" if "as released" in result["reason"] else f"skipped: {cell(result['reason'])}"
    known = curve(result) or (f"after {before}" if before else "")
    verdict = "timed out" if timed_out(result) else result["verdict"]
    return ", ".join(filter(None, [f"**{verdict}**", known, f"{result['seconds']:.0f} s"]))


def cell(text: str, most: int = 240) -> str:
    """Text that fits a Markdown table."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= most else flat[: most - 1] + "…"


ROUNDS = 3
"""How many runs of a clean case the page shows, the last ones."""


def clean_table(out: list[Path], releases: list[str]) -> Iterator[str]:
    """The clean scenarios, each of their last runs, oldest first; apart, those whose bug the release has itself."""
    own = own_bugs(releases)
    found = {release: rounds(out, release) for release in releases}
    clean, buggy, failed = [], [], []
    for release in releases:
        for case, runs in sorted(found[release].items()):
            cells = [told(result, partial(place, case)) for place, result in runs]
            filled = next(filter(None, (poisoned(place, case) for place, _ in reversed(runs))), "")
            cells += ["not run"] * (ROUNDS - len(cells))
            ref = own.get((release, case))
            if ref and runs[-1][1]["verdict"] != "skip":
                buggy.append(f"| `{case}` | {release} | {ref} | {' | '.join(cells)} |")
                continue
            clean.append(f"| `{case}` | {release} | {' | '.join(cells)} | {filled} |")
            failed += [
                f"- `{case}` on {release}: {cell(result['reason'])}"
                for _, result in runs
                if result["verdict"] not in ("pass", "skip")
            ]
    columns = " | ".join(f"run {n + 1}" for n in range(ROUNDS))
    yield "## Clean scenarios\n"
    yield from (f"- {release}: {tally(found[release], own, release)}" for release in releases)
    yield f"\n| case | vLLM | {columns} | filled in the last |\n|---|---|{'---|' * ROUNDS}---|"
    yield from clean
    if failed:
        yield "\n### Not passed\n"
        yield from failed
    if buggy:
        yield "\n### Bugs that a release has itself\n"
        yield f"Nothing is put back here: the release has the bug.\n\n| case | vLLM | bug | {columns} |"
        yield f"|---|---|---|{'---|' * ROUNDS}"
        yield from buggy
    yield ""


Rounds = dict[str, list[tuple[Path, dict[str, Any]]]]


def rounds(out: list[Path], release: str) -> Rounds:
    """Case -> its last runs with their folders, oldest first; a skip only where it never ran."""
    found: Rounds = {}
    for folder in out:
        for place in sorted((folder / release).glob("clean-*")):
            for result in results(place):
                if not needs_more_gpus(result):
                    found.setdefault(result["id"], []).append((place, result))
    for case, runs in found.items():
        found[case] = ([run for run in runs if run[1]["verdict"] != "skip"] or runs[-1:])[-ROUNDS:]
    return found


def tally(found: Rounds, own: dict[tuple[str, str], str], release: str) -> str:
    """How many clean cases passed each time they were run, and how often, in one line."""
    ran = {case: [result["verdict"] for _, result in runs] for case, runs in found.items()}
    ran = {case: verdicts for case, verdicts in ran.items() if verdicts != ["skip"]}
    clean = {case: verdicts for case, verdicts in ran.items() if (release, case) not in own}
    passed = [verdicts for verdicts in clean.values() if set(verdicts) == {"pass"}]
    fewest = min(map(len, clean.values()), default=0)
    times = {1: "once", 2: "twice"}.get(fewest, f"{fewest} times in a row")
    words = f"{len(passed)} of {len(clean)} clean cases passed, {'each ' if fewest > 1 else ''}{times}"
    caught = [verdicts for case, verdicts in ran.items() if (release, case) in own]
    seen = sum(verdict not in ("pass", "skip") for verdicts in caught for verdict in verdicts)
    return words + (f"; of bugs of its own {seen} of {sum(map(len, caught))} runs failed" if caught else "")


def own_bugs(releases: list[str]) -> dict[tuple[str, str], str]:
    """(release, case) -> the bug, where a scenario declares a fault for the case that the release has itself."""
    from harness.core.catalog import FAULTS
    from harness.engines.vllm.faults import PATCHES, why_not
    from harness.scenario.expand import fault_cases
    from harness.scenario.load import load_scenarios

    return {
        (release, case.id): FAULTS.get(use.name).ref
        for scenario in load_scenarios()
        for use, case in (fault_cases(scenario) if scenario.system == "vllm" else ())
        for release in releases
        if use.name in PATCHES and "as released" in (why_not(use.name, release) or "")
    }


def needs_more_gpus(result: dict[str, Any]) -> bool:
    """Whether a case was skipped for want of GPUs; it has a table of its own."""
    return result["verdict"] == "skip" and bool(re.match(r"needs \d+ GPUs", result["reason"]))


def susceptibility(out: list[Path], releases: list[str]) -> Iterator[str]:
    """The matrix of the first release that has one; of a later one, what differs from it."""
    from harness.report.susceptibility import to_markdown

    first, known = "", {}
    for release in releases:
        cells = cells_of(out, release)
        if cells and not first:
            first, known = release, cells
            text = to_markdown(list(cells.values())).replace("## ", "### ").replace("# Susceptibility", "", 1)
            yield f"## Susceptibility of vLLM {release}'s kernels\n\n{text.strip()}\n"
        elif cells:
            ran = {case: found for case, found in cells.items() if found.outcome != "skipped"}
            before = {case: known[case].outcome if case in known else "not run" for case in ran}
            other = {case: found for case, found in ran.items() if found.outcome != before[case]}
            yield f"## Susceptibility of vLLM {release}'s kernels\n"
            yield f"{len(ran) - len(other)} of the {len(ran)} cells that ran are as those of {first}.\n"
            if other:
                yield f"| case | {first} | {release} | |\n|---|---|---|---|"
                for case, found in sorted(other.items()):
                    yield f"| `{case}` | {before[case]} | {found.outcome} | {cell(found.why, 160)} |"
                yield ""


def cells_of(out: list[Path], release: str) -> dict[str, Any]:
    """Case -> its last cell, over all runs of `susceptibility`."""
    from harness.core.records import CaseResult
    from harness.report.susceptibility import cell_of
    from harness.scenario.susceptibility import case_of

    cells: dict[str, Any] = {}
    for file in [
        file for folder in out for file in sorted((folder / release).glob("susceptibility/run/*/results.jsonl"))
    ]:
        for line in file.read_text(encoding="utf-8").splitlines():
            result = CaseResult.model_validate_json(line)
            if (case := case_of(result.id)) is not None:
                cells[result.id] = cell_of(result, case)
    return cells


def writers(out: list[Path], releases: list[str]) -> Iterator[str]:
    """Who wrote the first NaN of each failure on one GPU, by its recorder: a second serving of a few questions."""
    rows = []
    for release in releases:
        for name in (*FAULTS, "clean-1"):
            for case, found in first_nans(out, release, name).items():
                what = name if name in FAULTS else "as released"
                rows.append(f"| `{case}` | {release} | {what} | {cell(found.statement)} |")
    if rows:
        yield "## Who wrote the first NaN\n"
        yield "| case | vLLM | bug | the recorder says |\n|---|---|---|---|"
        yield from sorted(rows)
        yield ""


def ranks_table(out: list[Path], releases: list[str]) -> Iterator[str]:
    """Cases over two GPUs, with the rank that wrote first."""
    rows = []
    for release, (name, (fault, _)) in itertools.product(releases, RANKS.items()):
        for folder in reversed(out):
            ran = results(folder / release / name)
            told_of = first_nans([folder], release, name) if ran else {}
            for result in ran:
                found = told_of.get(result["id"])
                words = [found.statement, *found.other_ranks] if found else []
                rows.append(
                    f"| `{result['id']}` | {release} | {fault} | {told(result)} | {cell('; '.join(words), 420)} |"
                )
            if ran:
                break
    if rows:
        yield "## Over two GPUs\n"
        yield "| case | vLLM | bug put back | verdict | the recorder says |\n|---|---|---|---|---|"
        yield from rows
        yield ""


def first_nans(out: list[Path], release: str, name: str) -> dict[str, Any]:
    """Case -> what its recorder said last, over all folders."""
    from harness.core.records import FirstNan

    found: dict[str, Any] = {}
    for file in [file for folder in out for file in sorted((folder / release / name).glob("run/*/blame.jsonl"))]:
        for line in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if report := line["blame"].get("first_nan"):
                found[line["key"].partition("!")[0]] = FirstNan.model_validate(report)
    return found
