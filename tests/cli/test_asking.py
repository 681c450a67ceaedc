"""Questions about a file without a decorator: asked at a terminal alone."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from harness.cli.asking import ask, decorates, functions_of
from tests.transcripts import Approved

PLAIN = "import torch\n\ndef _helper(): ...\n\ndef prepare(): ...\n\ndef decode(q): ...\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "attempt.py"
    made.write_text(PLAIN)
    return made


def test_the_answers_are_the_words_of_a_decorator_which_is_printed(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    approved: Approved,
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("mla_decode\nflash\nflash_mla\ndecode\n"))
    name, words = ask(file, "")
    assert name == "decode"
    assert words == {"op": "mla_decode", "name": "decode", "style": "flash_mla"}
    approved(capsys.readouterr().err)


def test_an_op_without_styles_is_not_asked_for_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("write_kv\nprepare\n"))
    assert ask(file, "") == ("prepare", {"op": "write_kv", "name": "prepare"})


def test_nobody_is_asked_where_no_terminal_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("mla_decode\n"))
    assert ask(file, "decode") == ("decode", {})


def test_a_file_with_a_decorator_asks_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(PLAIN + "\n@kernel(op='write_kv', name='m')\ndef mine(): ...\n")
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert decorates(file) and ask(file, "") == ("", {})
    assert functions_of(file) == ["prepare", "decode", "mine"]
