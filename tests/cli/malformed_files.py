"""Malformed files: scenarios, scripts, plug-ins, baselines, histories and run folders.

Each is refused in one line.

python tests/cli/malformed_files.py prints what the command line says about each.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness.cli.main import exit_code_of

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Malformed:
    """One malformed thing:

    `write` makes it in a folder and returns the words of the command that reads it.
    """

    kind: str
    name: str
    write: Callable[[Path], list[str]]


def every() -> list[Malformed]:
    """All of them."""
    return [*_scenarios(), *_scripts(), *_plugins(), *_baselines(), *_runs()]


def answer(one: Malformed, folder: Path) -> tuple[int, list[str]]:
    """The exit code, and the lines on standard error."""
    words = one.write(folder)
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = exit_code_of(words)
    return code, errors.getvalue().splitlines()


GOOD = """name: good
summary: one case
system: kernel
op: quantize_fp8
matrix: {kernel: [torch]}
"""
MOVES = "name: good\nsummary: one case\nsystem: moves\nparams: {move: host}\n"
HOST = "name: good\nsummary: one case\nsystem: sglang-host\nparams: {part: free-pages}\n"
SCRIPT = "name: own\nsummary: one step\nsteps:\n- {name: first, ask: ['a:1p']}\n"
SCRIPTS: dict[str, str | bytes] = {
    "empty": "",
    "a list": "- a\n- b\n",
    "no YAML": "a: [1, 2\n",
    "no UTF-8": b"name: \xff\xfe\n",
    "NUL": b"name: a\x00b\n",
    "a tag of Python": "!!python/object/apply:os.system ['touch owned']\n",
    "a tag of Python in a step": SCRIPT.replace("['a:1p']", "!!python/name:os.system"),
    "a depth of 2000": "name: " + "[" * 2000 + "\n",
    "a billion laughs": (
        "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise("abcdefghij"))
    ),
    "a key twice": SCRIPT + "name: other\n",
    "an unknown key": SCRIPT + "exec: true\n",
    "a name with an escape": SCRIPT.replace("own", '"\\e[31mred"'),
    "no steps": SCRIPT.partition("steps")[0],
    "a prompt that is no prompt": SCRIPT.replace("a:1p", "a b c"),
    "a prompt of no token": SCRIPT.replace("a:1p", "a:0"),
    "a prompt longer than any memory": SCRIPT.replace("a:1p", "a:1" + "0" * 30),
    "a prompt of more digits than Python reads": SCRIPT.replace("a:1p", "a:1" + "0" * 5000),
    "a prompt with an escape": SCRIPT.replace("'a:1p'", '"\\e[2J:1p"'),
    "a pool of infinity": SCRIPT.replace("ask", "fill: .inf, ask"),
    "an abort before the first": SCRIPT.replace("ask", "abort_after: [-1], ask"),
    "a deed that there is not": SCRIPT.replace("ask: ['a:1p']", "do: rm"),
    "an arrival of NaN": SCRIPT.replace("ask", "arrive_ms: [.nan], together: true, ask"),
}
SCENARIOS: dict[str, str | bytes] = {
    "empty": "",
    "a list": "- a\n- b\n",
    "a number": "7\n",
    "a text": "hello\n",
    "no YAML": "a: [1, 2\n",
    "a tab": "\tname: x\n",
    "no UTF-8": b"name: \xff\xfe\n",
    "NUL": b"name: a\x00b\n",
    "a tag of Python": "!!python/object/apply:os.system ['true']\n",
    "two documents": GOOD + "---\n" + GOOD,
    "a key twice": GOOD + "op: write_kv\n",
    "a merge key": "<<: 7\n" + GOOD,
    "an unknown anchor": "name: *gone\n",
    "no name": GOOD.replace("name: good\n", ""),
    "a name with a slash": GOOD.replace("good", "a/b"),
    "a name with an escape": GOOD.replace("good", '"\\e[31mred"'),
    "no op": GOOD.replace("op: quantize_fp8\n", ""),
    "an unknown op": GOOD.replace("quantize_fp8", "quantise"),
    "an unknown system": GOOD.replace("kernel\nop", "kernal\nop"),
    "an unknown kernel": GOOD.replace("[torch]", "[torhc]"),
    "a move that there is not": MOVES.replace("host", "hots"),
    "a move of no block": MOVES.replace("}", ", num_blocks: 0}"),
    "a move of a page that divides into no kernel blocks": MOVES.replace(
        "}", ", block_size: 100, kernel_block: 64}"
    ),
    "a move of requests of no tokens": MOVES.replace("}", ", requests: [[0, 0]]}"),
    "a move of more blocks than memory has": MOVES.replace("}", ", num_blocks: 1" + "0" * 30 + "}"),
    "a part of SGLang that there is not": HOST.replace("free-pages", "../../etc/passwd"),
    "a part of SGLang with an escape": HOST.replace("free-pages", '"\\e]0;owned\\a"'),
    "a page of SGLang of no slots": HOST.replace("}", ", page_size: 0}"),
    "a survey of no option": (
        GOOD.replace("kernel\nop: quantize_fp8", "sglang").replace("kernel: [torch]", "back: [x]")
    ),
    "an empty axis": GOOD.replace("[torch]", "[]"),
    "an axis of maps": GOOD.replace("[torch]", "[[{}]]"),
    "an unknown oracle": GOOD + "oracles: [fnite]\n",
    "an unknown fault": GOOD + "faults: [{name: no.such, caught_by: finite}]\n",
    "a value out of range": GOOD + "params: {num_tokens: -1}\n",
    "a value of infinity": GOOD + "params: {num_tokens: .inf}\n",
    "a very large number": GOOD + "params: {num_tokens: 1" + "0" * 400 + "}\n",
    "a depth of 2000": "name: " + "[" * 2000 + "\n",
}


def _scenarios() -> Iterator[Malformed]:
    for name, content in SCENARIOS.items():

        def write(folder: Path, content: str | bytes = content) -> list[str]:
            (folder / "one.yaml").write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
            return [
                "run",
                "--scenarios",
                str(folder),
                "--history",
                "none",
                "--out",
                str(folder / "runs"),
            ]

        yield Malformed("scenario", name, write)
    yield Malformed(
        "scenario",
        "a folder that is not there",
        lambda folder: ["run", "--scenarios", str(folder / "gone")],
    )


def _scripts() -> Iterator[Malformed]:
    for name, content in SCRIPTS.items():

        def write(folder: Path, content: str | bytes = content) -> list[str]:
            (folder / "own.yaml").write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
            script, out = str(folder / "own.yaml"), str(folder / "runs")
            return [
                "serve-check",
                "http://127.0.0.1:9/v1",
                "--script",
                script,
                "--timeout",
                "1",
                "--out",
                out,
            ]

        yield Malformed("script", name, write)


HEAD = "import torch\nfrom harness import kernel\n\n"
DECORATED = HEAD + "@kernel({})\ndef mine(x, *, num_live=None):\n    return x\n"
PLUGINS: dict[str, str | bytes] = {
    "empty": "",
    "no Python": "def (:\n",
    "no UTF-8": b"x = '\xff\xfe'\n",
    "NUL": b"x = 1\x00\n",
    "an exception": "1 / 0\n",
    "an exception of many lines": "raise ValueError('a\\nb\\nc')\n",
    "an exception with escapes": "raise ValueError('\\x1b[31mred')\n",
    "exit": "import sys\nsys.exit(0)\n",
    "a missing module": "import no_such_module\n",
    "no kernel": "x = 1\n",
    "an unknown op": DECORATED.format("op='quantise', name='mine_0'"),
    "no name": DECORATED.format("op='quantize_fp8', name=''"),
    "a name with a slash": DECORATED.format("op='quantize_fp8', name='a/b'"),
    "a name that is taken": DECORATED.format("op='quantize_fp8', name='torch'"),
    "an unknown device": DECORATED.format("op='quantize_fp8', name='mine_1', devices=('tpu',)"),
    "no device": DECORATED.format("op='quantize_fp8', name='mine_2', devices=()"),
    "a device as a text": DECORATED.format("op='quantize_fp8', name='mine_3', devices='cpu'"),
    "an unknown promise": DECORATED.format("op='quantize_fp8', name='mine_4', empty_rows='zero'"),
    "unknown shapes": DECORATED.format("op='quantize_fp8', name='mine_5', shapes='gpt'"),
    "a wrong signature": (
        HEAD + "@kernel(op='quantize_fp8', name='mine_6')\ndef mine(x):\n    return x\n"
    ),
}


def _plugins() -> Iterator[Malformed]:
    for name, content in PLUGINS.items():

        def write(folder: Path, content: str | bytes = content) -> list[str]:
            file = folder / "mine.py"
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
            out = ["--history", "none", "--out", str(folder / "runs"), "-n", "0"]
            return ["run", "quantize-kernel", "--plugin", str(file), *out]

        yield Malformed("plug-in", name, write)


def _baselines() -> Iterator[Malformed]:
    good = next(
        (ROOT / "fixtures" / "baselines").glob("gsm_symbolic-canary-mla*bf16.yaml")
    ).read_text()
    lines = good.splitlines(keepends=True)
    changes: dict[str, str | bytes] = {
        "empty": "",
        "a list": "- 1\n",
        "no YAML": "{",
        "no UTF-8": b"task: \xff\n",
        "a tag of Python": "!!python/object/apply:os.system ['true']\n",
        "a newer schema": good.replace("schema_version: 1", "schema_version: two"),
        "accuracy of 2": good.replace("accuracy: 1.0", "accuracy: 2.0"),
        "accuracy of NaN": good.replace("accuracy: 1.0", "accuracy: .nan"),
        "another accuracy": good.replace("accuracy: 1.0", "accuracy: 0.5"),
        "another count": good.replace("num_questions: 1319", "num_questions: 7"),
        "a count of text": good.replace("num_questions: 1319", "num_questions: many"),
        "answers as a number": "".join(lines[:11]) + "right: 7\nwrong: ''\n",
        "cut off": "".join(lines[:9]),
        "cut off in the answers": "".join(lines[:20]),
        "an unknown key": good + "more: 1\n",
        "a date of text": good.replace("recorded: '", "recorded: [").replace("21'", "21]"),
    }
    for number, line in enumerate(lines[1:5]):
        changes[f"without {line.partition(':')[0]}"] = (
            good.replace(line, "", 1) if number else good.replace(line, "")
        )
    for name, content in changes.items():

        def write(folder: Path, content: str | bytes = content) -> list[str]:
            (folder / "one.yaml").write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
            return ["baseline", "show", "--dir", str(folder)]

        yield Malformed("baseline", name, write)


def _runs() -> Iterator[Malformed]:
    plan: dict[str, object] = {
        "schema_version": 2,
        "run_id": "r",
        "started": "2026-11-22T10:00:00+00:00",
        "command": "mla-harness run",
        "jobs": [],
    }
    job = {
        "key": "a",
        "case": {
            "id": "a",
            "scenario": "a",
            "system": "kernel",
            "op": "quantize_fp8",
            "params": {},
        },
    }
    texts: dict[str, str | bytes] = {
        "an empty file": "",
        "no JSON": "{",
        "a list": "[]",
        "no UTF-8": b"\xff\xfe{}",
        "no schema": json.dumps({**plan, "schema_version": None}),
        "a newer schema": json.dumps({**plan, "schema_version": 999}),
        "an older schema": json.dumps({**plan, "schema_version": 1}),
        "a schema of text": json.dumps({**plan, "schema_version": "1"}),
        "no id": json.dumps({key: value for key, value in plan.items() if key != "run_id"}),
        "jobs as a text": json.dumps({**plan, "jobs": "all"}),
        "a job without a case": json.dumps({**plan, "jobs": [{"key": "a"}]}),
        "an unknown system": json.dumps(
            {**plan, "jobs": [{**job, "case": {**job["case"], "system": "engin"}}]}
        ),
        "an unknown op": json.dumps(
            {**plan, "jobs": [{**job, "case": {**job["case"], "op": "quantise"}}]}
        ),
        "params as a list": json.dumps(
            {**plan, "jobs": [{**job, "case": {**job["case"], "params": [1]}}]}
        ),
        "a depth of 20000": "[" * 20000,
    }
    for name, content in texts.items():

        def write(folder: Path, content: str | bytes = content) -> list[str]:
            (folder / "run.json").write_bytes(
                content if isinstance(content, bytes) else content.encode()
            )
            return ["report", str(folder), "--history", "none"]

        yield Malformed("run folder", name, write)
    lines: dict[str, tuple[str, str]] = {
        "a result of another schema": ("results.jsonl", '{"schema_version": 999}'),
        "a result without a key": ("results.jsonl", '{"schema_version": 2}'),
        "a result that is a list": ("results.jsonl", "[1]"),
        "a blame without a key": ("blame.jsonl", '{"schema_version": 2, "blame": 7}'),
        "a fault without a name": ("faults.jsonl", '{"schema_version": 2}'),
    }
    for name, (file, line) in lines.items():

        def write_line(folder: Path, file: str = file, line: str = line) -> list[str]:
            (folder / "run.json").write_text(json.dumps({**plan, "jobs": [job]}))
            (folder / file).write_text(line + "\n")
            return ["report", str(folder), "--history", "none"]

        yield Malformed("run folder", name, write_line)
    yield Malformed(
        "run folder",
        "a folder without a run",
        lambda folder: ["report", str(folder), "--history", "none"],
    )
    yield Malformed(
        "run folder",
        "a run that is not there",
        lambda folder: ["report", "gone", "--out", str(folder)],
    )


def _ignore(value: object) -> None:
    """Drop the result of a function whose caller wants none."""


def main() -> None:
    """Print the exit code and the line for each."""
    wrong = 0
    for one in every():
        with tempfile.TemporaryDirectory() as folder:
            code, lines = answer(one, Path(folder))
            is_wrong = code != 2 or len(lines) != 1 or "Traceback" in lines[0] or "\x1b" in lines[0]
            wrong += is_wrong
            print(
                f"{'WRONG ' if is_wrong else ''}{one.kind}: {one.name}: exit {code}, {len(lines)} line: {lines[:2]}"[  # noqa: E501
                    :300
                ]
            )
    print(f"{len(every())} malformed, {wrong} not refused with one line and exit code 2")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
