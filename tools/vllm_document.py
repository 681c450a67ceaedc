"""The page that `vllm_report.py` writes: folders of runs in, Markdown out."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from markdown_page import brief, cell, table

from harness.core.catalog import FAULTS as ALL_FAULTS
from harness.core.files import read_json_lines
from harness.core.records import CaseResult, FirstNan
from harness.engines.vllm.faults import PATCHES, why_not
from harness.report.susceptibility import Cell, cell_of, to_markdown
from harness.scenario.expand import fault_cases
from harness.scenario.load import load_scenarios
from harness.scenario.susceptibility import case_of

FAULTS = {
    "vllm.plan-in-warmup-only": ("vllm-mrv2-capture", ("graph=full",)),
    "vllm.fresh-plan-each-step": ("vllm-fp8-decode-graphs", ("graph=full",)),
    "vllm.merge-ignore-context-count": ("vllm-mixed-context", ("backend=FLASHMLA",)),
    "vllm.skip-zero-new-blocks": (
        "vllm-kv-cache-full",
        ("backend=FLASHMLA", "backend=FLASH_ATTN_MLA", "backend=TRITON_MLA"),
    ),
    "vllm.router-int64-ids": ("vllm-expert-ids", ("routing=simulated",)),
    "vllm.context-for-first-rows": ("vllm-batch-order", ("runner=v2",)),
}
"""Fault -> the scenario and the points of its matrix in which it is injected."""
BARE = ("vllm-context-rows", "vllm.merge-ignore-context-count")
"""The case and the fault of a run without poison: it shows what a Hopper GPU does by itself."""
FORKED = (
    "vllm-mixed-context[backend=FLASHMLA]",
    "vllm-context-rows",
    "vllm-batch-order[runner=v1]",
    "vllm-expert-ids[routing=model]",
)
"""Cases that step `forks` runs twice: in forks of a process that has imported vLLM, and in new interpreters."""
RANKS = {
    "ranks-clean": ("", ("vllm-tensor-parallel", "vllm-tensor-parallel-context", "vllm-tensor-parallel-pages")),
    "ranks-merge": ("vllm.merge-ignore-context-count", ("vllm-tensor-parallel-context[poisoned=rank-1]",)),
    "ranks-plan": ("vllm.fresh-plan-each-step", ("vllm-tensor-parallel[serves=fp8-graphs]",)),
    "ranks-warm-up": ("vllm.plan-in-warmup-only", ("vllm-tensor-parallel[serves=second-runner]",)),
    "ranks-router": ("vllm.router-int64-ids", ("vllm-tensor-parallel[serves=experts]",)),
    "ranks-pages": ("vllm.skip-zero-new-blocks", ("vllm-tensor-parallel-pages",)),
}
"""Step over two GPUs -> the fault to inject, and the cases."""
ROUND_FILE = "round.json"
"""In a folder of runs that were not cut: the seconds of all of them, and the CPU cores of the machine."""
ROUNDS = 3
"""How many runs of a clean case the page shows, the last ones."""
HEAD = """Made by `tools/vllm_report.py` from runs on one GPU each, and on two where it says so; the canaries measure inference,
not ability. Accuracy is by epoch over the first questions of `gsm_symbolic`; a crash shows the serving process's last
words. Times include starting vLLM, and several processes shared a GPU: they are no benchmark. What the tables mean, and
what they leave open, is in [findings.md](findings.md)."""


class Run(NamedTuple):
    """One result of a case, and the folder of its step."""

    place: Path
    result: dict[str, Any]

    @property
    def verdict(self) -> str:
        return self.result["verdict"]

    @property
    def reason(self) -> str:
        return self.result["reason"]

    @property
    def timed_out(self) -> bool:
        """Whether the harness's own time limit ended it: the machine was busy, vLLM itself showed nothing."""
        return self.reason.startswith("no answer within")

    def files(self, name: str) -> list[Path]:
        """Files that the serving of this case left, by run."""
        folder = re.sub(r"[^A-Za-z0-9_.=]+", "-", self.result["id"]).strip("-")
        return sorted(self.place.glob(f"run/*/accuracy/{folder}{name}"))

    def before_crash(self) -> str:
        """Accuracy of the epochs that were answered whole before a serving process died."""
        for file in self.files("*/nan/asked/accuracy.jsonl")[-1:]:
            header, *rows = read_json_lines(file)
            epochs = itertools.groupby(sorted(rows, key=lambda row: row["epoch"]), lambda row: row["epoch"])
            correct = [[row["correct"] for row in answers] for _, answers in epochs]
            whole = [epoch for epoch in correct if len(epoch) == len(header["questions"])]
            return ", ".join(f"{sum(epoch) / len(epoch):.4f}" for epoch in whole)
        return ""

    def poisoned(self) -> str:
        """What the poison filled: sweeps of free memory, KV blocks, rows of context attention."""
        for file in self.files("/nan/asked/poison.json")[-1:]:
            found = json.loads(file.read_text())
            words = {"sweeps": "sweeps", "blocks": "blocks", "workspaces": "workspaces", "context_rows": "context rows"}
            return ", ".join(f"{found[key]:,} {word}" for key, word in words.items() if found.get(key))
        return ""

    def __str__(self) -> str:
        """The cell of a table: verdict, accuracy by epoch, seconds."""
        if self.verdict == "skip":
            return "has the bug itself" if "as released" in self.reason else f"skipped: {brief(self.reason)}"
        before = "" if curve(self.result) else self.before_crash()
        known = curve(self.result) or (f"after {before}" if before else "")
        verdict = "timed out" if self.timed_out else self.verdict
        return ", ".join(filter(None, [f"**{verdict}**", known, f"{self.result['seconds']:.0f} s"]))


def curve(result: dict[str, Any]) -> str:
    record = result.get("accuracy")
    return ", ".join(f"{epoch['accuracy']:.4f}" for epoch in record["epochs"]) if record else ""


def runs_in(place: Path) -> list[Run]:
    """The last result of each case in the folder of a step."""
    found = [result for file in sorted(place.glob("run/*/results.jsonl")) for result in read_json_lines(file)]
    last = {result["id"]: result for result in found}.values()
    return [Run(place, result) for result in last if not result["reason"].startswith("never ran")]


def has_itself(fault: str, release: str) -> bool:
    """Whether the release has the bug of a fault without an injection."""
    return "as released" in (why_not(fault, release) or "")


class Page:
    """The page of several folders of runs, oldest first."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self.releases = sorted({place.parent.name for folder in folders for place in folder.glob("*/clean-1")})

    def text(self) -> str:
        parts = [
            self.title(),
            HEAD,
            self.machine(),
            *self.fault_table(),
            *self.writers(),
            *self.ranks_table(),
            *self.clean_table(),
            *self.forks_table(),
            *self.rounds_table(),
        ]
        return "\n\n".join([*parts, *self.susceptibility()]) + "\n"

    def title(self) -> str:
        *others, last = self.releases
        return f"# vLLM {', '.join(others)}{' and ' if others else ''}{last} under the harness"

    def machine(self) -> str:
        return "\n".join(f"- vLLM {release}: {self.where(release)}" for release in self.releases)

    def where(self, release: str) -> str:
        """The GPUs, and the versions of the newest run of a release."""
        gpus: dict[str, None] = {}
        words: list[str] = []
        for folder in self.folders:
            for plan in sorted((folder / release).glob("*/run/*/run.json")):
                environment = json.loads(plan.read_text()).get("environment") or {}
                gpus |= {gpu["name"]: None for gpu in environment.get("gpus") or []}
                names = [name for name in ("python", "torch", "triton") if environment.get(name)]
                words = [f"{name} {environment[name]}" for name in names] or words
        return f"{' and '.join(gpus)}; {', '.join(words)}"

    def newest(self, release: str, case: str, *steps: str) -> Run | None:
        """The last result of a case; a time-out only where there is nothing else."""
        places = [folder / release / step for folder in reversed(self.folders) for step in steps]
        found = [run for place in places for run in runs_in(place) if run.result["id"] == case]
        return next((run for run in found if not run.timed_out), next(iter(found), None))

    def fault_table(self) -> Iterator[str]:
        """Bugs by release: as released, and with the fault injected."""
        rows = []
        for fault, (scenario, points) in FAULTS.items():
            for release, point in itertools.product(self.releases, points):
                clean = self.newest(release, f"{scenario}[{point}]", "clean-1", "hybrid-1")
                faulty = self.newest(release, f"{scenario}[{point}]", fault)
                if faulty is None and has_itself(fault, release):
                    faulty = Run(Path(), {"verdict": "skip", "reason": "as released"})
                ref = ALL_FAULTS.get(fault).ref
                where = f"{ref}, `{point}`" if len(points) > 1 else ref
                found = [str(run or "not run") for run in (clean, faulty)]
                rows.append((where, release, *found, brief(conclusion(clean, faulty))))
        yield "## The five PRs, and the order of a batch"
        yield table(("PR", "vLLM", "as released", "fault injected", "the harness says"), rows)
        for release in self.releases:
            if bare := self.newest(release, BARE[0], "bare"):
                ref = ALL_FAULTS.get(BARE[1]).ref
                yield f"With the fix of {ref} taken out of {release} and nothing filled in: {bare}."

    def first_nans(self, release: str, step: str, folders: Iterable[Path]) -> dict[str, FirstNan]:
        """Case -> the last report of its recorder in the folders."""
        files = [file for folder in folders for file in sorted((folder / release / step).glob("run/*/blame.jsonl"))]
        return {
            line["key"].partition("!")[0]: FirstNan.model_validate(line["blame"]["first_nan"])
            for line in itertools.chain.from_iterable(map(read_json_lines, files))
            if line["blame"].get("first_nan")
        }

    def writers(self) -> Iterator[str]:
        """The writer of the first NaN in each failure on one GPU, from a second serving of a few questions."""
        rows = [
            (f"`{case}`", release, step if step in FAULTS else "as released", brief(found.statement))
            for release, step in itertools.product(self.releases, (*FAULTS, "clean-1", "hybrid-1"))
            for case, found in self.first_nans(release, step, self.folders).items()
        ]
        if rows:
            yield "## Who wrote the first NaN"
            yield table(("case", "vLLM", "bug", "the recorder says"), sorted(rows))

    def ranks_table(self) -> Iterator[str]:
        """Cases over two GPUs, with the rank that wrote first."""
        rows = []
        for release, (step, (fault, _)) in itertools.product(self.releases, RANKS.items()):
            newest = next((folder for folder in reversed(self.folders) if runs_in(folder / release / step)), None)
            if newest is None:
                continue
            reports = self.first_nans(release, step, [newest])
            for run in runs_in(newest / release / step):
                found = reports.get(run.result["id"])
                words = "; ".join([found.statement, *found.other_ranks]) if found else ""
                rows.append((f"`{run.result['id']}`", release, fault, run, brief(words, 420)))
        if rows:
            yield "## Over two GPUs"
            yield table(("case", "vLLM", "injected bug", "verdict", "the recorder says"), rows)

    def rounds(self, release: str) -> dict[str, list[Run]]:
        """Case -> its last runs, oldest first; skipped runs only where there is no other."""
        found: defaultdict[str, list[Run]] = defaultdict(list)
        steps = ("warm", "clean-*", "hybrid-*")
        for folder, step in itertools.product(self.folders, steps):
            for run in [run for place in sorted((folder / release).glob(step)) for run in runs_in(place)]:
                # Cases that need more GPUs have their own table.
                if run.verdict != "skip" or not re.match(r"needs \d+ GPUs", run.reason):
                    found[run.result["id"]].append(run)
        ran = {case: [run for run in runs if run.verdict != "skip"] or runs[-1:] for case, runs in found.items()}
        return {case: runs[-ROUNDS:] for case, runs in sorted(ran.items())}

    @functools.cached_property
    def own_bugs(self) -> dict[tuple[str, str], str]:
        """(release, case) -> the bug, where a scenario declares a fault for the case that the release has itself."""
        declared = [pair for one in load_scenarios() if one.system == "vllm" for pair in fault_cases(one)]
        return {
            (release, case.id): ALL_FAULTS.get(use.name).ref
            for (use, case), release in itertools.product(declared, self.releases)
            if use.name in PATCHES and has_itself(use.name, release)
        }

    def clean_table(self) -> Iterator[str]:
        """The clean scenarios with their last runs; in a second table the bugs that a release has itself."""
        found = {release: self.rounds(release) for release in self.releases}
        clean, buggy, failed = [], [], []
        for release, case, runs in [(name, *item) for name, cases in found.items() for item in cases.items()]:
            cells = [*runs, *["not run"] * (ROUNDS - len(runs))]
            ref = self.own_bugs.get((release, case))
            if ref and runs[-1].verdict != "skip":
                buggy.append((f"`{case}`", release, ref, *cells))
                continue
            filled = next(filter(None, (run.poisoned() for run in reversed(runs))), "")
            clean.append((f"`{case}`", release, *cells, filled))
            bad = [run for run in runs if run.verdict not in ("pass", "skip")]
            failed += [f"- `{case}` on {release}: {cell(brief(run.reason))}" for run in bad]
        titles = [f"run {n + 1}" for n in range(ROUNDS)]
        yield "## Clean scenarios"
        yield "\n".join(f"- {release}: {self.tally(release, found[release])}" for release in self.releases)
        yield table(("case", "vLLM", *titles, "filled in the last"), clean)
        if failed:
            yield "### Not passed\n\n" + "\n".join(failed)
        if buggy:
            yield "### Bugs that a release has itself\n\nNothing is injected here: the release has the bug."
            yield table(("case", "vLLM", "bug", *titles), buggy)

    def forks_table(self) -> Iterator[str]:
        rows = []
        for release, case in itertools.product(self.releases, FORKED):
            found = [self.newest(release, name, "forks") for name in (case, f"{case}@process=spawn")]
            if all(found):
                rows.append((f"`{case}`", release, *found))
        if rows:
            yield "## With and without forks"
            yield (
                "Each release in one run, two workers, other work on the machine. The first forked case of each worker waits "
                "for the imports; the first cases of a run read the release from the disk."
            )
            yield table(("case", "vLLM", "forked", "spawned"), rows)

    def rounds_table(self) -> Iterator[str]:
        """What whole rounds took: clean scenarios, faults and susceptibility of a release."""
        rows = []
        for folder in self.folders:
            if not (folder / ROUND_FILE).exists():
                continue
            whole = json.loads((folder / ROUND_FILE).read_text())
            warm = [f"{run.result['seconds']:.0f}" for place in folder.glob("*/warm") for run in runs_in(place)]
            places = [place for place in folder.glob("*/*") if place.name != "susceptibility"]
            served = [run for place in places for run in runs_in(place) if run.verdict != "skip"]
            releases = sorted({place.parent.name for place in places})
            faults = sum(place.name in FAULTS for place in places)
            cells = sum(len(runs_in(place)) for place in folder.glob("*/susceptibility"))
            counts = [f"{count:,}" for count in (whole["cores"], len(served), faults, cells)]
            rows.append((", ".join(releases), *counts, ", ".join(warm), f"**{whole['seconds']:.0f}**"))
        if rows:
            yield "## Seconds of a round"
            yield (
                "Oldest first. Triton keeps the kernels that it compiled and tuned, so the first round of a release on a machine "
                "takes longest: the hybrid canary's cases wait until the first of them has its kernels."
            )
            titles = ("vLLM", "CPU cores", "served cases", "faults", "cells of susceptibility", "that first case")
            yield table((*titles, "all"), rows)

    def tally(self, release: str, found: dict[str, list[Run]]) -> str:
        """One line: how many clean cases passed in all of their runs, and in how many runs."""
        ran = {case: [run.verdict for run in runs] for case, runs in found.items()}
        ran = {case: verdicts for case, verdicts in ran.items() if verdicts != ["skip"]}
        clean = [verdicts for case, verdicts in ran.items() if (release, case) not in self.own_bugs]
        passed = sum(set(verdicts) == {"pass"} for verdicts in clean)
        fewest = min(map(len, clean), default=0)
        times = {1: "once", 2: "twice"}.get(fewest, f"{fewest} times in a row")
        words = f"{passed} of {len(clean)} clean cases passed, {'each ' if fewest > 1 else ''}{times}"
        own = [one for case, verdicts in ran.items() if (release, case) in self.own_bugs for one in verdicts]
        seen = sum(verdict not in ("pass", "skip") for verdict in own)
        return words + (f"; of bugs of its own {seen} of {len(own)} runs failed" if own else "")

    def cells(self, release: str) -> dict[str, Cell]:
        """Case -> its last cell, over all runs of `susceptibility`."""
        files = [
            file
            for folder in self.folders
            for file in sorted((folder / release).glob("susceptibility/run/*/results.jsonl"))
        ]
        found = [CaseResult.model_validate(line) for file in files for line in read_json_lines(file)]
        # Kernels of another engine say nothing of a release.
        results = [result for result in found if "is not installed" not in result.reason]
        return {result.id: cell_of(result, case) for result in results if (case := case_of(result.id)) is not None}

    def susceptibility(self) -> Iterator[str]:
        """The matrix of the first release that has one; of a later release, what differs from it."""
        first, known = "", {}
        for release in self.releases:
            cells = self.cells(release)
            if not cells:
                continue
            yield f"## Susceptibility of vLLM {release}'s kernels"
            if not first:
                first, known = release, cells
                text = to_markdown(list(cells.values())).replace("## ", "### ").replace("# Susceptibility", "", 1)
                yield text.strip()
                continue
            ran = {case: found for case, found in cells.items() if found.outcome != "skipped"}
            before = {case: known[case].outcome if case in known else "not run" for case in ran}
            other = [
                (f"`{case}`", before[case], found.outcome, brief(found.why, 160))
                for case, found in sorted(ran.items())
                if found.outcome != before[case]
            ]
            yield f"{len(ran) - len(other)} of the {len(ran)} cells that ran have the outcome of {first}."
            if other:
                yield table(("case", first, release, ""), other)


def conclusion(clean: Run | None, faulty: Run | None) -> str:
    """What the harness found of the fault, or of the release that has it itself."""
    if faulty is None:
        return "not run"
    if faulty.verdict == "pass":
        return "not caught: the poison changed no answer; the matrix below says what this kernel lets through"
    if faulty.verdict == "skip" and clean is not None:
        return clean.reason or "has the bug as released, and it changed no answer"
    return faulty.reason
