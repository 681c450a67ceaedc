"""What every test leaves as it found it (kernels, loaded plug-ins), and processes that end with
their test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import exit_code_of
from harness.core.catalog import KERNELS
from harness.run import runner
from harness.run.fork_server import Forks, ForkServer

# A shell starts what runs in the background with Ctrl-C ignored, and processes inherit that: no
# test could send one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Matrices are small here. Several workers with several threads each would take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

Cli = Callable[..., tuple[int, str, str]]
StartProcess = Callable[..., "subprocess.Popen[str]"]
OF_EACH_TEST = ("PYTEST_CURRENT_TEST", "COLUMNS")
MAX_SERVERS = 3
_kept: dict[object, Forks] = {}


@pytest.fixture(autouse=True)
def _forget_kernels_that_a_test_registers() -> Iterator[None]:
    # Imported by whom it concerns only: with torch behind it, it would slow down tests of what
    # needs none.
    loaded = dict(getattr(sys.modules.get("harness.kernels.plugins"), "_loaded", {}))
    with KERNELS.scoped():
        yield
    plugins = sys.modules.get("harness.kernels.plugins")
    if plugins is not None:
        plugins._loaded.clear()
        plugins._loaded.update(loaded)


class _KeptForks(Forks):
    """Forks of one process for the pools of all tests with the same imports and environment
    variables.
    """

    def begin(self, environ: Mapping[str, str], seconds: float) -> None:
        """A server of an earlier test may be there, so none is started before one is used."""

    def server(self, environ: Mapping[str, str], seconds: float) -> ForkServer | None:
        variables = {
            name: value for name, value in os.environ.items() if name not in OF_EACH_TEST
        } | dict(environ)
        key = (tuple(self._imports), tuple(sorted(variables.items())))
        if key not in _kept:
            while len(_kept) >= MAX_SERVERS:
                _kept.pop(next(iter(_kept))).close()
            _kept[key] = Forks(self._imports, name=self._name)
        return _kept[key].server(environ, seconds)

    def close(self) -> None:
        pass


@pytest.fixture(scope="session", autouse=True)
def _end_the_processes_that_import_torch() -> Iterator[None]:
    yield
    for forks in _kept.values():
        forks.close()


@pytest.fixture(autouse=True)
def _keep_the_process_that_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers outlive the pools of a test."""
    monkeypatch.setattr(runner, "Forks", _KeptForks)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run one command line in an empty folder; returns exit code, standard output and standard
    error.
    """
    monkeypatch.chdir(tmp_path)
    # A run stores its command line. Without this it would be that of pytest.
    monkeypatch.setattr(sys, "argv", ["mla-harness"])
    # On a busy machine a line of progress would be one more line of what is compared.
    monkeypatch.setattr("harness.report.progress.SECONDS_BETWEEN_LINES", threading.TIMEOUT_MAX)

    def call(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = exit_code_of([str(word) for word in words])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def start_process() -> Iterator[StartProcess]:
    """Start a command, with options of `subprocess.Popen`; what it prints is text in a pipe.

    What still runs when the test ends is killed, so a test that fails leaves nothing behind.
    """
    started: list[subprocess.Popen[str]] = []

    def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options))
        return started[-1]

    yield start
    for process in started:
        # On leaving its block a process is waited for, and its pipes are closed.
        with process:
            process.kill()


@pytest.fixture
def start_server(start_process: StartProcess) -> Callable[..., str]:
    """Start a program of tests/servers with its arguments, which prints its port first.

    Returns its address.
    """

    def start(program: str, *words: str) -> str:
        script = Path(__file__).parent / "servers" / program
        process = start_process([sys.executable, str(script), *words])
        assert process.stdout is not None
        return f"http://127.0.0.1:{int(process.stdout.readline())}/v1"

    return start
