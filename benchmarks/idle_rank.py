"""On two or more GPUs: data-parallel ranks of vLLM, one idle while the others have requests, under
poison.

    python benchmarks/idle_rank.py OUT [--ranks 2] [--canary moe|mtp] [--runner v1|v2] [--graph
    none|full_decode_only]
        [--poison SITE,SITE:PATTERN|none] [--questions 24] [--start-seconds 420] [-- more options of
        vllm serve]

The header X-data-parallel-rank sends each question to one rank. While some ranks have requests, an
idle one runs dummy steps, and its cached prompts and rows of earlier batches must stay. Each phase
prints right answers, answers that changed since the rank gave them first, tokens of each rank, hits
of its prefix cache, and accepted drafts with canary mtp. The table before shows what the start
waited for. Exit code 1 if an answer is wrong or a draft is refused, 2 without a server.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from harness.accuracy.server_backend import ServerBackend
from harness.accuracy.tasks import Task, load_task
from harness.core.extras import httpx
from mla_harness_adapters.plan import Plan
from mla_harness_vllm.options import HTTP_ENVIRON, environ, serve_words
from mla_harness_vllm.params import VllmParams
from mla_harness_vllm.ranks import AMONG_RANKS, NO_MULTICAST
from mla_harness_vllm.serve.scripts import SERVER
from mla_harness_vllm.serve.settings import parse_poison

TIME = re.compile(r"(INFO|WARNING|ERROR) \d\d-\d\d (\d\d):(\d\d):(\d\d) \[")
STEPS = re.compile(r"mla-harness: (\d+) dummy steps in process (\d+)")
COUNTER = re.compile(r'^vllm:(\w+)_total\{[^}]*engine="(\d+)"[^}]*\} (\S+)$', re.MULTILINE)
ASKED: dict[str, dict[str, Any]] = {
    "moe": {"task": "gsm_symbolic", "max_tokens": 112, "capture_sizes": (1, 2, 4, 8, 16)},
    "mtp": {
        "task": "drafts",
        "max_tokens": 32,
        "speculative": "mtp",
        "capture_sizes": (4, 8, 16, 32, 64),
    },
}
"""What a canary is asked, and its graphs. Its module drafts three tokens."""


class Rank(ServerBackend):
    """One data-parallel rank of the server."""

    def __init__(self, url: str, rank: int, concurrency: int) -> None:
        super().__init__(url, concurrency=concurrency)
        self._headers |= {"X-data-parallel-rank": str(rank)}


class Asked:
    """The questions, and what each rank answered first."""

    def __init__(self, url: str, task: Task, max_tokens: int, num_ranks: int) -> None:
        self.url, self.task, self.max_tokens = url, task, max_tokens
        self.num_ranks = num_ranks
        self.first: dict[tuple[int, int], str] = {}
        self.wrong = self.rows = 0

    def ask(self, rank: int, numbers: list[int], concurrency: int = 8) -> tuple[int, int]:
        """Ask one rank.

        Returns how many answers are right, and how many are not what it answered first.
        """
        asked = [self.task.instances[number] for number in numbers]
        until = asked[0].args[1].get("until") or ()
        stop = (until,) if isinstance(until, str) else tuple(until)
        backend = Rank(self.url, rank, concurrency)
        found = backend.generate(
            [one.args[0] for one in asked], max_tokens=self.max_tokens, stop=stop
        )
        right = sum(
            self.task.grade(one, answer.text).correct
            for one, answer in zip(asked, found, strict=True)
        )
        changed = 0
        for number, answer in zip(numbers, found, strict=True):
            changed += self.first.setdefault((rank, number), answer.text) != answer.text
        self.wrong += len(numbers) - right
        return right, changed

    def counters(self) -> Counter[str]:
        """The server's counters, by name and rank."""
        text = httpx.get(f"{self.url.removesuffix('/v1')}/metrics", timeout=10.0).text
        return Counter(
            {f"{name} {rank}": int(float(value)) for name, rank, value in COUNTER.findall(text)}
        )

    def phase(self, name: str, *parts: tuple[int, list[int], int, float]) -> None:
        """Print a row. parts: rank, questions, how many at once, and a pause in seconds between
        them.
        """
        before, found = self.counters(), dict[int, tuple[int, int, int]]()

        def run(rank: int, numbers: list[int], at_once: int, pause: float) -> None:
            step = at_once if pause else len(numbers)
            right = changed = 0
            for start in range(0, len(numbers), step):
                some = self.ask(rank, numbers[start : start + step], at_once)
                right, changed = right + some[0], changed + some[1]
                time.sleep(pause)
            found[rank] = right, changed, len(numbers)

        threads = [threading.Thread(target=run, args=part, daemon=True) for part in parts]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        grown = self.counters()
        grown.subtract(before)
        cells = [name]
        for rank in range(self.num_ranks):
            right, changed, asked = found.get(rank, (0, 0, 0))
            cells.append(f"{right} of {asked}, {changed} changed" if asked else "idle")
            counts = (
                f"{grown[f'generation_tokens {rank}']} tokens, {grown[f'prefix_cache_hits {rank}']}"
                " hits"
            )
            drafted, accepted = (
                grown[f"spec_decode_num_{what}_tokens {rank}"] for what in ("draft", "accepted")
            )
            cells.append(f"{counts}, {accepted} of {drafted} drafts" if drafted else counts)
            self.wrong += drafted - accepted
        self.wrong += len(parts) - len(found)
        print(f"| {' | '.join(cells)} | {time.monotonic() - began:.1f} s |", flush=True)


def start_table(log: Path) -> None:
    """Print the longest waits between two lines of the server's log."""
    waits, last, before = list[tuple[int, str, str]](), None, ""
    for line in log.read_text(errors="replace").splitlines():
        if found := TIME.search(line):
            hours, minutes, seconds = map(int, found.groups()[1:])
            now = hours * 3600 + minutes * 60 + seconds
            if last is not None and now - last >= 4:
                waits.append((now - last, before[:90], line[found.start() :][:90]))
            last, before = now, line[found.start() :]
    print("| seconds | after | until |\n| --- | --- | --- |")
    for seconds, after, until in sorted(waits, reverse=True)[:9]:
        print(f"| {seconds} | {after.replace('|', '/')} | {until.replace('|', '/')} |")


def free_port() -> int:
    """A port of this machine."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def server_command(args: argparse.Namespace, port: int) -> tuple[list[str], dict[str, str]]:
    """The command of the server and its environment: all memory sizes fixed, all warm-ups that have
    an option off.
    """
    params = VllmParams.model_validate(
        {
            "canary": args.canary,
            "runner": args.runner,
            "graph": args.graph,
            "backend": args.backend,
            **ASKED[args.canary],
        }
        | {
            "prefix_caching": True,
            "expert_parallel": True,
            "max_num_seqs": 16,
            "max_batched_tokens": 8192,
        }
    )
    words = [
        *serve_words(params),
        "--data-parallel-size",
        str(args.ranks),
        "--api-server-count",
        "1",
        "--port",
        str(port),
    ]
    words += [
        "--host",
        "127.0.0.1",
        "--worker-extension-cls",
        "idle_rank_worker.Extension",
        "--disable-custom-all-reduce",
    ]
    words += ["--data-parallel-rpc-port", str(free_port())]
    words += [
        "--kernel-config",
        '{"enable_flashinfer_autotune": false, "enable_jit_warmup": false}',
        *args.more,
    ]
    poison = None if args.poison == "none" else parse_poison(args.poison)
    plan = Plan(folder="", poison=poison)
    settings = {**environ(params, plan), **AMONG_RANKS, **NO_MULTICAST, **HTTP_ENVIRON}
    settings["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    )
    # The server dies with this process, however that ends.
    launch = [sys.executable, "-m", "harness.run.launch", str(os.getpid()), SERVER]
    return [*launch, *words], settings | {"VLLM_DEEP_GEMM_WARMUP": "skip"}


def main() -> int:
    """Start the server, take the phases, and end it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=2, help="data-parallel ranks, a GPU each")
    parser.add_argument("--canary", choices=list(ASKED), default="moe")
    parser.add_argument("--runner", default="v1")
    parser.add_argument("--graph", default="none")
    parser.add_argument(
        "--backend", default="FLASHMLA", help="only TRITON_MLA may have kv.new filled with NaN"
    )
    parser.add_argument("--poison", default="output,lse,workspace,graph.pool,graph.pad_rows:nan")
    # With more than 30 of canary mtp a prompt is cached to its last token: see
    # padded_first_drafts.py.
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--start-seconds", type=float, default=420.0)
    parser.add_argument(
        "--url", help="a server that runs already, such as http://localhost:8000/v1"
    )
    parser.add_argument("more", nargs="*", help="more options of vllm serve, after --")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    what = ASKED[args.canary]
    if args.url:
        return take_phases(args.url, args, what)
    port = free_port()
    command, settings = server_command(args, port)
    print(f"== {args.canary}, {args.runner}, {args.graph}, poison {args.poison}", flush=True)
    log = args.out / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen(
            command,
            env=os.environ | settings,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        began, url = time.monotonic(), f"http://127.0.0.1:{port}"
        while server.poll() is None and time.monotonic() - began < args.start_seconds:
            try:
                if httpx.get(f"{url}/health", timeout=5.0).status_code == 200:
                    print(f"up after {time.monotonic() - began:.0f} s", flush=True)
                    start_table(log)
                    found = take_phases(f"{url}/v1", args, what)
                    steps = dict(
                        reversed(pair) for pair in STEPS.findall(log.read_text(errors="replace"))
                    )
                    print(
                        "dummy steps of each rank, at least:"
                        f" {', '.join(steps.values()) or 'none'}",
                        flush=True,
                    )
                    return found
            except httpx.TransportError:
                time.sleep(1.0)
        print(
            f"no server after {time.monotonic() - began:.0f} s, exit code {server.poll()}; the log"
            " ends:"
        )
        start_table(log)
        print("\n".join(line[:200] for line in log.read_text(errors="replace").splitlines()[-15:]))
        return 2
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(server.pid, number)
                server.wait(8.0)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass


def take_phases(url: str, args: argparse.Namespace, what: dict[str, Any]) -> int:
    """Ask, and print a row a phase."""
    with tempfile.TemporaryDirectory() as scratch:
        task = load_task(what["task"], Path(scratch), limit=args.questions)
    everything = list(range(args.questions))
    asked = Asked(url, task, what["max_tokens"], args.ranks)
    last = args.ranks - 1
    others = range(last)
    names = "rank 0" if last == 1 else f"ranks 0 to {last - 1}"
    head = [cell for rank in range(args.ranks) for cell in (f"rank {rank}", "")]
    print(f"| phase | {' | '.join(head)} | |\n|{' --- |' * (2 * args.ranks + 2)}")
    asked.phase(f"rank {last} alone", (last, everything, 8, 0.0))
    asked.phase(f"{names} alone", *((rank, everything, 8, 0.0) for rank in others))
    asked.phase(f"rank {last} again, from its cache", (last, everything, 8, 0.0))
    asked.phase(
        f"{names} one at a time, rank {last} in bursts",
        *((rank, everything, 1, 0.0) for rank in others),
        (last, everything, 4, 0.3),
    )
    asked.phase(
        f"rank {last} one at a time, {names} in bursts",
        (last, everything, 1, 0.0),
        *((rank, everything, 4, 0.3) for rank in others),
    )
    for rank in (0, last):
        asked.phase(f"rank {rank} again, from its cache", (rank, everything, 8, 0.0))
    print(f"wrong answers and refused drafts: {asked.wrong}", flush=True)
    return int(asked.wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
