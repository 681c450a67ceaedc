"""Take the scripts of `serve-check --script` to `vllm serve` of several releases, and write docs/serve-check.md.

    tools/vllm_sequences.py run --release 0.30.0=/sites/0.30.0 --release 0.33.0=/sites/0.33.0 --common /deps --out runs
    tools/vllm_sequences.py render runs/sequences.json --device "one NVIDIA H100"

Each release is a folder for PYTHONPATH; `--common` is one that all share. The settings of a release run side by side, a
server each and a second one for `reload`. A script has a time limit, and after one that ends its server another server
takes those that are left. Logs, `sequences.json` and a table are left in `--out`, after every script. Exit code 1 if an
answer differs or a server ends, 2 if a script showed nothing. `render` needs no GPU; it takes the files of several
runs, and the newest result of a script counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Lock
from typing import Any

import markdown_page
from packaging.version import InvalidVersion, Version

from harness.core.errors import HarnessError
from harness.core.files import write_atomic
from harness.engines.serving import NEVER_READY
from harness.engines.vllm.options import HTTP_ENVIRON, environ, serve_words
from harness.engines.vllm.params import VllmParams
from harness.engines.vllm.serve.scripts import ScriptRequest
from harness.run.child import Child

ROOT = Path(__file__).resolve().parents[1]
MODULE = "harness.engines.vllm.serve.scripts"
SMALL: dict[str, Any] = {"script": "sleep", "prefix_caching": True, "num_blocks": 28, "max_num_seqs": 32}
SETTINGS: dict[str, dict[str, Any]] = {
    "eager": {},
    "full graphs, drafts": {"graph": "full", "speculative": "ngram"},
    "second runner": {"runner": "v2"},
}
SCRIPTS = ("cache-reuse", "lengths", "abort", "reload", "sleep", "preempt")
"""The short ones first. The second server for `reload` starts meanwhile."""
COLUMNS = ["release", "settings", "script", "verdict", "answers", "tokens", "ties", "drift", "hits", "preempted", "s"]
"""`drift` is the largest difference of a log probability, in nats; `hits` are tokens."""
Row = dict[str, Any]


def run(given: argparse.Namespace) -> int:
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    lock = Lock()

    def take(release: str, path: str, settings: str, turns: Turns) -> None:
        for row in results(release, path, settings, given, turns):
            with lock:
                rows.append(row)
                print(f"{release}, {settings}, {row['script']}: {row['verdict']}: {row['reason']}"[:300], flush=True)
                write_atomic(given.out / "sequences.json", json.dumps(rows, indent=1))
                write_atomic(given.out / "sequences.md", table(rows))

    for release, _, folder in (each.partition("=") for each in given.release):
        path = os.pathsep.join(filter(None, (folder, given.common, str(ROOT), os.environ.get("PYTHONPATH"))))
        chosen = given.settings or list(SETTINGS)
        turns = Turns(len(chosen), given.seconds)
        with ThreadPoolExecutor(len(chosen)) as pool:
            for done in [pool.submit(take, release, path, settings, turns) for settings in chosen]:
                done.result()
    print(table(rows))
    verdicts = {row["verdict"] for row in rows}
    return 1 if verdicts & {"fail", "crash"} else 2 if "skip" in verdicts else 0


class Turns:
    """Lets one server sleep while the others idle: vLLM's sleep fails if memory of the GPU is taken meanwhile."""

    def __init__(self, num_servers: int, seconds: float) -> None:
        self._alone, self._all, self._seconds = Lock(), Barrier(num_servers), seconds

    @contextlib.contextmanager
    def of(self, script: str) -> Iterator[None]:
        """Wait for the turn of a script. A server that is gone is not waited for."""
        if script != "sleep":
            yield
            return
        self._wait()
        try:
            with self._alone:
                yield
        finally:
            self._wait()

    def _wait(self) -> None:
        with contextlib.suppress(BrokenBarrierError):
            self._all.wait(self._seconds)

    def leave(self) -> None:
        """Have no one wait for this server."""
        self._all.abort()


def results(release: str, path: str, settings: str, given: argparse.Namespace, turns: Turns) -> Iterator[Row]:
    """A row for each script. The next server takes the scripts after one that ended the server."""
    params = VllmParams(**SMALL | SETTINGS[settings])
    environment = environ(params, None) | HTTP_ENVIRON | {"PYTHONPATH": path}
    waiting = [name for name in SCRIPTS if name in (given.script or SCRIPTS)]
    while waiting:
        log = given.out / f"{release}-{settings}-{waiting[0]}.log".replace(", ", "-").replace(" ", "-")
        with Child(MODULE, name="vllm serve", environ=environment, log=log) as child:
            while waiting:
                script, row = waiting.pop(0), {"release": release, "settings": settings}
                words, reloads = tuple(serve_words(params)), "reload" in waiting
                request = ScriptRequest(words=words, script=script, reloads=reloads)
                try:
                    with turns.of(script):
                        child.send(request, given.seconds)
                        found = (child.answer().result or {})["found"]
                    yield row | found
                except HarnessError as error:
                    never = NEVER_READY in str(error)
                    reason = " ".join(str(error).split())
                    yield row | {"script": "all" if never else script, "verdict": "crash", "reason": reason}
                    if never:
                        turns.leave()
                        return
                    break


def counts(row: Row) -> Row:
    """The columns of a row that have another name in it, or none."""
    events = row.get("events", {})
    found: Row = {"ties": len(row.get("ties", ())), "s": row.get("seconds")}
    found |= {column: row.get(f"num_{column}") for column in ("answers", "tokens")}
    found |= {"hits": events.get("prefix_cache_hits"), "preempted": events.get("num_preemptions")}
    return found | ({"drift": f"{row['drift']:.3f}"} if "drift" in row else {})


def table(rows: list[Row]) -> str:
    """The rows in Markdown, and under them the reason of each that is no pass."""
    shown = [row | counts(row) for row in sorted(rows, key=_place)]
    cells = ([row.get(column, "") for column in COLUMNS] for row in shown)
    return "\n".join([markdown_page.table(COLUMNS, cells), "", *reasons(rows)]) + "\n"


def reasons(rows: list[Row]) -> list[str]:
    bad = [row for row in sorted(rows, key=_place) if row["verdict"] != "pass"]
    return [f"- {row['release']}, {row['settings']}, {row['script']}: {row['reason']}" for row in bad]


def render(given: argparse.Namespace) -> int:
    """Write the results into the page, the releases side by side. Returns the exit code."""
    rows = {_place(row): row for file in given.files for row in json.loads(file.read_text())}
    releases = sorted({row["release"] for row in rows.values()}, key=_version)
    shown = []
    for settings in SETTINGS:
        for script in ("all", *SCRIPTS):
            found = [rows.get(_place({"release": each, "settings": settings, "script": script})) for each in releases]
            if any(found):
                shown.append((settings, script, *(_cell(row) if row else "" for row in found)))
    lines = [markdown_page.table(("settings", "script", *releases), shown), "", *reasons(list(rows.values()))]
    intro = (
        f"`tools/vllm_sequences.py run` and `render` wrote this: vLLM {' and '.join(releases)} on {given.device},\n"
        "canary-mla, FLASHMLA, a pool of 28 pages of 64 tokens. A cell has the verdict, the tokens compared, the\n"
        "ties, the largest difference of a log probability in nats, the tokens that came from the prefix cache, the\n"
        "preemptions, and the seconds, which include the lone answers.\n"
    )
    seen = "## Seen\n\n" + intro + "\n" + "\n".join(lines).strip() + "\n\n"
    page = re.sub(r"## Seen\n.*?(?=^## )", lambda _: seen, given.docs.read_text(), count=1, flags=re.DOTALL | re.M)
    write_atomic(given.docs, page)
    return 0


def _cell(row: Row) -> str:
    shown = counts(row)
    if row["verdict"] == "crash":
        return "crash"
    words = [f"{shown['tokens']} tokens", f"{shown['ties']} ties", f"drift {shown['drift']}"]
    words += [f"{shown[name]} {name}" for name in ("hits", "preempted") if shown[name]]
    return f"{row['verdict']}: {', '.join(words)}, {shown['s']} s"


def _version(release: str) -> tuple[bool, Version, str]:
    try:
        return True, Version(release), release
    except InvalidVersion:
        return False, Version("0"), release


def _place(row: Row) -> tuple[Any, ...]:
    """The key of a row: release, settings, script, in the order of the table."""
    order = [*SETTINGS].index(row["settings"])
    return _version(row["release"]), order, ("all", *SCRIPTS).index(row["script"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--release", action="append", required=True, metavar="NAME=FOLDER")
    runs.add_argument("--common", default="", metavar="FOLDER")
    runs.add_argument("--settings", action="append", choices=list(SETTINGS), help="default: all, side by side")
    runs.add_argument("--script", action="append", choices=SCRIPTS, help="default: all")
    runs.add_argument("--seconds", type=float, default=300.0, help="time limit of a script, the first with the start")
    runs.add_argument("--out", type=Path, required=True)
    runs.set_defaults(do=run)
    pages = commands.add_parser("render")
    pages.add_argument("files", type=Path, nargs="+", metavar="SEQUENCES.JSON", help="oldest first")
    pages.add_argument("--device", default="one GPU", help="where they ran, in words")
    pages.add_argument("--docs", type=Path, default=ROOT / "docs" / "serve-check.md")
    pages.set_defaults(do=render)
    given = parser.parse_args()
    return int(given.do(given))


if __name__ == "__main__":
    sys.exit(main())
