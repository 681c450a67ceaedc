"""The reader of run folders takes nothing on trust, and notes what it leaves out; the writer ends
torn lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core import stored, unreadable
from harness.core.errors import InputError
from harness.core.stored import append_line, parsed, read_json, read_lines, read_text, set_aside
from tests.transcripts import Approved


@pytest.fixture(autouse=True)
def _begin_and_end_without_notes() -> Iterator[None]:
    unreadable.forget()
    yield
    unreadable.forget()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


GOOD = b'{"key": 1}\n'
BAD = {
    "NULs": bytes(8192),
    "half a line": b'{"key": \n',
    "NaN": b'{"key": NaN}\n',
    "1e400": b'{"key": 1e400}\n',
    "1e400 without an end": b'{"key": 1e400}',
    "many digits": b'{"key": ' + b"9" * 400 + b"}\n",
    "too many digits": b'{"key": ' + b"9" * 5000 + b"}\n",
    "deep": b"[" * 20_000 + b"\n",
    "deep without an end": b'{"key":' * 20_000,
    "no UTF-8": b'{"key": "\xff"}\n',
    "a NUL in it": b'{"key": "\x00',
    "no JSON": b"{'key': 1}",
}


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_cannot_be_read_is_left_out_and_noted_once(
    name: str, file: Path, approved: Approved
) -> None:
    file.write_bytes(
        GOOD + BAD[name] + (b"" if BAD[name].endswith(b"\n") else b"\n") + b"\n" + GOOD
    )
    for _ in range(2):
        assert list(read_lines(file)) == [{"key": 1}, {"key": 1}]
    (warning,) = unreadable.warnings()
    assert unreadable.num_lines(file) == 1
    approved(warning)
    file.write_bytes(BAD[name])
    unreadable.forget()
    assert list(read_lines(file)) == [] and unreadable.num_lines(file) == 1, "the last line alike"


@pytest.mark.parametrize("size", [1, 5, 9])
def test_a_last_line_that_a_kill_tore_is_no_damage_and_the_next_write_cuts_it_off(
    size: int, file: Path
) -> None:
    file.write_bytes(GOOD + GOOD[:size])
    assert list(read_lines(file)) == [{"key": 1}] and unreadable.warnings() == []
    append_line(file, '{"key": 2}')
    assert file.read_bytes() == GOOD + b'{"key": 2}\n'


def test_a_last_line_without_an_end_that_is_whole_or_foreign_is_ended(file: Path) -> None:
    for last in (GOOD[:-1], b"\0\0", b"some text"):
        file.write_bytes(GOOD + last)
        append_line(file, '{"key": 2}')
        assert file.read_bytes() == GOOD + last + b'\n{"key": 2}\n'


def test_several_lines_of_a_file_are_one_warning(file: Path, approved: Approved) -> None:
    file.write_bytes(b"\0\n" + GOOD + b"{\n")
    list(read_lines(file))
    (warning,) = unreadable.warnings()
    approved(warning)


def test_lines_are_set_aside_once_and_the_file_is_kept(file: Path) -> None:
    file.write_bytes(GOOD + b"\0\n" + GOOD + GOOD[:4])
    list(read_lines(file))
    before = file.read_bytes()
    assert set_aside(file) == 1 and unreadable.warnings() == []
    assert (
        file.read_bytes() == GOOD * 2
        and file.with_name("results.jsonl.damaged").read_bytes() == before
    )
    assert set_aside(file) == 0 and set_aside(file.with_name("none")) == 0
    file.write_bytes(GOOD + GOOD[:4])
    assert set_aside(file) == 0 and file.read_bytes() == GOOD, "a torn line alone is cut off"


def test_a_line_of_any_length_is_read_in_parts(
    file: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setattr(stored, "MOST_LINE_BYTES", 64)
    file.write_bytes(GOOD + b'{"key": "' + b"x" * 1000 + b'"}\n' + GOOD)
    assert list(read_lines(file)) == [{"key": 1}, {"key": 1}]
    approved(unreadable.warnings()[0])


def test_a_document_is_not_too_large_and_nests_no_deeper_than_ours_do(
    file: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    for depth in (200, 20_000):
        file.write_text("[" * depth + "]" * depth)
        with approved.raises(InputError):
            read_json(file)
    file.write_text("[" * 90 + "]" * 90)
    assert isinstance(read_json(file), list)
    monkeypatch.setattr(stored, "MOST_BYTES", 100)
    with approved.raises(InputError):
        read_text(file)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "lost").symlink_to(tmp_path / "nothing")
    kinds = {
        "": "a folder",
        "pipe": "a pipe",
        "zeros": "a device",
        "loop": "Too many levels",
        "lost": "a link to a file",
    }
    for name, told in kinds.items():
        for read in (read_json, lambda path: list(read_lines(path)), set_aside):
            with pytest.raises(InputError, match=told):
                read(tmp_path / name)
    assert list(read_lines(tmp_path / "none")) == []


def test_a_number_is_a_finite_one(approved: Approved) -> None:
    for text in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 301):
        with approved.raises(ValueError):
            parsed(f'{{"a": [{text}]}}')
    assert parsed('[1e308, -0.5, 7, "NaN"]') == [1e308, -0.5, 7, "NaN"]
