"""A program that reads malloc's memory before it writes gives other answers under the poison."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.run import poison_malloc
from tests.conftest import Cli
from tests.transcripts import Approved

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs cc on Linux"
)
PROGRAM = """\
#include <cstdio>
#include <cstdlib>
#include <cstring>

// A step of a server: the last numbers of its scratch memory are written in a right one alone.
static float answer(bool writes_all, size_t count) {
    float *scratch = nullptr;
    if (posix_memalign((void **)&scratch, 64, count * sizeof(float))) return -1;
    for (size_t n = 0; n < count - (writes_all ? 0 : 8); ++n) scratch[n] = 1.0f;
    float sum = 0;
    for (size_t n = 0; n < count; ++n) sum += scratch[n];
    free(scratch);
    return sum;
}

int main(int count, char **words) {
    bool writes_all = count < 2 || strcmp(words[1], "bug");
    char *copy = (char *)realloc(strdup("kept"), 1 << 16);
    size_t zeros = 0;
    char *cleared = (char *)calloc(1 << 16, 1);
    for (size_t n = 0; n < 1 << 16; ++n) zeros += !cleared[n];
    printf("%g %s %zu\\n", answer(writes_all, 1 << 12), copy, zeros);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "server.cpp").write_text(PROGRAM)
    command = ["cc", "-x", "c++", "-O1", str(folder / "server.cpp"), "-o", str(folder / "server")]
    subprocess.run(command, check=True)
    return folder / "server"


def said(program: Path, folder: Path, byte: int, *words: str) -> tuple[str, str]:
    environ = poison_malloc.environment(byte, folder, os.environ)
    done = subprocess.run([program, *words], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@needs_compiler
def test_memory_that_is_read_before_it_is_written_changes_an_answer(
    program: Path, tmp_path: Path
) -> None:
    plain = subprocess.run([program, "bug"], capture_output=True, text=True).stdout.split()
    assert float(plain[0]) == 4096 - 8, "fresh memory is zeros: a test of the program passes"
    answers = [said(program, tmp_path, byte, "bug")[0].split()[0] for byte in (255, 64)]
    assert "nan" in answers[0] and float(answers[1]) > 4096


@needs_compiler
def test_a_right_program_answers_as_before_and_calloc_keeps_its_zeros(
    program: Path, tmp_path: Path
) -> None:
    for byte in (255, 64, 0):
        answer, told = said(program, tmp_path, byte)
        assert answer == "4096 kept 65536"
        assert "poison-malloc: " in told and f"byte {byte}" in told
    assert len(list(tmp_path.glob("*.so"))) == 1, "compiled once"


@needs_compiler
def test_the_command_starts_the_program_with_filled_memory(program: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.cli.main", "serve", "--poison-malloc", "--"]
    environ = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, str(program), "bug"], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0 and "nan" in done.stdout, done.stderr


def test_what_cannot_be_started_is_refused(
    cli: Cli, tmp_path: Path, approved: Approved, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        ("serve",),
        ("serve", "--", "true"),
        ("serve", "--poison-malloc", "--", "no-such-program"),
    )
    approved([cli(*one)[2] for one in words])
    monkeypatch.setattr(poison_malloc.shutil, "which", lambda name: None)
    with approved.raises(InputError):
        poison_malloc.compiled(tmp_path)
