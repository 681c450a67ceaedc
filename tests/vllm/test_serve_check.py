"""A server judged from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy.backends import Answer, Identity
from harness.accuracy.serve_check import Check, check_backend

pytest.importorskip("lm_eval")


class Server:
    """Answers every question alike; `moods` are the answers to repeats, in turn."""

    def __init__(self, *moods: str) -> None:
        self.moods = moods or ("8",)
        self.calls = 0

    @property
    def identity(self) -> Identity:
        return Identity(model="stub", engine="server", dtype="unknown", model_hash="name:stub")

    def generate(self, prompts: Sequence[str], *, on_answer: Any = None, **_: Any) -> list[Answer]:
        answers = [Answer(f"#### {self.moods[self.calls % len(self.moods)]}") for _ in prompts]
        self.calls += 1
        for i, answer in enumerate(answers):
            if on_answer:
                on_answer(i, answer)
        return answers

    def close(self) -> None:
        return None


def test_a_server_that_repeats_itself_is_told_so_with_its_accuracy() -> None:
    found = check_backend(Server(), Server(), Check(url="http://x/v1", limit=4, num_epochs=2, repeats=3))
    assert (found.num_repeated, found.different, len(found.record.epochs)) == (3, (), 2)


def test_a_second_greedy_answer_that_differs_fails_the_check() -> None:
    found = check_backend(Server(), Server("8", "9"), Check(url="http://x/v1", limit=4, num_epochs=2, repeats=3))
    assert found.different == (0, 1, 2) and not found.ok
    assert "prompts with a different second answer: 0, 1, 2" in found.lines()


def test_a_check_is_a_case_with_findings_of_both_oracles() -> None:
    good = check_backend(Server(), Server(), Check(url="http://x/v1", limit=4, num_epochs=2, repeats=3)).result()
    assert (good.verdict, good.findings, good.looked_at) == ("pass", (), {"accuracy": 8, "repeats": 3})
    check = Check(url="http://x/v1", limit=4, num_epochs=2, repeats=3, least=0.9)
    bad = check_backend(Server(), Server("8", "9"), check).result()
    assert bad.verdict == "fail" and {finding.oracle for finding in bad.findings} == {"accuracy", "repeats"}
    assert "3 of 3 greedy answers differ the second time: 0, 1, 2" in [finding.message for finding in bad.findings]


def test_accuracy_below_the_least_fails_the_check() -> None:
    found = check_backend(Server(), Server(), Check(url="http://x/v1", limit=4, num_epochs=2, least=0.9))
    assert found.record.verdict == "fail" and not found.ok


def test_an_unreachable_server_is_one_line_whatever_lies_where_the_user_stands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.cli.main import exit_code_of

    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("raise RuntimeError('a folder of somebody else')\n")
    monkeypatch.chdir(tmp_path)
    assert exit_code_of(["serve-check", "http://127.0.0.1:9/v1", "--limit", "2", "--timeout", "1"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "http://127.0.0.1:9/v1: no server answers there" in told
    assert "--model" not in told, "serve-check has no such option"


@pytest.mark.parametrize(
    ("kind", "key", "says"),
    [
        ("key", "", "/models: HTTP 401: the server wants a key; give it in OPENAI_API_KEY"),
        ("key", "wrong", "/models: HTTP 401: the server refuses the key in the environment variable OPENAI_API_KEY"),
        ("key", "right", "/completions: HTTP 403: the server refuses the key in the environment variable OPENAI_API_K"),
        ("chat", "", "/completions: HTTP 404: this server has chat only; /v1/completions is needed"),
        ("nothing", "", "/completions: HTTP 404: check the address, which ends in /v1, and --served-model"),
    ],
)
def test_a_server_that_refuses_is_answered_with_what_it_wants(
    start_server: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    key: str,
    says: str,
) -> None:
    from harness.cli.main import exit_code_of

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    assert exit_code_of(["serve-check", start_server("closed_server.py", kind), "--limit", "2"]) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1 and not (tmp_path / "reports").exists()


def test_a_check_leaves_a_run_folder_junit_and_history(
    start_server: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from harness.cli.main import exit_code_of

    monkeypatch.chdir(tmp_path)
    url = start_server("sum_server.py", "{}", "0")
    code = exit_code_of(["serve-check", url, "--limit", "2", "--epochs", "2", "--repeats", "2", "--json"])
    found = json.loads(capsys.readouterr().out)
    run = Path(found["directory"])
    assert code == (0 if found["ok"] else 1) and found["model"] == "server:adder"
    assert {"run.json", "results.jsonl", "report.html", "junit.xml", "results.csv"} <= {p.name for p in run.iterdir()}
    assert "serve-check[task=gsm_symbolic,model=server:adder]" in (run / "junit.xml").read_text()
    assert f"mla-harness serve-check {url} --task gsm_symbolic" in (run / "results.csv").read_text()
    assert exit_code_of(["history", "serve-check"]) == 0 and "1 case " in capsys.readouterr().out
    assert exit_code_of(["report", "latest"]) == 0
