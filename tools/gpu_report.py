"""Runs the harness on this machine's GPU and writes what it found: `python tools/gpu_report.py`.

Each part runs in a process of its own, and its figures go to a JSON file as soon as there are any; `--render` makes
the document of such a file again, on any machine. Figures are medians; the document says of what.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "machine", "bandwidth", "step", "matrix", "epochs", "nightly", "selftest", "containment", "sanitizer", "tests",
    "several", "recorder", "first-nan", "diagnosis", "flashmla",
)  # fmt: skip
WATCHED_STEP = ("--plain", "--repeats", "3", "--layers", "1", "--tokens", "512")
WATCHED_CASE = "mixed-context[kv=bf16,context_kernel=minus-inf,context_chunk=32]"
WATCHED_FAULT = "merge.ignore-context-count"
EPOCHS = ("--task", "gsm_symbolic", "--model", "engine:canary-mla", "--device", "cuda", "--graph", "full",
          "--concurrency", "256", "--epochs", "5")  # fmt: skip


def execute(command: list[str], seconds: float) -> tuple[int, str, str, float]:
    """Exit code, standard output, the end of standard error, and seconds."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": path}
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=seconds
        )
        code, out, error = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, error = 124, "", f"stopped after {seconds:g} s"
    return code, out, error[-3000:], time.monotonic() - started


def answer_of(command: list[str], seconds: float) -> Any:
    """The JSON that a command prints, or what went wrong."""
    code, out, error, took = execute(command, seconds)
    try:
        return json.loads(out[out.index("{") if "[" not in out[:2] else 0 :])
    except ValueError:
        return {"failed": f"exit code {code} after {took:.0f} s: {error[-1500:]}"}


def harness(*words: str, seconds: float) -> dict[str, Any]:
    """One command of the harness with `--json`, with its exit code and seconds."""
    with tempfile.TemporaryDirectory(prefix="mla-harness-report-") as folder:
        command = [sys.executable, "-m", "harness.cli.main", *words, "--json", "--out", folder]
        code, out, error, took = execute(command, seconds)
        try:
            answer = json.loads(out)
        except ValueError:
            answer = {"failed": error}
        results = sorted(Path(folder).glob("*/results.jsonl"))
        rows = [json.loads(line) for path in results for line in path.read_text(encoding="utf-8").splitlines()]
    return {"code": code, "took": took, "answer": answer, "rows": rows, "error": error}


def tool(name: str, *words: str, seconds: float = 120) -> Any:
    return answer_of([sys.executable, str(ROOT / "tools" / name), *words], seconds)


def machine() -> dict[str, Any]:
    code = (
        "import json, torch, triton; p = torch.cuda.get_device_properties(0); print(json.dumps({'gpu': p.name, "
        "'memory_gib': round(p.total_memory / 2**30), 'capability': f'{p.major}.{p.minor}', "
        "'torch': torch.__version__, "
        "'cuda': torch.version.cuda, 'triton': triton.__version__, 'date': __import__('time').strftime('%Y-%m-%d')}))"
    )
    return answer_of([sys.executable, "-c", code], 60)


def results_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of the cases of a run."""
    return [row.get("result", row) for row in found["rows"]]


def verdicts_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How many cases of each scenario ended in which verdict."""
    table: dict[str, dict[str, int]] = {}
    for row in rows:
        verdicts = table.setdefault(row["scenario"], {})
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    return table


def matrix() -> dict[str, Any]:
    found = harness("run", "-m", "kernel-matrix", "--device", "cuda", "-n", "1", seconds=200)
    rows = results_of(found)
    bad = [{"id": r["id"], "reason": r["reason"]} for r in rows if r["verdict"] != "pass"]
    return {
        "seconds": found["took"],
        "cases": len(rows),
        "verdicts": verdicts_of(rows),
        "bad": bad[:20],
        "code": found["code"],
    }


def selftest() -> dict[str, Any]:
    found = harness("selftest", "-m", "not kernel-matrix", "--device", "cuda", "-n", "1", seconds=300)
    rows = results_of(found)
    kept = ("fault", "scenario", "caught", "by", "blamed", "reason", "expected_by", "ref")
    faults = [{name: fault.get(name) for name in kept} for fault in found["answer"].get("faults", [])]
    bad = [{"id": r["id"], "verdict": r["verdict"], "reason": r["reason"]} for r in rows if r["verdict"] != "pass"]
    notes = sorted({r["reason"] for r in rows if r["verdict"] == "pass" and r["reason"]})
    skipped = found["answer"].get("skipped_faults", [])
    return {
        "seconds": found["took"], "code": found["code"], "verdicts": verdicts_of(rows), "faults": faults,
        "bad": bad[:60], "notes": notes[:5], "skipped_faults": skipped, "error": "" if rows else found["error"],
    }  # fmt: skip


def epochs() -> dict[str, Any]:
    found = harness("epochs", *EPOCHS, seconds=200)
    lines = re.findall(r"epoch \d+ of \d+: .* ([\d,]+) tokens in ([\d.]+) s", found["error"])
    record = (found["answer"].get("accuracy") or [{}])[0]
    return {
        "command": shlex.join(("mla-harness", "epochs", *EPOCHS)), "took": found["took"], "code": found["code"],
        "epochs": [{"tokens": int(tokens.replace(",", "")), "seconds": float(took)} for tokens, took in lines],
        "accuracy": [epoch["accuracy"] for epoch in record.get("epochs", [])],
        "questions": [epoch["num_questions"] for epoch in record.get("epochs", [])],
        "statement": record.get("judgement", {}).get("statement", ""),
        "error": "" if lines else found["error"],
    }  # fmt: skip


def nightly() -> dict[str, Any]:
    found = harness("run", "-m", "nightly", "--device", "cuda", "-n", "1", seconds=400)
    rows = results_of(found)
    measured = []
    for row in rows:
        record = row.get("accuracy") or {}
        measured.append({
            "id": row["id"], "verdict": row["verdict"], "reason": row["reason"], "seconds": row["seconds"],
            "accuracy": [epoch["accuracy"] for epoch in record.get("epochs", [])],
            "questions": [epoch["num_questions"] for epoch in record.get("epochs", [])],
            "baseline": (record.get("baseline") or {}).get("accuracy"),
        })  # fmt: skip
    return {"took": found["took"], "code": found["code"], "cases": measured, "error": "" if rows else found["error"]}


def several() -> dict[str, Any]:
    """On a machine of several GPUs: how workers and sessions share them."""
    _, out, _, _ = execute([sys.executable, "-c", "import torch; print(*(torch.cuda.get_device_name(i) "
                                      "for i in range(torch.cuda.device_count())), sep=chr(10))"], 60)  # fmt: skip
    gpus = out.split("\n")[:-1]
    if len(gpus) < 2:
        return {"failed": f"this machine has {len(gpus)} GPU"}
    path = "tests/gpu/test_several_gpus.py"
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", path]
    code, out, _, took = execute(command, 200)
    shown = re.findall(r"::(test_\w+) (PASSED|FAILED|SKIPPED|ERROR)", out)
    return {"gpus": gpus, "code": code, "seconds": took, "tests": shown, "error": out[-2000:] if code else ""}


def sanitizer() -> dict[str, Any]:
    from harness.run.sanitizer import find

    program = find()
    if program is None:
        return {"failed": "compute-sanitizer is not installed"}
    step = [sys.executable, str(ROOT / "tools" / "gpu_decode_step.py"), *WATCHED_STEP]
    watching = [program, "--tool", "initcheck", "--print-limit", "1", "--show-backtrace", "no"]
    plain = answer_of(step, 60)
    watched = answer_of([*watching, "--log-file", os.devnull, *step], 150)
    words = ("run", WATCHED_CASE, "--fault", WATCHED_FAULT, "--device", "cuda", "--sanitizer", "initcheck")
    case = harness(*words, seconds=150)
    first = (case["rows"] or [{}])[0]
    first = first.get("result", first)
    return {
        "plain_step": plain, "watched_step": watched, "command": shlex.join(("mla-harness", *words)),
        "verdict": first.get("verdict", "?"), "took": case["took"], "reason": first.get("reason", ""),
        "findings": [f["message"] for f in first.get("findings", ()) if f["oracle"] == "sanitizer"],
        "report": first.get("log", "")[:900], "error": case["error"][-500:],
    }  # fmt: skip


def tests() -> dict[str, Any]:
    words = "-q -rs -p no:cacheprovider tests/gpu tests/kernels/test_triton_cuda.py"
    code, out, error, took = execute([sys.executable, "-m", "pytest", *words.split()], 240)
    lines = out.strip().splitlines()
    return {"code": code, "seconds": took, "last": lines[-12:], "error": out[-6000:] if code else error[-600:]}


SHRUNK = (
    ("mixed-context", "merge.ignore-context-count"), ("mrv2-capture", "graph.plan-in-warmup-only"),
    ("kv-cache-full", "kv.skip-zero-new-blocks"),
)  # fmt: skip


def diagnosis() -> list[dict[str, Any]]:
    """The smallest failing case on CUDA graphs for some of the bugs."""
    rows = []
    for scenario, fault in SHRUNK:
        words = ("shrink", scenario, "--fault", fault, "--device", "cuda", "-n", "1", "--seconds", "40", "--json")
        code, out, error, took = execute([sys.executable, "-m", "harness.cli.main", *words], 100)
        try:
            found = json.loads(out)
        except ValueError:
            found = {"failed": error[-600:]}
        rows.append({
            "command": shlex.join(("mla-harness", *words[:-1])), "code": code, "seconds": took,
            "case": found.get("case", {}).get("id", ""), "steps": len(found.get("steps", ())),
            "trials": found.get("num_trials", 0), "failed": found.get("failed", ""),
        })  # fmt: skip
    return rows


def measured(parts: list[str], path: Path, note: str = "") -> dict[str, Any]:
    """Run the parts one after another; what is known is on disk after each."""
    does = {
        "machine": machine, "matrix": matrix, "selftest": selftest, "sanitizer": sanitizer, "tests": tests,
        "epochs": epochs, "nightly": nightly, "several": several,
        "bandwidth": lambda: tool("gpu_bandwidth.py"), "step": lambda: tool("gpu_decode_step.py"),
        "containment": lambda: tool("gpu_containment.py"),
        "recorder": lambda: tool("gpu_first_nan.py"),
        "first-nan": lambda: {"rows": tool("first_nan_document.py", "--device", "cuda", "--json", seconds=200)},
        "diagnosis": diagnosis, "flashmla": lambda: tool("gpu_flashmla.py"),
    }  # fmt: skip
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for part in parts:
        started = time.monotonic()
        data[part] = does[part]()
        if note and isinstance(data[part], dict):
            data[part]["note"] = note
        print(f"{part}: {time.monotonic() - started:.0f} s", flush=True)
        path.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="which to run, of: " + ", ".join(PARTS))
    parser.add_argument("--note", default="", help="what to say of these parts, such as what ran beside them")
    parser.add_argument("--data", type=Path, default=ROOT / "docs" / "gpu.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu.md")
    parser.add_argument("--render", action="store_true", help="only write the document of --data")
    options = parser.parse_args()
    options.data.parent.mkdir(parents=True, exist_ok=True)
    if options.render:
        data = json.loads(options.data.read_text(encoding="utf-8"))
    else:
        data = measured(options.parts.split(","), options.data, options.note)
    from gpu_document import document

    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(document(data), encoding="utf-8")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
