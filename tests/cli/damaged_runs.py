"""Run folders with each of their files damaged in every way, and the commands that read them.

python tests/cli/damaged_runs.py prints a line for each call that goes wrong: a traceback, a hang,
or exit code 0 with other counts than of the whole folder.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from harness.accuracy.acceptance import Drafts, keep_drafts
from harness.accuracy.answer_log import FILE_NAME, AnswerLog, QuestionResult, RunHeader, read_run
from harness.accuracy.baselines import plan_update, write_baseline
from harness.accuracy.cache_hits import HITS_FILE, Hits, keep_hits
from harness.accuracy.epochs import REPEATS_FILE
from harness.cli.main import exit_code_of
from harness.core.model_params import ModelParams
from harness.store.epochs import create, judged

SCENARIOS = {
    "quantize": """
name: quantize
summary: quantize_fp8 of a padded batch
refs: [vllm-project/vllm#37442]
system: kernel
op: quantize_fp8
matrix: {kernel: [torch, torch-fmax], num_live: [1, 8]}
""",
    "merge": """
name: merge
summary: merge_attn_states with tokens that have no context
refs: [vllm-project/vllm#36540]
system: kernel
op: merge_attn_states
params: {kernel: torch}
matrix: {num_with_context: [7, 12]}
faults:
  - name: merge.ignore-context-count
    caught_by: finite
    blames: [context.output, context.lse]
    on: {num_with_context: 7}
""",
}
MOST_SECONDS = 600
"""A call that takes longer hangs. A whole one takes less than one second on an idle machine."""
MOST_BYTES = 4 << 30
"""What a call may take of memory beyond what the process has: a device of zeros has no end."""
DEEP = 10_000


def _write(content: bytes) -> Callable[[Path], None]:
    return lambda file: _ignore(file.write_bytes(content))


def _change(pattern: str, by: str) -> Callable[[Path], None]:
    return lambda file: _ignore(file.write_text(re.sub(pattern, by, file.read_text())))


def _other(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Something else in the place of the file."""

    def replace(file: Path) -> None:
        file.unlink()
        make(file)

    return replace


def _half_a_line(file: Path) -> None:
    first, *others = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first[: len(first) // 2] + b"\n", *others]))


def _cut_off(file: Path) -> None:
    content = file.read_bytes()
    last = content.rstrip(b"\n").rpartition(b"\n")[2]
    file.write_bytes(content[: len(content) - 1 - len(last) // 2])


def _ignore(value: object) -> None:
    """Drop the result of a function whose caller wants none."""


NUMBER = r"(?<=: )\d+(\.\d+)?"
DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": _write(b""),
    "NULs": _write(bytes(8192)),
    "half a line": _half_a_line,
    "cut off": _cut_off,
    "NaN": _change(NUMBER, "NaN"),
    "infinity": _change(NUMBER, "-Infinity"),
    "1e400": _change(NUMBER, "1e400"),
    "a number of 5,000 digits": _change(NUMBER, "9" * 5000),
    "deep JSON": _write(b"[" * DEEP + b"]" * DEEP + b"\n"),
    "deep JSON without an end": _write(b'{"a":' * DEEP),
    "no UTF-8": lambda file: _ignore(file.write_bytes(b"\xff\xfe" + file.read_bytes())),
    "a list": _write(b"[]\n"),
    "a text": _write(b'"all"\n'),
    "a newer schema": _change(r'("?schema_version"?: )\d', r"\g<1>999"),
    "an older schema": _change(r'("?schema_version"?: )\d', r"\g<1>0"),
    "a folder": _other(Path.mkdir),
    "a pipe": _other(os.mkfifo),
    "/dev/full": _other(lambda file: file.symlink_to("/dev/full")),
    "/dev/zero": _other(lambda file: file.symlink_to("/dev/zero")),
    "a link to itself": _other(lambda file: file.symlink_to(file)),
    "a link to nothing": _other(lambda file: file.symlink_to(file.with_name("nothing"))),
    "no permission": lambda file: file.chmod(0),
}


@dataclass(frozen=True, slots=True)
class Reader:
    """A command that reads a run folder.

    RUN in its words is the damaged one, RUNS the folder of it and others.
    """

    words: tuple[str, ...]
    kind: str
    """Which of the prepared folders it reads."""
    is_quick: bool = True
    """False for one that starts processes or runs cases."""


FILES = {
    "passing": ("run.json", "results.jsonl", "summary.json"),
    "failing": ("run.json", "results.jsonl", "summary.json", "blame.jsonl", "shrunk.jsonl"),
    "faults": ("run.json", "results.jsonl", "tried.jsonl", "faults.jsonl"),
    "shards": ("run.json", "results.jsonl", "accuracy/one/accuracy.jsonl"),
    "epochs": (
        "run.json",
        "results.jsonl",
        FILE_NAME,
        "acceptance.json",
        HITS_FILE,
        REPEATS_FILE,
        "baseline/stored.yaml",
    ),
    "killed epochs": (
        "run.json",
        FILE_NAME,
        "acceptance.json",
        HITS_FILE,
        REPEATS_FILE,
        "baseline/stored.yaml",
    ),
}
"""The files of each prepared folder."""
HERE = ("-n", "0", "--history", "none")
READERS: dict[str, Reader] = {
    "report": Reader(("report", "RUN"), "failing"),
    "report of faults": Reader(("report", "RUN", "--json"), "faults"),
    "report --markdown": Reader(("report", "RUN", "--markdown"), "failing"),
    "report --canonical": Reader(("report", "RUN", "--canonical"), "faults"),
    "report --pivot": Reader(("report", "RUN", "--pivot", "kernel/num_live"), "passing"),
    "report of epochs": Reader(("report", "RUN"), "epochs"),
    "report of killed epochs": Reader(("report", "RUN"), "killed epochs"),
    "coverage": Reader(("coverage", "RUN"), "passing"),
    "history": Reader(("history", "--history", "RUNS"), "failing"),
    "history of a scenario": Reader(
        ("history", "quantize", "--history", "RUNS", "--json"), "passing"
    ),
    "compare": Reader(("compare", "previous", "latest", "--history", "RUNS"), "passing"),
    "compare with two folders": Reader(("compare", "OTHER", "RUN"), "passing"),
    "merge": Reader(("merge", "OTHER", "RUN"), "shards"),
    "baseline update": Reader(("baseline", "update", "RUN", "--dir", "baselines"), "epochs"),
    "run --resume": Reader(("run", "--resume", "RUN", *HERE), "passing", is_quick=False),
    "run --resume of faults": Reader(("run", "--resume", "RUN", *HERE), "faults", is_quick=False),
    "run --last-failed": Reader(
        ("run", "--last-failed", "--out", "RUNS", "-n", "0", "--history", "none"),
        "failing",
        is_quick=False,
    ),
    "run --against": Reader(
        (
            "run",
            "quantize",
            "--scenarios",
            "SCENARIOS",
            "-n",
            "0",
            "--fail-on",
            "new",
            "--against",
            "RUN",
        ),
        "failing",
        is_quick=False,
    ),
    "epochs --resume": Reader(("epochs", "--resume", "RUN"), "killed epochs", is_quick=False),
}
COUNTS = re.compile(
    r"\d[\d,]* (?:pass|fail|crash|skip|error|known)\b|\"(?:pass|fail|crash|skip|error)\": \d+|\d+ %"
    r"|\"verdict\": \"\w+\"|\d+ of \d+\b"
)
LESS = re.compile(r"not[ -]run|not judged|no result|lacks \d+ of")
"""What is said of a case without a result."""


def prepare(folder: Path) -> None:
    """Write the whole run folders, each kind in a folder of its own."""
    scenarios = folder / "scenarios"
    scenarios.mkdir()
    for name, text in SCENARIOS.items():
        (scenarios / f"{name}.yaml").write_text(text)

    def run(kind: str, *words: str) -> None:
        code, said = called(
            "run", *words, "--scenarios", str(scenarios), *HERE, "--out", str(folder / kind)
        )
        assert code in (0, 1), said

    for _ in range(2):
        run("passing", "quantize")
        run("failing", "merge", "--fault", "merge.ignore-context-count", "--shrink-seconds", "2")
    run("faults", "merge", "--with-faults")
    for part in ("1/2", "2/2"):
        run("shards", "quantize", "--shard", part)
    _epochs(folder / "epochs", is_whole=True)
    _epochs(folder / "killed epochs", is_whole=False)
    for shard in (folder / "shards").iterdir():
        (shard / "accuracy" / "one").mkdir(parents=True)
        (answers,) = (folder / "epochs").glob(f"*/{FILE_NAME}")
        shutil.copy(answers, shard / "accuracy" / "one")


def _epochs(root: Path, *, is_whole: bool) -> None:
    """A run of `epochs` on a server; not `is_whole`: one that was killed before it was judged."""
    questions = tuple(f"q{number}" for number in range(40))
    measured = {
        "task": "gsm_symbolic",
        "filter": "strict-match",
        "model": "server:toy",
        "model_hash": "served:toy",
    }
    header = RunHeader(
        **measured, engine="server", dtype="as served", seed=0, num_epochs=2, questions=questions
    )
    asked = ModelParams(
        task="gsm_symbolic", model="server:http://127.0.0.1:9/v1", epochs=2, limit=40, repeat=2
    )

    def answer(folder: Path) -> None:
        log = AnswerLog(folder / FILE_NAME, header)
        for epoch in (1, 2):
            for place, name in enumerate(questions):
                log.add(
                    QuestionResult(
                        epoch=epoch, question=name, position=place, correct=True, answer_hash="a"
                    )
                )
            keep_drafts(folder, epoch, Drafts(100, 90))
            keep_hits(folder, epoch, Hits(100, 60))
        (folder / REPEATS_FILE).write_text("[]")

    with tempfile.TemporaryDirectory() as scratch:
        answer(Path(scratch))
        made = write_baseline(plan_update(read_run(Path(scratch)), Path(scratch)))
        stored = made.rename(made.with_name("stored.yaml"))
        store = create(root, header, asked, stored, "mla-harness epochs")
    answer(store.path)
    if is_whole:
        store.add(judged(store))


def called(*words: str) -> tuple[int, str]:
    """Run a command line here.

    Returns its exit code and all that it printed. Raises TimeoutError if it hangs.
    """

    def hangs(signum: int, frame: object) -> None:
        raise TimeoutError(f"{words[0]} hangs")

    printed = io.StringIO()
    before = signal.signal(signal.SIGALRM, hangs)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    signal.alarm(MOST_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, limits[1]))
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = exit_code_of(list(words))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return code, printed.getvalue()


def read(name: str, file: str, damage: str, prepared: Path, scratch: Path) -> list[str]:
    """Damage a file of a copy of a run, and let a command read it.

    Returns what goes wrong, a line each.
    """
    reader = READERS[name]
    whole = _call(reader, prepared, scratch / "whole")
    code, said = _call(reader, prepared, scratch / "damaged", damage=damage, file=file)
    where, wrong = f"{name}: {file}: {damage}: exit {code}", []
    if "Traceback" in said or "traceback" in said:
        wrong.append(f"{where}: a traceback: {said[-300:]}")
    if code not in (0, 1, 2):
        wrong.append(f"{where}: {said[-300:]}")
    if code == 0 and COUNTS.findall(said) != COUNTS.findall(whole[1]) and not LESS.search(said):
        wrong.append(f"{where}: {COUNTS.findall(said)} instead of {COUNTS.findall(whole[1])}")
    return wrong


def _call(
    reader: Reader, prepared: Path, scratch: Path, *, damage: str | None = None, file: str = ""
) -> tuple[int, str]:
    """Run a command on a fresh copy of the folders that it reads."""
    shutil.rmtree(scratch, ignore_errors=True)
    runs = scratch / "runs"
    shutil.copytree(prepared / reader.kind, runs)
    *others, run = sorted(runs.iterdir())
    known = {
        "RUNS": runs,
        "RUN": run,
        "OTHER": (others or [run])[0],
        "SCENARIOS": prepared / "scenarios",
    }
    words = [str(known.get(word, word)) for word in reader.words]
    with contextlib.chdir(scratch), contextlib.ExitStack() as stack:
        if damage is not None:
            DAMAGES[damage](run / file)
        if damage == "no permission":
            stack.enter_context(_forbidden(run / file))
        return called(*words)


@contextlib.contextmanager
def _forbidden(file: Path) -> Iterator[None]:
    """Let no one read a file, not even root, to whom a mode means nothing."""

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def opening(path: Any, *more: Any, **named: Any) -> Any:
            if isinstance(path, str | os.PathLike) and os.path.abspath(path) == str(file):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return original(path, *more, **named)

        return opening

    with (
        mock.patch("os.open", guarded(os.open)),
        mock.patch("io.open", guarded(io.open)),
        mock.patch("builtins.open", guarded(open)),
    ):
        yield


def main() -> None:
    """Read every damaged file by every command."""
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        prepared, scratch = Path(folder) / "prepared", Path(folder) / "scratch"
        prepared.mkdir()
        prepare(prepared)
        calls = [
            (name, file, damage)
            for name, one in READERS.items()
            for file in FILES[one.kind]
            for damage in DAMAGES
        ]
        for name, file, damage in calls:
            found += (wrong := read(name, file, damage, prepared, scratch))
            for line in wrong:
                print(line, flush=True)
    print(f"{len(calls)} calls, {len(found)} wrong")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
