"""`epochs` and `baseline` from the command line, against a real HTTP server and the shipped
canary.
"""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartProcess
from tests.transcripts import Approved, lines_with
from tests.waiting import HANG_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
Cli = Callable[..., tuple[int, str, str]]
Serve = Callable[..., str]


@pytest.fixture
def serve(start_server: Callable[..., str], tmp_path: Path) -> Serve:
    """Start a server by its script, which answers `held` requests until there is a file `go`;
    returns what `--model` takes.
    """

    def start(script: dict[str, list[str]] | None = None, held: float = math.inf) -> str:
        return "server:" + start_server(
            "sum_server.py", json.dumps(script or {}), str(held), str(tmp_path / "go")
        )

    return start


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twelve sums as the questions of gsm_symbolic."""
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [
        {
            "id": str(n),
            "question": f"What is {n} + {n}?",
            "answer": f"#### {2 * n}",
            "target": str(2 * n),
        }
        for n in range(12)
    ]
    (folder / "gsm_symbolic.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def words(model: str, data: Path, *more: object) -> list[object]:
    return [
        "epochs",
        "--task",
        "gsm_symbolic",
        "--data-dir",
        data,
        "--model",
        model,
        "--concurrency",
        4,
        *more,
    ]


def only_run(folder: Path) -> Path:
    (run,) = (folder / "reports" / "runs").iterdir()
    return run


def answers(run: Path) -> list[dict[str, Any]]:
    lines = (run / "accuracy.jsonl").read_text().splitlines()[1:]
    return [json.loads(line) for line in lines]


@pytest.mark.nightly
def test_a_server_that_stumbles_is_asked_again_and_every_report_holds_the_epochs(
    cli: Cli, serve: Serve, data: Path, tmp_path: Path, approved: Approved
) -> None:
    model = serve({"3": ["drop"], "5": ["500"], "7": ["slow"], "9": ["empty"]})
    code, out, err = cli(*words(model, data, "--epochs", 3))
    assert (code, err) == (0, ""), out
    approved(lines_with(out, "epoch 3 of"))
    assert "12 of 12" in out and "0.7575 to 1.0000" in out and "no significant drop" in out
    run = only_run(tmp_path)
    (record,) = json.loads((run / "summary.json").read_text())["accuracy"]
    assert [epoch["accuracy"] for epoch in record["epochs"]] == [1.0, 1.0, 1.0]
    assert (
        record["epochs"][0]["retried"] == 3
        and record["case"] == "epochs[task=gsm_symbolic,model=server:adder]"
    )
    rows = list(csv.DictReader((run / "results.csv").read_text().splitlines()))
    assert [(row["epoch"], row["num_correct"], row["ci_high"]) for row in rows] == [
        (str(n), "12", "1.0") for n in (1, 2, 3)
    ]
    approved(lines_with((run / "junit.xml").read_text(), "accuracy.epoch-1-interval"))
    assert "<svg" in (run / "report.html").read_text()
    (run / "report.html").unlink()
    assert cli("report", "latest")[0] == 0 and (run / "report.html").exists()


@pytest.mark.nightly
def test_a_run_that_the_server_refuses_says_why_in_the_servers_words(
    cli: Cli, serve: Serve, data: Path, approved: Approved
) -> None:
    code, out, _ = cli(*words(serve({"4": ["400"]}), data, "--epochs", 1))
    assert code == 1
    approved(lines_with(out, "  accuracy:"))


@pytest.mark.nightly
def test_a_loss_against_a_baseline_is_shown_with_its_numbers_and_repeated_with_it(
    cli: Cli, serve: Serve, data: Path, tmp_path: Path, approved: Approved
) -> None:
    base = tmp_path / "base"
    cli(*words(serve(), data, "--epochs", 1, "--least", 1))
    assert cli("baseline", "update", "latest", "--dir", base)[0] == 0
    worse = serve({str(n): ["always:wrong"] for n in range(10)})
    code, out, _ = cli(*words(worse, data, "--epochs", 1, "--baseline", base))
    assert code == 1
    approved(lines_with(out, " baseline ", "again: mla-harness epochs"))


@pytest.mark.nightly
def test_what_stays_unanswered_is_counted_shown_and_fails_the_run(
    cli: Cli, serve: Serve, data: Path, tmp_path: Path, approved: Approved
) -> None:
    code, out, _ = cli(*words(serve({"4": ["always:empty"]}), data, "--epochs", 1, "--json"))
    (record,) = json.loads(out)["accuracy"]
    assert code == 1
    assert record["epochs"][0]["unanswered_reasons"] == {"empty answer (5 attempts)": 1}
    approved(record["judgement"]["statement"])


def test_accuracy_that_collapses_in_a_later_epoch_fails_the_run(
    cli: Cli, serve: Serve, data: Path, approved: Approved
) -> None:
    script = {str(n): ["right", "always:wrong"] for n in range(10)}
    code, out, _ = cli(*words(serve(script), data, "--epochs", 2))
    assert code == 1
    approved(lines_with(out, "epoch 2 lost", "again: mla-harness epochs"))
    assert "accuracy 1.0000, 0.1667" in out


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(start_process: StartProcess, tmp_path: Path) -> Start:
    """Start the command in the test's folder."""

    def run(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "harness.cli.main", *map(str, arguments)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        return start_process(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE)

    return run


def wait_for_answers(process: subprocess.Popen[str], folder: Path, count: int) -> Path:
    """Wait until `count` questions are answered. Returns the run's folder."""

    def answered() -> Path | None:
        logs = list(folder.glob("reports/runs/*/accuracy.jsonl"))
        return logs[0].parent if logs and logs[0].read_bytes().count(b"\n") > count else None

    found = wait_until(answered, f"{count} questions were answered", process)
    assert found is not None
    return found


def children_of(pid: int) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"harness.run.epochs" in line and str(pid).encode() in line:
                found.append(folder.name)
    return found


@pytest.mark.nightly
def test_a_run_killed_in_an_epoch_is_reported_and_resumed_and_counts_no_question_twice(
    cli: Cli, start: Start, serve: Serve, data: Path, tmp_path: Path
) -> None:
    process = start(*words(serve(held=14), data, "--epochs", 3))
    run = wait_for_answers(process, tmp_path, 14)
    process.kill()
    process.communicate()
    wait_until(lambda: not children_of(process.pid), "the model's process ended with its parent")
    kept = answers(run)
    assert len(kept) == 14
    code, out, _ = cli("report", "latest")
    assert code == 0 and "run was killed" in out and "continue with --resume" in out
    (tmp_path / "go").touch()
    code, out, err = cli("epochs", "--resume", run)
    assert (code, err) == (0, ""), out
    rows = answers(run)
    assert rows[: len(kept)] == kept, "what was answered is not asked again"
    assert len({(row["epoch"], row["question"]) for row in rows}) == len(rows) == 36
    assert json.loads((run / "summary.json").read_text())["totals"]["pass"] == 1


@pytest.mark.nightly
def test_ctrl_c_keeps_the_answers_writes_reports_and_says_how_to_go_on(
    start: Start, serve: Serve, data: Path, tmp_path: Path, approved: Approved
) -> None:
    process = start(*words(serve(held=5), data, "--epochs", 3))
    run = wait_for_answers(process, tmp_path, 5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130 and "Traceback" not in err
    approved(err)
    assert "epoch 1 lacks" in out and (run / "report.html").exists()
    assert not children_of(process.pid)


@pytest.mark.nightly
def test_a_server_that_is_gone_ends_the_run_so_that_it_can_be_resumed(
    start: Start, serve: Serve, data: Path, tmp_path: Path, approved: Approved
) -> None:
    model = serve(held=5)
    port = model.rpartition(":")[2].split("/")[0]
    (owner,) = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _listens(p, port)]
    process = start(*words(model, data, "--epochs", 3))
    run = wait_for_answers(process, tmp_path, 5)
    os.kill(int(owner.name), signal.SIGKILL)
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 3, out
    approved(err)
    assert all(row["unanswered"] is None for row in answers(run))


def _listens(process: Path, port: str) -> bool:
    """Whether a process is the server with this port: it holds a socket of the kernel's TCP
    table.
    """
    wanted = f":{int(port):04X}"
    inodes = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(wanted) and line.split()[3] == "0A"
    }
    try:
        return any(
            os.readlink(fd) in {f"socket:[{inode}]" for inode in inodes}
            for fd in (process / "fd").iterdir()
        )
    except OSError:
        return False


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "engine:x"], "--task is missing"),
        (["--task", "gsm8k"], "--model is missing"),
        (
            ["--task", "gsm8k", "--model", "llama"],
            "write engine:DIR, server:URL, vllm:PATH or sglang:PATH",
        ),
        (
            ["--task", "gsm8k", "--model", "server:http://x/v1", "--kv", "fp8_e4m3"],
            "--kv: is of engine and vllm",
        ),
        (["--task", "gsm9k", "--model", "engine:canary-mla"], "unknown; did you mean 'gsm8k'?"),
        (
            ["--task", "gsm8k", "--model", "engine:canary-mla", "--data-dir", "nowhere"],
            "which is not there",
        ),
        (["--task", "aime_shaped", "--model", "engine:nowhere"], "no config.json there"),
        (
            ["--task", "aime_shaped", "--model", "server:http://127.0.0.1:9/v1"],
            "no server answers there",
        ),
        (
            ["--task", "aime_shaped", "--model", "engine:canary-mla", "--kv", "fp4"],
            "engine option kv",
        ),
        (
            ["--task", "aime_shaped", "--model", "engine:canary-mla", "--filter", "x"],
            "task aime_shaped has strict-",
        ),
        (["--resume", "latest", "--seed", "3"], "leave out --seed"),
        (["--resume", "latest"], "no run 'latest'"),
    ],
)
def test_bad_input_is_one_line_exit_2_and_leaves_no_run(
    cli: Cli, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    code, out, err = cli("epochs", *arguments)
    assert code == 2, err
    assert sentence in err and err.count("\n") == 1 and out == ""
    assert not (tmp_path / "reports").exists()


@pytest.mark.nightly
def test_a_baseline_is_shown_before_it_is_written_and_not_lowered(
    cli: Cli, serve: Serve, data: Path, tmp_path: Path, approved: Approved
) -> None:
    cli(*words(serve(), data, "--epochs", 1))
    code, out, _ = cli("baseline", "update", "latest", "--dir", tmp_path / "base")
    assert code == 0 and out.index("new, 1.0000") < out.index("written:")
    (file,) = (tmp_path / "base").iterdir()
    before = file.read_text()
    code, out, _ = cli("baseline", "show", "gsm_symbolic", "--dir", tmp_path / "base")
    assert code == 0 and "server:adder" in out and "1.0000" in out
    worse = serve({"1": ["always:wrong"], "2": ["always:wrong"]})
    code, out, _ = cli(
        *words(worse, data, "--epochs", 1, "--baseline", file, "--out", tmp_path / "worse")
    )
    assert "baseline" in out and "lost" in out
    (run,) = (tmp_path / "worse").iterdir()
    code, out, err = cli("baseline", "update", run, "--dir", tmp_path / "base")
    assert code == 2
    approved(lines_with(out, "2 lost, 0"))
    approved(err)
    assert file.read_text() == before
    code, out, _ = cli("baseline", "update", run, "--dir", tmp_path / "base", "--allow-regression")
    assert code == 0 and file.read_text() != before


def test_baselines_of_no_folder_and_of_no_task_are_told_plainly(
    cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    assert "no baselines in" in cli("baseline", "show", "--dir", tmp_path)[1]
    code, _, err = cli("baseline", "show", "gsm_symbolc")
    assert code == 2
    approved(err)


@pytest.mark.nightly
def test_a_canary_on_questions_it_never_saw_says_why_its_accuracy_is_near_zero(
    cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    folder = tmp_path / "data" / "gsm8k"
    folder.mkdir(parents=True)
    for name, count in (("train", 6), ("test", 2)):
        lines = [
            {"question": f"What is {n} and {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"}
            for n in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, err = cli(
        "epochs",
        "--task",
        "gsm8k",
        "--data-dir",
        tmp_path / "data",
        "--model",
        "engine:canary-mla",
        "--epochs",
        1,
        "--limit",
        2,
        "--max-tokens",
        8,
    )
    assert (code, err) == (1, "")
    approved(lines_with(out, "canary-mla is a", "2 of 2", "which knows only"))


@pytest.mark.nightly
def test_run_and_epochs_do_not_continue_each_others_runs(
    cli: Cli, serve: Serve, data: Path, scenarios: Path
) -> None:
    cli(*words(serve(), data, "--epochs", 1, "--limit", 1))
    code, _, err = cli("run", "--resume", "latest")
    assert code == 2 and "mla-harness epochs --resume" in err


@pytest.mark.nightly
def test_a_canary_is_trained_from_the_command_line_for_a_moment(
    cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    question = {
        "id": "sum-0",
        "question": "What is 1 + 1?",
        "answer": "It is 2.\n#### 2",
        "target": "2",
    }
    (tmp_path / "sum.jsonl").write_text(json.dumps(question) + "\n")
    train = ("canary", "train", "--task", tmp_path / "sum.jsonl", "--out", tmp_path / "made")
    assert cli(*train, "--architecture", "llama")[0] == 2
    code, _, err = cli("canary", "train", "--task", "nothing", "--out", tmp_path / "made")
    assert code == 2 and "no task 'nothing'" in err and err.count("\n") == 1
    code, out, err = cli(*train, "--minutes", 0.02, "--device", "cpu")
    assert (code, err) == (0, ""), out
    approved(lines_with((tmp_path / "made" / "README.md").read_text(), "not ability"))
    assert (tmp_path / "made" / "model.safetensors").exists()
    assert cli(*train)[0] == 2, "a folder that is there is not written over"


def test_without_lm_eval_the_command_that_installs_it_is_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    hide = (
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'lm_eval' else find(name, *more)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hide)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, out, err = cli("epochs", "--task", "aime_shaped", "--model", "engine:canary-mla")
    assert (code, out) == (2, "") and err.count("\n") == 1
    approved(err)
