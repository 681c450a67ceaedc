"""Take all scripts of `serve-check --script` to `vllm serve` of several releases, and print a table.

    tools/vllm_sequences.py --release 0.26.0=/sites/0.26.0 --release 0.33.0=/sites/0.33.0 --common /deps --out runs

Each release is a folder for PYTHONPATH; `--common` is one that all share. It runs unattended: a server has a time
limit, and one that ends is started again for each script. Logs, `sequences.json` and `sequences.md` are left in
`--out`, the latter two after every server. Exit code 1 if an answer differs or a server ends, 2 if a script showed
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError
from harness.core.files import write_atomic
from harness.engines.vllm.options import HTTP_ENVIRON, environ, serve_words
from harness.engines.vllm.params import VllmParams
from harness.engines.vllm.serve.scripts import NEVER_READY, ScriptsRequest
from harness.run.child import Child
from harness.run.scripts import script_names

ROOT = Path(__file__).resolve().parents[1]
MODULE = "harness.engines.vllm.serve.scripts"
SMALL: dict[str, Any] = {"script": "sleep", "prefix_caching": True, "num_blocks": 28, "max_num_seqs": 32}
SETTINGS: dict[str, dict[str, Any]] = {
    "eager": {},
    "full graphs, drafts": {"graph": "full", "speculative": "ngram"},
    "second runner": {"runner": "v2"},
}
COLUMNS = ["release", "settings", "script", "verdict", "answers", "tokens", "ties", "drift", "hits", "preempted", "s"]
"""`drift` is the largest difference of a log probability, in nats; `hits` are tokens."""


def main() -> int:
    """Run the command line. Returns the exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--release", action="append", required=True, metavar="NAME=FOLDER")
    options.add_argument("--common", default="", metavar="FOLDER")
    options.add_argument("--settings", action="append", choices=list(SETTINGS), help="default: all")
    options.add_argument("--seconds", type=float, default=900.0, help="time limit of one server")
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in given.settings or SETTINGS:
        for release, _, folder in (each.partition("=") for each in given.release):
            path = os.pathsep.join(filter(None, (folder, given.common, str(ROOT), os.environ.get("PYTHONPATH"))))
            rows += results(VllmParams(**SMALL | SETTINGS[name]), path, f"{release}, {name}", given)
            write_atomic(given.out / "sequences.json", json.dumps(rows, indent=1))
            write_atomic(given.out / "sequences.md", table(rows))
    print(table(rows))
    verdicts = {row["verdict"] for row in rows}
    return 1 if verdicts & {"fail", "crash"} else 2 if "skip" in verdicts else 0


def results(params: VllmParams, path: str, name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each script, of one server, or of one each if that server ends."""
    release, _, settings = name.partition(", ")
    environment = environ(params, None) | HTTP_ENVIRON | {"PYTHONPATH": path}

    def asked(*scripts: str) -> list[dict[str, Any]]:
        log = given.out / f"{name.replace(', ', '-').replace(' ', '-')}-{'-'.join(scripts)}.log"
        request = ScriptsRequest(words=tuple(serve_words(params)), scripts=scripts)
        with Child(MODULE, name="vllm serve", environ=environment, log=log) as child:
            child.send(request, given.seconds)
            answer = child.answer().result or {}
        return [{"release": release, "settings": settings} | found["found"] for found in answer.values()]

    def crashed(script: str, error: HarnessError) -> dict[str, Any]:
        reason = " ".join(str(error).split())
        return {"release": release, "settings": settings, "script": script, "verdict": "crash", "reason": reason}

    rows: list[dict[str, Any]] = []
    try:
        return asked(*script_names())
    except HarnessError as error:
        if NEVER_READY in str(error):
            return [crashed("all", error)]
        print(f"{name}: {error}; one server for each script", file=sys.stderr)
    for script in script_names():
        try:
            rows += asked(script)
        except HarnessError as error:
            rows.append(crashed(script, error))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown, and under them the reason of each that is no pass."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    for row in rows:
        events = row.get("events", {})
        counts = {"ties": len(row.get("ties", ())), "s": row.get("seconds")}
        counts |= {column: row.get(f"num_{column}") for column in ("answers", "tokens")}
        counts |= {"hits": events.get("prefix_cache_hits"), "preempted": events.get("num_preemptions")}
        counts |= {"drift": f"{row['drift']:.3f}"} if "drift" in row else {}
        shown = row | counts
        lines.append("| " + " | ".join(str(shown.get(column, "")) for column in COLUMNS) + " |")
    bad = [row for row in rows if row["verdict"] != "pass"]
    lines += ["", *(f"- {row['release']}, {row['settings']}, {row['script']}: {row['reason']}" for row in bad)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
