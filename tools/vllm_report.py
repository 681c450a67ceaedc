"""Run the vLLM scenarios under several installed releases on one GPU, and write docs/vllm.md from what came out.

    tools/vllm_report.py run --release 0.22.1=/sites/0.22.1 --release 0.24.0=/sites/0.24.0 --common /deps --out runs
    tools/vllm_report.py render older-runs runs --docs docs/vllm.md

Each release is a folder for PYTHONPATH; `--common` is one that all share. `run` starts `mla-harness` itself, once for
the clean scenarios and once for each fault of a release, side by side, and keeps whatever they leave, also when time
runs out. `render` needs no GPU; of several folders, oldest first, the newest result of a case is the one that counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WARM = "vllm-kv-cache-full[backend=TRITON_MLA]"
"""A release's first hybrid case compiles and tunes its linear attention's kernels, for minutes when many do at once."""
FAULTS = {
    "vllm.plan-in-warmup-only": ("vllm-project/vllm#42444", "vllm-mrv2-capture", ("graph=full",)),
    "vllm.fresh-plan-each-step": ("vllm-project/vllm#35175", "vllm-fp8-decode-graphs", ("graph=full",)),
    "vllm.merge-ignore-context-count": ("vllm-project/vllm#36540", "vllm-mixed-context", ("backend=FLASHMLA",)),
    "vllm.skip-zero-new-blocks": (
        "vllm-project/vllm#43961", "vllm-kv-cache-full",
        ("backend=FLASHMLA", "backend=FLASH_ATTN_MLA", "backend=TRITON_MLA"),
    ),
    "vllm.router-int64-ids": ("vllm-project/vllm#38359", "vllm-expert-ids", ("routing=simulated",)),
}  # fmt: skip
"""By fault: the PR that mended it, and the scenario and points of its matrix in which it is put back."""
HYBRID_FAULT = "vllm.skip-zero-new-blocks"
BARE = ("vllm-context-rows", "vllm.merge-ignore-context-count")
"""Taken out without any poison: what a Hopper GPU shows by itself."""


@dataclass
class Step:
    """One command under one release, and where its run directory goes."""

    name: str
    release: str
    arguments: list[str]
    gpu: int = 0
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    seconds: float = 0.0
    code: int | None = None

    @property
    def weight(self) -> int:
        """Serving processes that it keeps busy."""
        return int(self.arguments[self.arguments.index("-n") + 1])


def steps(releases: list[str], repeated: list[str], repeats: int, susceptible: str, workers: int = 5) -> Iterator[Step]:
    """What to run, the most telling first; the clean scenarios of `repeated` releases several times in a row."""
    clean = ["run", "-m", "vllm", "-n", str(workers)]
    for release in releases:
        yield Step("warm", release, ["run", WARM, "-n", "1"])
    for release in releases:
        for fault, (_, scenario, points) in FAULTS.items():
            cases = [f"{scenario}[{point}]" for point in points]
            yield Step(fault, release, ["run", *cases, "--fault", fault, "-n", str(len(cases))])
        if release == susceptible:
            names = [word for name in vllm_kernels() for word in ("--kernel", name)]
            yield Step("susceptibility", release, ["susceptibility", "--device", "cuda", "-n", "3", *names])
    for release in repeated:
        yield Step("bare", release, ["run", BARE[0], "--fault", BARE[1], "-n", "1"])
    for release in releases:
        yield Step("clean-1", release, clean)
    for number in range(2, repeats + 1):
        for release in repeated:
            yield Step(f"clean-{number}", release, clean)


def vllm_kernels() -> list[str]:
    """Names of vLLM's kernels, planners left out: they are judged through their decode."""
    sys.path.insert(0, str(ROOT))
    from harness.kernels.vllm_specs import VLLM_KERNELS

    return [spec.name for spec in VLLM_KERNELS if spec.op != "mla_decode_plan"]


def run(args: argparse.Namespace) -> int:
    """Run every step, at most `--parallel` serving processes at a time on each GPU, until `--seconds` are over."""
    sites = dict(item.split("=", 1) for item in args.release)
    deadline = time.monotonic() + args.seconds
    susceptible = args.susceptible or next(iter(sites))
    waiting = list(steps(list(sites), args.repeated or list(sites), args.repeats, susceptible, args.workers))
    waiting = [step for step in waiting if not args.only or step.name.rstrip("-0123456789") in args.only]
    running: list[Step] = []
    done: list[Step] = []
    while (waiting or running) and time.monotonic() < deadline:
        while (gpu := free_gpu(running, args.gpus, args.parallel)) is not None:
            if (step := next_step(waiting, running, gpu)) is None:
                break
            waiting.remove(step)
            step.gpu = gpu
            start(step, sites[step.release], args)
            running.append(step)
        for step in [step for step in running if step.process is not None and step.process.poll() is not None]:
            running.remove(step)
            finish(step, args.out)
            done.append(step)
        time.sleep(0.2)
    for step in running:
        assert step.process is not None
        step.process.terminate()
    for step in running:
        assert step.process is not None
        try:
            step.process.wait(timeout=8)
        except subprocess.TimeoutExpired:
            step.process.kill()
        finish(step, args.out, cut=True)
    for step in waiting:
        print(f"not run for want of time: {step.release} {step.name}")
    return 0


def free_gpu(running: list[Step], num_gpus: int, parallel: int) -> int | None:
    """The GPU with the fewest serving processes, if those are fewer than `parallel`."""
    busy = [sum(step.weight for step in running if step.gpu == gpu) for gpu in range(num_gpus)]
    return None if min(busy) >= parallel else busy.index(min(busy))


def next_step(waiting: list[Step], running: list[Step], gpu: int = 0) -> Step | None:
    """The first step that may start on `gpu`, where the clean rounds of a release come one after another.

    What needs the hybrid canary waits until one case of it has compiled the release's kernels.
    """
    cold = {step.release for step in (*waiting, *running) if step.name == "warm"}
    busy = cold | {step.release for step in running if step.name.startswith("clean-") and step.gpu == gpu}
    fitting = (
        step
        for step in waiting
        if not (step.name.startswith("clean-") and step.release in busy)
        and not (step.name == HYBRID_FAULT and step.release in cold)
    )
    return next(fitting, None)


def start(step: Step, site: str, args: argparse.Namespace) -> None:
    """Start one command; its output goes to a log beside its run directory."""
    place = args.out / step.release / step.name
    place.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), site, args.common, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "harness.cli.main", *step.arguments, "--out", str(place / "run")]
    environ = {**os.environ, "PYTHONPATH": path}
    if args.gpus > 1:
        environ["CUDA_VISIBLE_DEVICES"] = str(step.gpu)
    step.started = time.monotonic()
    with (place / "log.txt").open("wb") as log:
        step.process = subprocess.Popen(command, env=environ, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def finish(step: Step, out: Path, cut: bool = False) -> None:
    """Note how a step ended, and say it in one line."""
    assert step.process is not None
    step.seconds, step.code = time.monotonic() - step.started, step.process.returncode
    note = {"name": step.name, "release": step.release, "seconds": round(step.seconds, 1), "code": step.code,
            "command": shlex.join(["mla-harness", *step.arguments]), "cut": cut}  # fmt: skip
    (out / step.release / step.name / "step.json").write_text(json.dumps(note))
    print(f"{step.release} {step.name}: exit {step.code} after {step.seconds:.0f} s{', cut' if cut else ''}")
    for result in results(out / step.release / step.name):
        if step.name != "susceptibility":
            print(f"   {result['id']} {result['verdict']} {curve(result)} {result['seconds']:.0f}s "
                  f"{result['reason'][:150]}", flush=True)  # fmt: skip


def results(place: Path) -> list[dict[str, Any]]:
    """Results of the runs below `place`, as far as they got; of two for one case the later holds."""
    files = sorted(place.glob("run/*/results.jsonl"))
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [result for result in {r["id"]: r for r in found}.values() if not result["reason"].startswith("never ran")]


def curve(result: dict[str, Any]) -> str:
    """Accuracy by epoch, or nothing."""
    record = result.get("accuracy")
    return ", ".join(f"{epoch['accuracy']:.4f}" for epoch in record["epochs"]) if record else ""


def render(args: argparse.Namespace) -> int:
    """Write the page from the folders that `run` left."""
    out: list[Path] = args.out
    releases = sorted({path.name for folder in out for path in folder.iterdir() if (path / "clean-1").is_dir()})
    parts = [HEAD, machine(out, releases), *fault_table(out, releases), *clean_table(out, releases)]
    parts += susceptibility(out, releases)
    args.docs.parent.mkdir(parents=True, exist_ok=True)
    args.docs.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return 0


HEAD = """# vLLM under the harness

Made by `tools/vllm_report.py` from runs on one GPU; the canaries measure inference, not ability. Accuracy is by epoch
over the first questions of `gsm_symbolic`; a crash shows the serving process's last words. Times include starting
vLLM, and several processes shared the GPU: they are no benchmark. What the tables mean, and what they leave open, is in
[findings.md](findings.md).
"""


def machine(out: list[Path], releases: list[str]) -> str:
    """One line on where it ran."""
    for folder, release in itertools.product(reversed(out), releases):
        for plan in sorted((folder / release).glob("clean-*/run/*/run.json")):
            environment = json.loads(plan.read_text()).get("environment") or {}
            if environment:
                gpus = [gpu["name"] for gpu in environment.get("gpus") or []]
                words = [f"{key} {environment[key]}" for key in ("python", "torch", "triton") if environment.get(key)]
                return f"Machine: {', '.join([*gpus, *words])}; vLLM {', '.join(releases)}.\n"
    return f"vLLM {', '.join(releases)}.\n"


def fault_table(out: list[Path], releases: list[str]) -> Iterator[str]:
    """Five PRs by release: as released, and with the fault put back."""
    sys.path.insert(0, str(ROOT))
    from harness.serving.vllm_faults import why_not

    yield "## The five PRs\n"
    yield "| PR | vLLM | as released | fault put back | the harness says |\n|---|---|---|---|---|"
    for fault, (ref, scenario, points) in FAULTS.items():
        for release, point in itertools.product(releases, points):
            case = f"{scenario}[{point}]"
            # The name that the first runs had for it, before there was a matrix of backends.
            older = "vllm-kv-cache-full[num_blocks=96]" if case == "vllm-kv-cache-full[backend=FLASHMLA]" else case
            clean, as_released = newest(out, release, ("clean-1",), (case, older))
            faulty, with_fault = newest(out, release, (fault,), (case, older))
            if faulty is None and "as released" in (why_not(fault, release) or ""):
                faulty, with_fault = {"verdict": "skip", "reason": ""}, "has the bug itself"
            where = f"{ref}, `{point}`" if len(points) > 1 else ref
            yield f"| {where} | {release} | {as_released} | {with_fault} | {cell(says(clean, faulty))} |"
    yield ""
    for release in releases:
        bare, words = newest(out, release, ("bare",), (BARE[0],))
        if bare is not None:
            ref = FAULTS[BARE[1]][0]
            yield f"With the fix of {ref} taken out of {release} and nothing filled in: {words}.\n"


Told = tuple[dict[str, Any] | None, str]


def newest(out: list[Path], release: str, names: tuple[str, ...], cases: tuple[str, ...]) -> Told:
    """The last result of a case under any of its names, in words too; a time-out only where there is nothing else."""
    late: Told = (None, "not run")
    for folder, name, case in itertools.product(reversed(out), names, cases):
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


def cell(text: str) -> str:
    """Text that fits a Markdown table."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= 240 else flat[:239] + "…"


def clean_table(out: list[Path], releases: list[str]) -> Iterator[str]:
    """The clean scenarios, each time they were run, oldest first."""
    rows: list[tuple[str, str, list[str], str]] = []
    for release in releases:
        places = [place for folder in out for place in sorted((folder / release).glob("clean-*"))]
        runs = [{r["id"]: r for r in results(place)} for place in places]
        for case in sorted({name for run_ in runs for name in run_}):
            cells = [
                told(run_[case], partial(place, case)) for run_, place in zip(runs, places, strict=True) if case in run_
            ]
            filled = next(filter(None, (poisoned(place, case) for place in reversed(places))), "")
            rows.append((case, release, cells, filled))
    most = max((len(cells) for _, _, cells, _ in rows), default=1)
    yield "## Clean scenarios\n"
    yield "| case | vLLM | " + " | ".join(f"run {n + 1}" for n in range(most)) + " | filled in the last |"
    yield "|---|---|" + "---|" * (most + 1)
    for case, release, cells, filled in rows:
        yield f"| `{case}` | {release} | " + " | ".join(cells + ["not run"] * (most - len(cells))) + f" | {filled} |"
    yield ""
    yield "### Not passed\n"
    for folder, release in itertools.product(out, releases):
        for place in sorted((folder / release).glob("clean-*")):
            for result in results(place):
                if result["verdict"] not in ("pass", "skip"):
                    yield f"- `{result['id']}` on {release}: {cell(result['reason'])}"
    yield ""


def susceptibility(out: list[Path], releases: list[str]) -> Iterator[str]:
    """The matrix of one release: of each cell its last result, over all runs of `susceptibility`."""
    sys.path.insert(0, str(ROOT))
    from harness.plan.probe import case_of
    from harness.records import CaseResult
    from harness.report.susceptibility import Cell, cell_of, to_markdown

    for release in releases:
        cells: dict[str, Cell] = {}
        for folder in out:
            for file in sorted((folder / release).glob("susceptibility/run/*/results.jsonl")):
                for line in file.read_text(encoding="utf-8").splitlines():
                    result = CaseResult.model_validate_json(line)
                    case = case_of(result.id)
                    if case is not None:
                        cells[result.id] = cell_of(result, case)
        if cells:
            text = to_markdown(list(cells.values())).replace("## ", "### ").replace("# Susceptibility", "", 1)
            yield f"## Susceptibility of vLLM {release}'s kernels\n\n{text.strip()}\n"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--release", action="append", required=True, metavar="VERSION=FOLDER")
    runs.add_argument("--common", default="")
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--repeats", type=int, default=3)
    runs.add_argument("--repeated", action="append", metavar="VERSION", help="whose clean scenarios repeat [all]")
    runs.add_argument(
        "--only", action="append", metavar="STEP", help="warm, clean, bare, susceptibility or a fault [all]"
    )
    runs.add_argument("--gpus", type=int, default=1, help="GPUs of this machine; each step keeps to one")
    runs.add_argument("--parallel", type=int, default=12, help="serving processes at once on a GPU, about")
    runs.add_argument("--workers", type=int, default=5, help="serving processes of one round of clean scenarios")
    runs.add_argument("--seconds", type=float, default=3600)
    runs.add_argument("--susceptible", metavar="VERSION", help="whose kernels the matrix is of [the first]")
    runs.set_defaults(do=run)
    pages = commands.add_parser("render")
    pages.add_argument("out", type=Path, nargs="+", help="folders that `run` left, oldest first")
    pages.add_argument("--docs", type=Path, default=ROOT / "docs" / "vllm.md")
    pages.set_defaults(do=render)
    args = parser.parse_args()
    code: int = args.do(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
