"""Measure the harness on this machine's GPU and write docs/gpu.md: `python tools/gpu_report.py`.

Each part runs in its own process. Its figures go to a JSON file as soon as the part ends. `--render` writes the page
from such a file alone, on any machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from markdown_page import render

from harness.core.cases import Job
from harness.run.runner import WorkerPool
from harness.run.sanitizer import find
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select

ROOT = Path(__file__).resolve().parents[1]
WATCHED_STEP = ["step", "--plain", "--repeats", "3", "--layers", "1", "--tokens", "512"]
WATCHED_CASE = (
    "run 'mixed-context[kv=bf16,context_kernel=minus-inf,context_chunk=32]' --fault merge.ignore-context-count "
    "--device cuda --sanitizer initcheck"
)
EPOCHS = "epochs --task gsm_symbolic --model engine:canary-mla --device cuda --graph full --concurrency 256 --epochs 5"
SHRUNK = {
    "mixed-context": "merge.ignore-context-count",
    "mrv2-capture": "graph.plan-in-warmup-only",
    "kv-cache-full": "kv.skip-zero-new-blocks",
}
"""Scenario -> the fault of the case that is made smaller."""
MACHINE = """
import json, time, torch, triton
gpu = torch.cuda.get_device_properties(0)
print(json.dumps({
    "gpu": gpu.name, "memory_gib": round(gpu.total_memory / 2**30), "capability": f"{gpu.major}.{gpu.minor}",
    "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
    "date": time.strftime("%Y-%m-%d"),
}))
"""
GPU_NAMES = "import torch; print(*map(torch.cuda.get_device_name, range(torch.cuda.device_count())), sep='\\n')"
BREAKING = ("illegal-address", "device-assert", "out-of-memory", "hangs")
HANG_SECONDS = 8.0


class Failed(Exception):
    """A part has no figures; the text is the reason."""


def execute(command: list[str], seconds: float) -> tuple[subprocess.CompletedProcess[str], float]:
    """The finished command and its seconds. Raises Failed after `seconds`."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": path}
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"stopped after {seconds:g} s") from None
    return done, time.monotonic() - started


def python(*words: str, seconds: float = 120, before: tuple[str, ...] = ()) -> Any:
    """The JSON that a Python command prints. Raises Failed where it prints none."""
    done, took = execute([*before, sys.executable, *words], seconds)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise Failed(f"exit code {done.returncode} after {took:.0f} s: {done.stderr[-1500:]}") from None


def tool(name: str, *words: str, seconds: float = 120) -> Any:
    return python(str(ROOT / "tools" / name), *words, seconds=seconds)


def harness(command: str, seconds: float) -> dict[str, Any]:
    """One command of `mla-harness`: the answer of `--json`, the results, standard error, seconds."""
    with tempfile.TemporaryDirectory(prefix="mla-harness-report-") as folder:
        words = [*shlex.split(command), "--json", "--out", folder]
        done, took = execute([sys.executable, "-m", "harness.cli.main", *words], seconds)
        lines = [line for path in Path(folder).glob("*/results.jsonl") for line in path.read_text().splitlines()]
    if not done.stdout:
        raise Failed(done.stderr[-1500:])
    results = [json.loads(line) for line in lines]
    return {"took": took, "answer": json.loads(done.stdout), "results": results, "error": done.stderr}


def summary(found: dict[str, Any], most: int) -> dict[str, Any]:
    """Seconds, verdicts by scenario, and the first `most` cases that did not pass."""
    verdicts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for result in found["results"]:
        verdicts[result["scenario"]][result["verdict"]] += 1
    bad = [chosen(result, "id", "verdict", "reason") for result in found["results"] if result["verdict"] != "pass"]
    return {"seconds": found["took"], "verdicts": verdicts, "bad": bad[:most]}


def chosen(record: dict[str, Any], *names: str) -> dict[str, Any]:
    """Some fields of a record; None for one that is missing."""
    return {name: record.get(name) for name in names}


def selftest() -> dict[str, Any]:
    found = harness("selftest -m 'not kernel-matrix' --device cuda -n 1", seconds=300)
    kept = ("fault", "scenario", "caught", "by", "blamed", "reason", "ref")
    faults = [chosen(fault, *kept) for fault in found["answer"]["faults"]]
    notes = {result["reason"] for result in found["results"] if result["verdict"] == "pass" and result["reason"]}
    skipped = found["answer"]["skipped_faults"]
    return summary(found, 60) | {"faults": faults, "notes": sorted(notes)[:5], "skipped_faults": skipped}


def curve(record: dict[str, Any]) -> dict[str, Any]:
    """Accuracy and number of questions of each epoch of an accuracy record."""
    epochs = record.get("epochs", [])
    return {"accuracy": [e["accuracy"] for e in epochs], "questions": [e["num_questions"] for e in epochs]}


def epochs() -> dict[str, Any]:
    found = harness(EPOCHS, seconds=200)
    lines = re.findall(r"epoch \d+ of \d+: .* ([\d,]+) tokens in ([\d.]+) s", found["error"])
    record = (found["answer"].get("accuracy") or [{}])[0]
    if not lines:
        raise Failed(found["error"])
    return curve(record) | {
        "command": f"mla-harness {EPOCHS}",
        "took": found["took"],
        "epochs": [{"tokens": int(tokens.replace(",", "")), "seconds": float(took)} for tokens, took in lines],
        "statement": record.get("judgement", {}).get("statement", ""),
    }


def nightly() -> dict[str, Any]:
    found = harness("run -m nightly --device cuda -n 1", seconds=400)
    cases = []
    for result in found["results"]:
        record = result.get("accuracy") or {}
        baseline = (record.get("baseline") or {}).get("accuracy")
        cases.append(chosen(result, "id", "verdict", "reason", "seconds") | curve(record) | {"baseline": baseline})
    return {"took": found["took"], "cases": cases}


def several() -> dict[str, Any]:
    """On a machine of several GPUs: how workers and sessions share them."""
    gpus = execute([sys.executable, "-c", GPU_NAMES], 60)[0].stdout.split("\n")[:-1]
    if len(gpus) < 2:
        raise Failed(f"this machine has {len(gpus)} GPU")
    path = "tests/gpu/test_several_gpus.py"
    done, took = execute([sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", path], 200)
    outcomes = re.findall(r"::(test_\w+) (PASSED|FAILED|SKIPPED|ERROR)", done.stdout)
    return {"gpus": gpus, "seconds": took, "tests": outcomes}


def containment() -> dict[str, Any]:
    """Verdict and finding of each kernel that breaks a GPU process, with a good case before and after it."""
    case = select(load_scenarios(), ["decode-kernel"])[0]
    jobs = []
    for kernel in ("good", *(name for broken in BREAKING for name in (broken, "good"))):
        is_good = kernel == "good"
        params = case.params.model_copy(update={"kernel": "triton" if is_good else f"cuda-{kernel}"})
        job = Job(
            key=f"{len(jobs)}-{kernel}",
            case=case.model_copy(update={"params": params}),
            device="cuda",
            plugins=() if is_good else (str(ROOT / f"fixtures/kernels/cuda_{kernel.replace('-', '_')}.py"),),
            timeout_seconds=60.0 if is_good else HANG_SECONDS,
        )
        jobs.append(job)
    with WorkerPool(2) as pool:
        results = list(pool.run(jobs))
    names = [result.key.partition("-")[2] for result in results]
    messages = [result.findings[0].message if result.findings else "" for result in results]
    cases = [
        {"kernel": name, "verdict": result.verdict, "finding": message, "seconds": round(result.seconds, 2)}
        for name, message, result in zip(names, messages, results, strict=True)
    ]
    return {"cases": cases}


def sanitizer() -> dict[str, Any]:
    program = find()
    if program is None:
        raise Failed("compute-sanitizer is not installed")
    step = [str(ROOT / "tools" / "gpu_figures.py"), *WATCHED_STEP]
    options = f"--tool initcheck --print-limit 1 --show-backtrace no --log-file {os.devnull}".split()
    found = harness(WATCHED_CASE, seconds=150)
    result = found["results"][0]
    return {
        "plain_step": python(*step),
        "watched_step": python(*step, seconds=150, before=(program, *options)),
        "command": f"mla-harness {WATCHED_CASE}",
        "took": found["took"],
        "verdict": result["verdict"],
        "findings": [f["message"] for f in result["findings"] if f["oracle"] == "sanitizer"],
        "report": result.get("log", "")[:900],
        "error": found["error"][-500:],
    }


def tests() -> dict[str, Any]:
    words = "-q -rs -p no:cacheprovider tests/gpu tests/kernels/test_triton_cuda.py"
    done, took = execute([sys.executable, "-m", "pytest", *words.split()], 240)
    return {"seconds": took, "last": done.stdout.strip().splitlines()[-12:], "error": done.stderr[-600:]}


def diagnosis() -> list[dict[str, Any]]:
    """The smallest failing case on CUDA graphs for some of the bugs."""
    rows = []
    for scenario, fault in SHRUNK.items():
        command = f"shrink {scenario} --fault {fault} --device cuda -n 1 --seconds 40"
        row = {"command": f"mla-harness {command}", "case": "", "steps": 0, "trials": 0, "failed": ""}
        started = time.monotonic()
        try:
            found = python("-m", "harness.cli.main", *command.split(), "--json", seconds=100)
            row |= {"case": found["case"]["id"], "steps": len(found["steps"]), "trials": found["num_trials"]}
        except Failed as error:
            row["failed"] = str(error)
        rows.append(row | {"seconds": time.monotonic() - started})
    return rows


PARTS = {
    "machine": lambda: python("-c", MACHINE),
    "bandwidth": lambda: tool("gpu_figures.py", "bandwidth"),
    "step": lambda: tool("gpu_figures.py", "step"),
    "epochs": epochs,
    "nightly": nightly,
    "selftest": selftest,
    "containment": containment,
    "sanitizer": sanitizer,
    "tests": tests,
    "several": several,
    "recorder": lambda: tool("gpu_figures.py", "recorder"),
    "first-nan": lambda: {"rows": tool("first_nan_document.py", "--device", "cuda", "--json", seconds=200)},
    "diagnosis": diagnosis,
    "flashmla": lambda: tool("gpu_figures.py", "flashmla"),
}


def measure(parts: list[str], path: Path, note: str) -> None:
    """Run the parts one after another; the figures of each are on disk when it ends."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for part in parts:
        started = time.monotonic()
        try:
            data[part] = PARTS[part]()
        except Failed as error:
            data[part] = {"failed": str(error)}
        if note and isinstance(data[part], dict):
            data[part]["note"] = note
        print(f"{part}: {time.monotonic() - started:.0f} s", flush=True)
        path.write_text(json.dumps(data, indent=1), encoding="utf-8")


def page(data: dict[str, Any]) -> str:
    def by_reason(cases: list[dict[str, str]]) -> dict[str, list[str]]:
        ids: defaultdict[str, list[str]] = defaultdict(list)
        for case in cases:
            ids[f"{case['verdict']}: {case['reason'][:200]}"].append(case["id"])
        return ids

    def brief(text: str, most: int) -> str:
        flat = " ".join(text.split())
        return flat[:most] if most > 0 else flat[most:]

    filters = {
        "brief": brief,
        "by_reason": by_reason,
        "note": lambda part: f" ({part['note']})" if part.get("note") else "",
        "rates": lambda epochs: [epoch["tokens"] / epoch["seconds"] for epoch in epochs],
    }
    return render("gpu.md.j2", filters, data=data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="which to run, of: " + ", ".join(PARTS))
    parser.add_argument("--note", default="", help="a note on these parts, such as what ran beside them")
    parser.add_argument("--data", type=Path, default=ROOT / "docs" / "gpu.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu.md")
    parser.add_argument("--render", action="store_true", help="only write the page from --data")
    options = parser.parse_args()
    if not options.render:
        measure(options.parts.split(","), options.data, options.note)
    options.out.write_text(page(json.loads(options.data.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
