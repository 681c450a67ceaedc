"""A kernel in a cell: what crosses, what does not, and how its failures are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

import harness
from harness.cell import client
from harness.cell.client import load_in_cell, unload
from harness.core.cases import CellOf
from harness.core.catalog import SITES
from harness.core.cause_codes import Code
from harness.core.errors import BrokenPlugin, InputError, KernelError, Refused
from harness.core.kernels import KernelSpec
from harness.kernels.call import BoundKernel
from harness.kernels.conduct import CONDUCT
from harness.kernels.outputs import BadOutput
from harness.run.cell_server import CellServer
from tests.transcripts import Approved
from tests.waiting import wait_until

HEAD = """
import os, sys, torch
from harness import Refused, kernel

calls = []

@kernel(op="quantize_fp8", name="celled")
def mine(x, *, num_live=None):
"""
RIGHT = """
    live = x if num_live is None else x[:num_live]
    scale = (live.float().abs().amax() / 448).clamp_min(1e-12)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)
"""
READS = """
import contextlib, pathlib
JUDGE = {path!r}

def reads(path):
    with contextlib.suppress(OSError):
        pathlib.Path(path).read_text()
"""
NAN = Poison("nan", frozenset(SITES.names()))


@pytest.fixture(scope="module")
def server() -> Iterator[CellServer]:
    with CellServer() as made:
        made.wait_until_ready()
        yield made


class Loader:
    """Loads kernels with a body, and unloads them after the test."""

    def __init__(self, server: CellServer, folder: Path) -> None:
        self.where, self.folder = CellOf(server=server.path), folder
        self.paths: list[str] = []

    def __call__(self, body: str, head: str = HEAD) -> KernelSpec:
        file = self.folder / f"kernel_{len(self.paths)}.py"
        file.write_text(head + body)
        self.paths.append(str(file))
        (spec,) = load_in_cell(self.where, str(file))
        return spec


@pytest.fixture
def load(server: CellServer, tmp_path: Path) -> Iterator[Loader]:
    loader = Loader(server, tmp_path)
    yield loader
    for path in loader.paths:
        unload(loader.where, path)


def call(spec: KernelSpec, x: torch.Tensor | None = None) -> Any:
    given = torch.randn(4, 32, dtype=torch.bfloat16) if x is None else x
    return BoundKernel(spec, NAN)(given, num_live=None)


def test_the_result_of_a_kernel_comes_back(load: Loader) -> None:
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    values, scale = call(load(RIGHT), x)
    assert values.dtype == torch.float8_e4m3fn and values.shape == (4, 32)
    assert torch.allclose(scale, x.float().abs().amax() / 448)


def test_what_it_leaves_unwritten_holds_poison(load: Loader) -> None:
    body = "\n    return torch.empty(x.shape, dtype=torch.bfloat16), torch.empty(1)\n"
    values, _ = call(load(body))
    assert bool(values.isnan().all())


def test_an_input_that_it_writes_is_written_here_too(load: Loader) -> None:
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    call(load("\n    x.zero_()" + RIGHT), x)
    assert not bool(x.any())


def test_it_finds_no_judge_in_its_process(load: Loader, approved: Approved) -> None:
    body = "\n    from harness.evidence import compare" + RIGHT
    with approved.raises(KernelError) as raised:
        call(load(body))
    assert raised.value.cause == Code.CHEATS


def test_the_harness_has_no_other_name_in_its_process(load: Loader) -> None:
    names = "\n    import harness, mla_harness"
    same = "\n    assert mla_harness is harness and not hasattr(mla_harness, 'own_names')"
    call(load(names + same + RIGHT))


def test_no_module_of_the_judge_is_loaded_in_its_process(load: Loader) -> None:
    body = "\n    assert not [n for n in sys.modules if n.startswith('harness.')], 'judge'" + RIGHT
    call(load(body))


def test_walls_hide_the_files_of_the_judge_and_the_network(load: Loader) -> None:
    body = (
        "\n    import socket\n    names = [n for _, n in socket.if_nameindex()]"
        "\n    raise Refused(f'{names} {os.getcwd()}')\n"
    )
    spec = load(body)
    with pytest.raises(Refused) as refused:
        call(spec)
    standing = spec.impl.cell.walls  # type: ignore[union-attr]
    if "network" not in standing:
        pytest.skip("this system has no namespaces for users")
    assert "['lo']" in str(refused.value) and "mla-harness-cell-" in str(refused.value)


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        ("\n    raise ValueError('no')\n", KernelError, "raised ValueError: no"),
        ("\n    raise Refused('too small')\n", Refused, "too small"),
        ("\n    import not_there_at_all\n", BrokenPlugin, "not_there_at_all"),
        ("\n    os._exit(0)\n", KernelError, "ended its process: exit code 0"),
        ("\n    os.kill(os.getpid(), 9)\n", KernelError, "ended its process: SIGKILL"),
        ("\n    return 'nothing', 1\n", BadOutput, "as str; return a torch.Tensor"),
        (
            "\n    class T(torch.Tensor): pass\n    return x.as_subclass(T), x\n",
            BadOutput,
            "a subclass of torch.Tensor",
        ),
    ],
)
def test_each_failure_of_a_kernel_is_told_by_its_kind(
    load: Loader, body: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        call(load(body))


def test_an_exception_names_the_line_of_the_kernel(load: Loader, approved: Approved) -> None:
    with pytest.raises(KernelError) as raised:
        call(load("\n    raise ValueError('no')\n"))
    approved(raised.value.at)


def test_a_kernel_that_died_is_started_again_for_the_next_call(load: Loader) -> None:
    spec = load("\n    if bool(x.isnan().any()): os._exit(3)" + RIGHT)
    with pytest.raises(KernelError) as died:
        call(spec, torch.full((4, 32), float("nan"), dtype=torch.bfloat16))
    assert died.value.cause == Code.DIED
    assert call(spec)[0].shape == (4, 32)


def test_a_call_that_does_not_end_is_ended_and_told_with_its_line(load: Loader) -> None:
    spec = load("\n    if bool(x.isnan().any()):\n        while True: pass" + RIGHT)
    cell = spec.impl.cell  # type: ignore[union-attr]
    limit, cell.seconds = cell.seconds, 0.3
    with pytest.raises(KernelError, match=r"no answer within 0.3 s") as late:
        call(spec, torch.full((4, 32), float("nan"), dtype=torch.bfloat16))
    assert late.value.cause == Code.TIME_LIMIT and "in mine: while" in late.value.at
    cell.seconds = limit
    assert call(spec)[0].shape == (4, 32)


def test_a_kernel_that_stops_its_watch_and_sends_byte_by_byte_is_ended_too(
    load: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "STACK_SECONDS", 0.5)
    body = (
        "\n    import signal, time"
        "\n    signal.setitimer(signal.ITIMER_REAL, 0)"
        "\n    message = b'\\x00\\x01\\x00\\x00'"
        "\n    while True:"
        "\n        for file in range(3, 64):"
        "\n            try: os.write(file, message)"
        "\n            except OSError: pass"
        "\n        message = b'{'"
        "\n        time.sleep(0.2)\n"
    )
    spec = load(body)
    spec.impl.cell.seconds = 0.5  # type: ignore[union-attr]
    with pytest.raises(KernelError) as late:
        call(spec)
    assert late.value.cause == Code.TIME_LIMIT


def test_an_import_that_does_not_end_is_refused(
    load: Loader, approved: Approved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "IMPORT_SECONDS", 0.3)
    with approved.raises(InputError):
        load(RIGHT, HEAD.replace("calls = []", "while True: pass"))


def test_an_answer_that_the_kernel_writes_itself_is_no_result(load: Loader) -> None:
    body = (
        "\n    for file in range(3, 64):"
        "\n        try: os.write(file, bytes(3) + b'\\x02{}')"
        "\n        except OSError: pass" + RIGHT
    )
    with pytest.raises((KernelError, BadOutput)):
        call(load(body))


def test_a_buffer_that_is_returned_again_holds_poison_before_the_next_call(load: Loader) -> None:
    head = HEAD.replace("calls = []", "calls = []\nbuffer = torch.zeros(4, 32).bfloat16()")
    body = (
        "\n    calls.append(1)\n    if len(calls) == 1: buffer.fill_(1)"
        "\n    return buffer, torch.ones(1)\n"
    )
    spec = load(body, head)
    first, _ = call(spec)
    with CONDUCT.noting() as conduct:
        again, _ = call(spec)
    assert bool((first == 1).all()) and bool(again.isnan().all())
    assert [(one.is_proof, bool(one.site)) for one in conduct] == [(False, True)]


def test_inputs_lie_at_other_addresses_in_the_next_call(load: Loader) -> None:
    body = "\n    calls.append(x.data_ptr())\n    assert calls[-1:] != calls[-2:-1], calls" + RIGHT
    spec = load(body)
    for _ in range(3):
        BoundKernel(spec, None)(torch.ones(4, 32, dtype=torch.bfloat16), num_live=None)


@pytest.mark.parametrize(
    "line",
    [
        "import gc; gc.get_objects()",
        "sys._getframe(1)",
        "torch.equal = lambda *args: True",
        "import time; time.perf_counter = lambda: 0.0",
        "open('/proc/self/mem', 'rb').close()",
        "reads(JUDGE)",
        "import ctypes; ctypes.CDLL(None).ptrace",
        "os.path.exists(os.__file__) and os.kill(os.getppid(), 0)",
    ],
)
def test_what_no_honest_kernel_does_is_told(load: Loader, line: str) -> None:
    head = HEAD.replace(
        "calls = []", READS.format(path=str(Path(harness.__file__).parent / "api.py"))
    )
    spec = load(f"\n    {line}" + RIGHT, head)
    with CONDUCT.noting() as conduct:
        call(spec)
    assert [one.is_proof for one in conduct] == [True]


def test_a_kernel_that_does_its_work_has_nothing_told(load: Loader) -> None:
    lines = "\n    import logging, collections, tempfile, threading, time\n    time.perf_counter()"
    more = (
        "\n    logging.warning('hello'); collections.namedtuple('T', 'a b'); tempfile.mkdtemp()"
        "\n    import traceback, inspect; traceback.format_stack(); inspect.stack()"
        "\n    torch.save(x, 'kept.pt'); torch.load('kept.pt'); torch.manual_seed(0)"
    )
    spec = load(lines + more + RIGHT)
    with CONDUCT.noting() as conduct:
        call(spec)
        call(spec)
    assert not [one for one in conduct if one.is_proof]


def test_an_output_that_a_thread_writes_later_is_told(load: Loader) -> None:
    lines = (
        "import threading",
        "out = torch.zeros(4, 32)",
        "threading.Thread(target=lambda: (time.sleep(0.1), out.fill_(1))).start()",
        "return out, torch.ones(1)",
    )
    head = HEAD.replace("import os, sys, torch", "import os, sys, time, torch")
    spec = load("\n    " + "\n    ".join(lines) + "\n", head)
    with CONDUCT.noting() as conduct:
        # A call waits a second for the thread, and the next one looks again.
        wait_until(lambda: call(spec) and conduct, "the write was seen")
    assert conduct[0].is_proof


def test_a_tensor_that_answers_for_itself_cheats(load: Loader) -> None:
    body = (
        "\n    class T(torch.Tensor):"
        "\n        def __eq__(self, other): return True"
        "\n    return x.as_subclass(T), x\n"
    )
    with pytest.raises(BadOutput) as raised:
        call(load(body))
    assert raised.value.cause == Code.CHEATS


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("import torch\n\ndef mine(x, *, num_live=None):", "decorates no kernel"),
        (
            "import os\n\nfor f in range(3, 64):"
            "\n    try: os.write(f, bytes(3) + b'\\x09{\"a\": 1}')"
            "\n    except OSError: pass\n\ndef mine(x):",
            "its import",
        ),
        ("import torch\n\nraise ValueError('half')\n\ndef mine(x):", ":3: ValueError: half"),
        ("def mine(x)\n", "SyntaxError"),
        (HEAD.replace("quantize_fp8", "quantize"), "unknown op 'quantize'"),
        (HEAD.replace("(x, *, num_live=None)", "(x)"), "has no keyword argument num_live"),
        (HEAD.replace('name="celled"', 'name="celled", shape="any"'), "has no argument 'shape'"),
    ],
)
def test_a_file_that_cannot_be_judged_is_refused_in_one_line(
    load: Loader, head: str, says: str
) -> None:
    with pytest.raises(InputError) as refused:
        load("\n    return x, x\n", head)
    assert says in str(refused.value) and "\n" not in str(refused.value)
