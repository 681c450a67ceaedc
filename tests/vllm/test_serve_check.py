"""A server judged from outside."""

from __future__ import annotations

from collections.abc import Sequence
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
    assert (found.num_repeated, found.different, len(found.accuracy)) == (3, (), 2)


def test_a_second_greedy_answer_that_differs_fails_the_check() -> None:
    found = check_backend(Server(), Server("8", "9"), Check(url="http://x/v1", limit=4, num_epochs=2, repeats=3))
    assert found.different == (0, 1, 2) and not found.ok
    assert "prompts with a different second answer: 0, 1, 2" in found.lines()


def test_accuracy_below_the_least_fails_the_check() -> None:
    found = check_backend(Server(), Server(), Check(url="http://x/v1", limit=4, num_epochs=2, least=0.9))
    assert found.verdict == "fail" and not found.ok


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
