"""Run the vLLM scenarios under several installed releases on one GPU, and write docs/vllm.md from what came out.

    tools/vllm_report.py run --release 0.22.1=/sites/0.22.1 --release 0.24.0=/sites/0.24.0 --common /deps --out runs
    tools/vllm_report.py render older-runs runs --docs docs/vllm.md

Each release is a folder for PYTHONPATH; `--common` is one that all share. `run` starts `mla-harness` itself, once for
the clean scenarios and once for each fault of a release, side by side, and keeps whatever they leave, also when time
runs out. `render` needs no GPU; of several folders, oldest first, the newest result of a case is the one that counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_document import BARE, FAULTS, RANKS, curve, document, results

ROOT = Path(__file__).resolve().parents[1]
WARM = "vllm-kv-cache-full[backend=TRITON_MLA]"
"""A release's first hybrid case compiles and tunes its linear attention's kernels, for minutes when many do at once."""
HYBRID_FAULT = "vllm.skip-zero-new-blocks"


@dataclass
class Step:
    """One command under one release, and where its run directory goes."""

    name: str
    release: str
    arguments: list[str]
    num_gpus: int = 1
    gpu: int = 0
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    seconds: float = 0.0
    code: int | None = None

    @property
    def weight(self) -> int:
        """Serving processes that it keeps busy."""
        return int(self.arguments[self.arguments.index("-n") + 1])


def steps(
    releases: list[str],
    repeated: list[str],
    repeats: int,
    susceptible: str,
    workers: int = 5,
    num_gpus: int = 1,
    scenarios: list[str] | None = None,
) -> Iterator[Step]:
    """What to run, the most telling first; the clean scenarios of `repeated` releases several times in a row."""
    clean = ["run", *(scenarios or ("-m", "vllm")), "-n", str(workers)]
    for release in releases:
        yield Step("warm", release, ["run", WARM, "-n", "1"])
    for release in releases:
        for fault, (_, scenario, points) in FAULTS.items():
            cases = [f"{scenario}[{point}]" for point in points]
            yield Step(fault, release, ["run", *cases, "--fault", fault, "-n", str(len(cases))])
        if release == susceptible:
            names = [word for name in vllm_kernels() for word in ("--kernel", name)]
            yield Step("susceptibility", release, ["susceptibility", "--device", "cuda", "-n", "3", *names])
    for name, (fault, split) in RANKS.items() if num_gpus > 1 else ():
        words = ["run", *split, *(["--fault", fault] if fault else []), "-n", "1"]
        yield Step(name, max(releases, key=numbers), words, num_gpus=2)
    for release in repeated:
        yield Step("bare", release, ["run", BARE[0], "--fault", BARE[1], "-n", "1"])
    for release in releases:
        yield Step("clean-1", release, clean)
    for number in range(2, repeats + 1):
        for release in repeated:
            yield Step(f"clean-{number}", release, clean)


def numbers(release: str) -> tuple[int, ...]:
    """A release as it sorts."""
    return tuple(int(part) for part in release.split("."))


def vllm_kernels() -> list[str]:
    """Names of vLLM's and FlashInfer's kernels, planners left out: they are judged through their decode."""
    from harness.core.catalog import ENGINES, KERNELS

    return [spec.name for spec in KERNELS if spec.origin in ENGINES and spec.op != "mla_decode_plan"]


def run(args: argparse.Namespace) -> int:
    """Run every step, at most `--parallel` serving processes at a time on each GPU, until `--seconds` are over."""
    sites = dict(item.split("=", 1) for item in args.release)
    deadline = time.monotonic() + args.seconds
    susceptible = args.susceptible or next(iter(sites))
    repeated = args.repeated or list(sites)
    waiting = list(steps(list(sites), repeated, args.repeats, susceptible, args.workers, args.gpus, args.scenario))
    waiting = [step for step in waiting if not args.only or step.name.rstrip("-0123456789") in args.only]
    running: list[Step] = []
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
        visible = [(step.gpu + more) % args.gpus for more in range(step.num_gpus)]
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, visible))
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


def render(args: argparse.Namespace) -> int:
    """Write the page from the folders that `run` left."""
    args.docs.parent.mkdir(parents=True, exist_ok=True)
    args.docs.write_text(document(args.out), encoding="utf-8")
    return 0


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
        "--only", action="append", metavar="STEP", help="warm, clean, bare, susceptibility, ranks-… or a fault [all]"
    )
    runs.add_argument("--scenario", action="append", metavar="NAME", help="what the clean rounds are of [all of vLLM]")
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
