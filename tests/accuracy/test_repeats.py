"""`epochs` against a server: repeated answers, refusals, and the run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy.backends import Answer
from harness.accuracy.epochs import REPEATS_FILE, unrepeated
from harness.cli.main import exit_code_of
from harness.core.cause_codes import Code
from harness.store.epochs import judged
from harness.store.run_folder import RunStore
from tests.conftest import Cli
from tests.transcripts import Approved, lines_with

pytest.importorskip("lm_eval")
ASK = ("epochs", "--task", "gsm_symbolic", "--model")


def test_answers_that_repeat_are_told_from_answers_that_do_not(scripted: Any) -> None:
    assert unrepeated(scripted(lambda call, prompt: Answer("#### 8")), 3) == []
    assert unrepeated(scripted(lambda call, prompt: Answer(f"#### {call}")), 3) == [0, 1, 2]


def test_an_unreachable_server_is_one_line_whatever_lies_where_the_user_stands(
    cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text(
        "raise RuntimeError('a folder of somebody else')\n"
    )
    code, _, told = cli(*ASK, "server:http://127.0.0.1:9/v1", "--limit", 2, "--timeout", 1)
    assert code == 2 and told.count("\n") == 1
    approved(lines_with(told, "http://127.0.0.1:9/v1: no server"))


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("kind", "key", "says"),
    [
        ("key", "", "/models: HTTP 401: the server wants a key; give it in OPENAI_API_KEY"),
        (
            "key",
            "wrong",
            (
                "/models: HTTP 401: the server refuses the key in the environment variable"
                " OPENAI_API_KEY"
            ),
        ),
        (
            "key",
            "right",
            (
                "/completions: HTTP 403: the server refuses the key in the environment variable"
                " OPENAI_API_K"
            ),
        ),
        (
            "chat",
            "",
            "/completions: HTTP 404: this server has chat only; /v1/completions is needed",
        ),
        (
            "nothing",
            "",
            "/completions: HTTP 404: check the address, which ends in /v1, and --served-model",
        ),
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
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    # What the server's own process prints is not the command's, so `cli` is not used here.
    assert (
        exit_code_of([*ASK, "server:" + start_server("closed_server.py", kind), "--limit", "2"])
        == 2
    )
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1


def test_a_run_with_repeats_is_judged_by_both_oracles(
    start_server: Callable[..., str], cli: Cli, tmp_path: Path
) -> None:
    url = start_server("sum_server.py", "{}", "inf", "none")
    code, _, _ = cli(
        *ASK, f"server:{url}", "--limit", 2, "--epochs", 2, "--repeat", 2, "--least", 1
    )
    assert code == 1
    (run,) = (tmp_path / "reports" / "runs").iterdir()
    store = RunStore.open(run)
    (result,) = store.results()
    assert result.looked_at == {"accuracy": 4, "repeats": 2}
    assert {finding.oracle for finding in result.findings} == {"accuracy"}
    (run / REPEATS_FILE).write_text("[1]")
    found = [finding for finding in judged(store).findings if finding.oracle == "repeats"]
    assert [finding.cause for finding in found] == [Code.DIFFERS] and "1 of 2" in found[0].message


def test_a_canary_that_loses_what_it_knows_fails_with_nothing_to_compare_with(
    start_server: Callable[..., str], cli: Cli, approved: Approved
) -> None:
    # Each question of the task gets the answer 0.
    url = start_server("sum_server.py", "{}", "inf", "none")
    words = (*ASK, f"server:{url}", "--limit", 2, "--epochs", 1, "--served-model")
    code, out, _ = cli(*words, "adder")
    assert code == 2
    approved(lines_with(out, "could have shown nothing"), "another model")
    code, out, _ = cli(*words, "canary-mla")
    assert code == 1
    approved(lines_with(out, "is below"), "a canary")


def test_without_a_script_serve_check_names_the_command_that_asks_questions(
    cli: Cli, approved: Approved
) -> None:
    code, _, told = cli("serve-check", "http://127.0.0.1:9/v1")
    assert code == 2 and told.count("\n") == 1
    approved(lines_with(told, "mla-harness epochs --task"))
