"""What every test leaves as it found it (kernels, loaded plug-ins), and servers that end with their test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import exit_code_of
from harness.core.catalog import KERNELS
from harness.run import runner
from harness.run.fork_server import ForkServer

# Matrices are small here. Several workers with several threads each would take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

Cli = Callable[..., tuple[int, str, str]]
OF_EACH_TEST = ("PYTEST_CURRENT_TEST", "COLUMNS")
MAX_SERVERS = 3
_servers: dict[object, _KeptServer] = {}


@pytest.fixture(autouse=True)
def _forget_kernels_that_a_test_registers() -> Iterator[None]:
    # Imported by whom it concerns only: with torch behind it, it would slow down tests of what needs none.
    loaded = dict(getattr(sys.modules.get("harness.kernels.plugins"), "_loaded", {}))
    with KERNELS.scoped():
        yield
    plugins = sys.modules.get("harness.kernels.plugins")
    if plugins is not None:
        plugins._loaded.clear()
        plugins._loaded.update(loaded)


class _KeptServer(ForkServer):
    """A server that outlives its pool. It dies with this process."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="session", autouse=True)
def _end_the_processes_that_import_torch() -> Iterator[None]:
    yield
    for server in _servers.values():
        ForkServer.close(server)


@pytest.fixture(autouse=True)
def _keep_the_process_that_imports_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pools of all tests fork their workers from one process, for each set of environment variables."""

    def kept(imports: tuple[str, ...], *, environ: dict[str, str], **options: Any) -> ForkServer:
        variables = {name: value for name, value in os.environ.items() if name not in OF_EACH_TEST} | environ
        key = (imports, tuple(sorted(variables.items())))
        if key not in _servers or _servers[key].is_dead():
            while len(_servers) >= MAX_SERVERS:
                ForkServer.close(_servers.pop(next(iter(_servers))))
            _servers[key] = _KeptServer(imports, environ=environ, **options)
        return _servers[key]

    monkeypatch.setattr(runner, "ForkServer", kept)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run one command line in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = exit_code_of([str(word) for word in words])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def start_server() -> Iterator[Callable[..., str]]:
    """Start a program of tests/servers with its arguments, which prints its port first. Returns its address."""
    running: list[subprocess.Popen[str]] = []

    def start(program: str, *words: str) -> str:
        command = [sys.executable, str(Path(__file__).parent / "servers" / program), *words]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert running[-1].stdout is not None
        return f"http://127.0.0.1:{int(running[-1].stdout.readline())}/v1"

    yield start
    for process in running:
        process.kill()
        process.communicate()
