"""Run the vLLM scenarios under several installed releases, and write docs/vllm.md from the results.

    tools/vllm_report.py run --release 0.22.1=/sites/0.22.1 --release 0.24.0=/sites/0.24.0 --common /deps --out runs
    tools/vllm_report.py render older-runs runs --docs docs/vllm.md

Each release is a folder for PYTHONPATH; `--common` is one that all share. `run` starts `mla-harness` once for each
round of the clean scenarios and once for each fault of a release, side by side. It keeps what they leave, also when
time runs out. `render` needs no GPU. It takes folders oldest first; the newest result of a case counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version
from vllm_document import BARE, FAULTS, FORKED, RANKS, ROUND_FILE, Page, curve, runs_in

from harness.core.catalog import KERNELS
from harness.scenario.load import load_scenarios

ROOT = Path(__file__).resolve().parents[1]
ORIGINS = ("vllm", "flashinfer")
"""The packages with kernels that vLLM calls."""
WARM = "vllm-kv-cache-full[backend=TRITON_MLA]"
"""A release's first hybrid case compiles and tunes the kernels of linear attention: minutes when many do so at once."""
HYBRID = ("vllm-kv-cache-blackwell", "vllm-kv-cache-full", "vllm-kv-cache-stale")
"""The scenarios of the hybrid canary on one GPU. They and their fault wait for `WARM`."""
HYBRID_FAULT = "vllm.skip-zero-new-blocks"


@dataclass(eq=False)
class Step:
    """One command under one release."""

    name: str
    release: str
    arguments: list[str]
    num_gpus: int = 1
    gpu: int = 0
    process: subprocess.Popen[bytes] = field(init=False)
    started: float = field(init=False)

    @property
    def weight(self) -> int:
        """Serving processes that it keeps busy."""
        return int(self.arguments[self.arguments.index("-n") + 1])


def steps(options: argparse.Namespace) -> Iterator[Step]:
    """What to run, the most informative first; the clean scenarios of `repeated` releases several times in a row."""
    releases = list(options.release)
    repeated = options.repeated or releases
    workers = str(options.workers)
    chosen = options.scenario or sorted(
        one.name for one in load_scenarios() if "vllm" in one.tags and "nightly" not in one.tags
    )
    apart = {
        "clean": [name for name in chosen if name not in HYBRID],
        "hybrid": [name for name in chosen if name in HYBRID],
    }

    def rounds(number: int, release: str) -> Iterator[Step]:
        for name, scenarios in apart.items():
            if scenarios:
                words = ["run", *scenarios, "-n", workers, "--per-gpu", workers]
                yield Step(f"{name}-{number}", release, words)

    for release in releases:
        yield Step("warm", release, ["run", WARM, "-n", "1"])
    for release in releases:
        for fault, (scenario, points) in FAULTS.items():
            cases = [f"{scenario}[{point}]" for point in points]
            together = ["-n", str(len(cases)), "--per-gpu", str(len(cases))]
            yield Step(fault, release, ["run", *cases, "--fault", fault, *together])
        if release == (options.susceptible or releases[0]):
            # Planners are judged through their decode.
            kernels = [spec.name for spec in KERNELS if spec.origin in ORIGINS and spec.op != "mla_decode_plan"]
            names = [word for name in kernels for word in ("--kernel", name)]
            words = ["susceptibility", "--device", "cuda", "-n", "4", "--per-gpu", "4", *names]
            yield Step("susceptibility", release, words)
    for name, (fault, split) in RANKS.items() if options.gpus > 1 else ():
        words = ["run", *split, *(["--fault", fault] if fault else []), "-n", "1"]
        yield Step(name, max(releases, key=Version), words, num_gpus=2)
    for release in releases:
        yield from rounds(1, release)
    for release in repeated:
        yield Step("bare", release, ["run", BARE[0], "--fault", BARE[1], "-n", "1"])
    for number in range(2, options.repeats + 1):
        for release in repeated:
            yield from rounds(number, release)
    spawned = [f"{case}@process=spawn" for case in FORKED]
    yield Step("forks", max(releases, key=Version), ["run", *FORKED, *spawned, "-n", "2", "--per-gpu", "2"])


def run(options: argparse.Namespace) -> None:
    """Run every step, at most `--parallel` serving processes at a time on each GPU, until `--seconds` are over."""
    begun = time.monotonic()
    deadline = begun + options.seconds
    waiting = [step for step in steps(options) if not options.only or step.name.rstrip("-0123456789") in options.only]
    running: list[Step] = []
    while (waiting or running) and time.monotonic() < deadline:
        while (gpu := free_gpu(running, options.gpus, options.parallel)) is not None:
            if (step := next_step(waiting, running, gpu)) is None:
                break
            waiting.remove(step)
            step.gpu = gpu
            start(step, options)
            running.append(step)
        for step in [step for step in running if step.process.poll() is not None]:
            running.remove(step)
            finish(step, options.out)
        time.sleep(0.2)
    for step in running:
        step.process.terminate()
    for step in running:
        try:
            step.process.wait(timeout=8)
        except subprocess.TimeoutExpired:
            step.process.kill()
        finish(step, options.out, cut=True)
    for step in waiting:
        print(f"not run for want of time: {step.release} {step.name}")
    seconds = time.monotonic() - begun
    print(f"{seconds:.0f} s in all")
    # Of a round that was cut nobody wants the time.
    if not running and not waiting:
        (options.out / ROUND_FILE).write_text(json.dumps({"seconds": seconds, "cores": os.cpu_count()}) + "\n")


def free_gpu(running: list[Step], num_gpus: int, parallel: int) -> int | None:
    """The GPU with the fewest serving processes, if those are fewer than `parallel`."""
    busy = [sum(step.weight for step in running if step.gpu == gpu) for gpu in range(num_gpus)]
    return None if min(busy) >= parallel else busy.index(min(busy))


def next_step(waiting: list[Step], running: list[Step], gpu: int = 0) -> Step | None:
    """The first step that may start on `gpu`. The clean rounds of a release come one after another.

    The hybrid canary's other cases and its fault wait until one case of it has compiled the release's kernels.
    """
    cold = {step.release for step in (*waiting, *running) if step.name == "warm"}
    busy = {step.release for step in running if step.name.startswith("clean-") and step.gpu == gpu}
    fitting = (
        step
        for step in waiting
        if not (step.name.startswith("clean-") and step.release in busy)
        and not (step.name.startswith((HYBRID_FAULT, "hybrid-")) and step.release in cold)
    )
    return next(fitting, None)


def start(step: Step, options: argparse.Namespace) -> None:
    """Start one command; its output goes to a log beside its run directory."""
    place = options.out / step.release / step.name
    place.mkdir(parents=True, exist_ok=True)
    folders = (str(ROOT), options.release[step.release], options.common, os.environ.get("PYTHONPATH"))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    if options.gpus > 1:
        visible = [(step.gpu + more) % options.gpus for more in range(step.num_gpus)]
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, visible))
    command = [sys.executable, "-m", "harness.cli.main", *step.arguments, "--out", str(place / "run")]
    if step.name != "warm":
        # The hybrid canary's other cases wait for `warm`.
        command = ["nice", *command]
    step.started = time.monotonic()
    with (place / "log.txt").open("wb") as log:
        step.process = subprocess.Popen(command, env=environ, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def finish(step: Step, out: Path, cut: bool = False) -> None:
    """Print how a step ended, and its results."""
    seconds = time.monotonic() - step.started
    end = ", cut" if cut else ""
    print(f"{step.release} {step.name}: exit {step.process.returncode} after {seconds:.0f} s{end}", flush=True)
    for _, result in runs_in(out / step.release / step.name) if step.name != "susceptibility" else ():
        words = f"{result['verdict']} {curve(result)} {result['seconds']:.0f}s {result['reason'][:150]}"
        print(f"   {result['id']} {words}", flush=True)


def render(options: argparse.Namespace) -> None:
    options.docs.write_text(Page(options.folders).text(), encoding="utf-8")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--release", action="append", required=True, metavar="VERSION=FOLDER")
    runs.add_argument("--common", default="")
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--repeats", type=int, default=3, help="rounds of the clean scenarios")
    runs.add_argument("--repeated", action="append", metavar="VERSION", help="repeat the clean scenarios of it [all]")
    steps_help = "warm, clean, hybrid, bare, forks, susceptibility, ranks-… or a fault [all]"
    runs.add_argument("--only", action="append", metavar="STEP", help=steps_help)
    runs.add_argument("--scenario", action="append", metavar="NAME", help="scenario of the clean rounds [all of vLLM]")
    runs.add_argument("--gpus", type=int, default=1, help="GPUs of this machine; each step keeps to one")
    runs.add_argument("--parallel", type=int, default=24, help="processes at once on a GPU, about")
    runs.add_argument("--workers", type=int, default=8, help="serving processes of one round of clean scenarios")
    runs.add_argument("--seconds", type=float, default=3600)
    runs.add_argument("--susceptible", metavar="VERSION", help="release of the susceptibility matrix [the first]")
    runs.set_defaults(do=run)
    pages = commands.add_parser("render")
    pages.add_argument("folders", type=Path, nargs="+", help="folders that `run` left, oldest first")
    pages.add_argument("--docs", type=Path, default=ROOT / "docs" / "vllm.md")
    pages.set_defaults(do=render)
    options = parser.parse_args(words)
    if options.do is run:
        options.release = dict(item.split("=", 1) for item in options.release)
    return options


if __name__ == "__main__":
    chosen = parse()
    chosen.do(chosen)
