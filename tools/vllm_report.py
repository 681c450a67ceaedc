"""Run the vLLM scenarios under several installed releases on one GPU, and write docs/vllm.md from what came out.

    tools/vllm_report.py run --release 0.22.1=/sites/0.22.1 --release 0.24.0=/sites/0.24.0 --common /deps --out runs
    tools/vllm_report.py render runs --docs docs/vllm.md

Each release is a folder for PYTHONPATH; `--common` is one that all share. `run` starts `mla-harness` itself, once for
the clean scenarios and once for each fault of a release, side by side, and keeps whatever they leave, also when time
runs out. `render` needs no GPU.
"""

from __future__ import annotations

import argparse
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
FAULTS = {
    "vllm.plan-in-warmup-only": ("vllm-project/vllm#42444", "vllm-mrv2-capture[graph=full]"),
    "vllm.fresh-plan-each-step": ("vllm-project/vllm#35175", "vllm-fp8-decode-graphs[graph=full]"),
    "vllm.merge-ignore-context-count": ("vllm-project/vllm#36540", "vllm-mixed-context[backend=FLASHMLA]"),
    "vllm.skip-zero-new-blocks": ("vllm-project/vllm#43961", "vllm-kv-cache-full[num_blocks=96]"),
}
NOT_SHOWN = {
    "vllm-project/vllm#38359": "needs a model with experts; no canary has any. The reference engine's scenario "
    "cudagraph-padding shows it.",
}


@dataclass
class Step:
    """One command under one release, and where its run directory goes."""

    name: str
    release: str
    arguments: list[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    seconds: float = 0.0
    code: int | None = None


def steps(releases: list[str], repeats: int, susceptible: str) -> Iterator[Step]:
    """What to run, the most telling first."""
    for release in releases:
        for fault, (_, case) in FAULTS.items():
            yield Step(f"{fault}", release, ["run", case, "--fault", fault, "-n", "1"])
        yield Step("clean-1", release, ["run", "-m", "vllm", "-n", "4"])
        if release == susceptible:
            names = [word for name in vllm_kernels() for word in ("--kernel", name)]
            yield Step("susceptibility", release, ["susceptibility", "--device", "cuda", "-n", "3", *names])
    for number in range(2, repeats + 1):
        for release in releases:
            yield Step(f"clean-{number}", release, ["run", "-m", "vllm", "-n", "4"])


def vllm_kernels() -> list[str]:
    """Names of vLLM's kernels, planners left out: they are judged through their decode."""
    sys.path.insert(0, str(ROOT))
    from harness.kernels.vllm_specs import VLLM_KERNELS

    return [spec.name for spec in VLLM_KERNELS if spec.op != "mla_decode_plan"]


def run(args: argparse.Namespace) -> int:
    """Run every step, at most `--parallel` at a time, until `--seconds` are over."""
    sites = dict(item.split("=", 1) for item in args.release)
    deadline = time.monotonic() + args.seconds
    waiting = list(steps(list(sites), args.repeats, args.susceptible or next(iter(sites))))
    running: list[Step] = []
    done: list[Step] = []
    while (waiting or running) and time.monotonic() < deadline:
        while waiting and len(running) < args.parallel:
            step = waiting.pop(0)
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


def start(step: Step, site: str, args: argparse.Namespace) -> None:
    """Start one command; its output goes to a log beside its run directory."""
    place = args.out / step.release / step.name
    place.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), site, args.common, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "harness.cli.main", *step.arguments, "--out", str(place / "run")]
    step.started = time.monotonic()
    with (place / "log.txt").open("wb") as log:
        step.process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
        )


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
    """Write the page from the folder that `run` left."""
    releases = sorted(path.name for path in args.out.iterdir() if (path / "clean-1").is_dir())
    parts = [HEAD, machine(args.out, releases), *fault_table(args.out, releases), *clean_table(args.out, releases)]
    parts += susceptibility(args.out, releases)
    args.docs.parent.mkdir(parents=True, exist_ok=True)
    args.docs.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return 0


HEAD = """# vLLM under the harness

Made by `tools/vllm_report.py` from runs on one GPU; the canaries measure inference, not ability. Accuracy is by epoch
over the first questions of `gsm_symbolic`; a crash shows the serving process's last words. Times include starting
vLLM, and several processes shared the GPU: they are no benchmark. What the tables mean, and what they leave open, is in
[findings.md](findings.md).
"""


def machine(out: Path, releases: list[str]) -> str:
    """One line on where it ran."""
    for release in releases:
        for plan in sorted((out / release).glob("clean-*/run/*/run.json")):
            found = json.loads(plan.read_text()).get("environment") or {}
            if found:
                gpus = [gpu["name"] for gpu in found.get("gpus") or []]
                words = [f"{key} {found[key]}" for key in ("python", "torch", "triton") if found.get(key)]
                return f"Machine: {', '.join([*gpus, *words])}; vLLM {', '.join(releases)}.\n"
    return f"vLLM {', '.join(releases)}.\n"


def fault_table(out: Path, releases: list[str]) -> Iterator[str]:
    """Five PRs by release: as released, and with the fault put back."""
    yield "## The five PRs\n"
    yield "| PR | vLLM | as released | fault put back | the harness says |\n|---|---|---|---|---|"
    for fault, (ref, case) in FAULTS.items():
        for release in releases:
            clean = next((r for r in results(out / release / "clean-1") if r["id"] == case), None)
            faulty = next(iter(results(out / release / fault)), None)
            says = (faulty or {}).get("reason", "") if faulty and faulty["verdict"] != "pass" else "not caught"
            if faulty and faulty["verdict"] == "pass":
                says = "the poison changed no answer: see the matrix below for what this kernel lets through"
            if faulty and faulty["verdict"] == "skip" and clean:
                says = clean["reason"] or "has the bug as released, and it changed no answer"
            as_released = told(clean, partial(out / release / "clean-1", case))
            with_fault = told(faulty, partial(out / release / fault, case))
            yield f"| {ref} | {release} | {as_released} | {with_fault} | {cell(says)} |"
    for ref, why in NOT_SHOWN.items():
        yield f"| {ref} | all | | | not run on vLLM: {why} |"
    yield ""


def partial(place: Path, case: str) -> str:
    """Accuracy of the epochs that were answered whole before a serving process died."""
    slug = re.sub(r"[^A-Za-z0-9_.=]+", "-", case).strip("-")
    right: dict[int, list[bool]] = {}
    for file in sorted(place.glob(f"run/*/accuracy/{slug}*/nan/asked/accuracy.jsonl"))[-1:]:
        header, *rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            right.setdefault(row["epoch"], []).append(row["correct"])
        whole = [answers for answers in right.values() if len(answers) == len(header["questions"])]
        return ", ".join(f"{sum(answers) / len(answers):.4f}" for answers in whole)
    return ""


def told(result: dict[str, Any] | None, before: str = "") -> str:
    """One result in a cell: verdict, curve, seconds; of a crash, `before` is the curve up to it."""
    if result is None:
        return "not run"
    if result["verdict"] == "skip":
        return "has the bug itself" if "as released" in result["reason"] else f"skipped: {cell(result['reason'])}"
    known = curve(result) or (f"after {before}" if before else "")
    return ", ".join(filter(None, [f"**{result['verdict']}**", known, f"{result['seconds']:.0f} s"]))


def cell(text: str) -> str:
    """Text that fits a Markdown table."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= 240 else flat[:239] + "…"


def clean_table(out: Path, releases: list[str]) -> Iterator[str]:
    """The clean scenarios, each time they were run."""
    yield "## Clean scenarios\n"
    yield "| case | vLLM | " + " | ".join(f"run {n}" for n in (1, 2, 3)) + " |\n|---|---|---|---|---|"
    for release in releases:
        runs = [{r["id"]: r for r in results(out / release / f"clean-{n}")} for n in (1, 2, 3)]
        for case in dict.fromkeys(name for run_ in runs for name in run_):
            yield f"| `{case}` | {release} | " + " | ".join(told(run_.get(case)) for run_ in runs) + " |"
    yield ""


def susceptibility(out: Path, releases: list[str]) -> Iterator[str]:
    """The matrix of one release, as its own run wrote it."""
    for release in releases:
        for page in sorted((out / release).glob("susceptibility/run/*/susceptibility.md")):
            text = page.read_text(encoding="utf-8").replace("## ", "### ").replace("# Susceptibility", "", 1)
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
    runs.add_argument("--parallel", type=int, default=7)
    runs.add_argument("--seconds", type=float, default=3600)
    runs.add_argument("--susceptible", metavar="VERSION", help="whose kernels the matrix is of [the first]")
    runs.set_defaults(do=run)
    pages = commands.add_parser("render")
    pages.add_argument("out", type=Path)
    pages.add_argument("--docs", type=Path, default=ROOT / "docs" / "vllm.md")
    pages.set_defaults(do=render)
    args = parser.parse_args()
    code: int = args.do(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
