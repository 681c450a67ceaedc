"""The judge's side of a cell: the server of a run, the cell of a file, and its kernels as functions
that any case can call.
"""

from __future__ import annotations

import inspect
import os
import pickle
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor
from torch_poison import sites
from torch_poison.patterns import FILLED, Poison

from harness.cell import arena, walls
from harness.cell.answers import CallAnswer, Declared, Loaded, Output, Raised, Seen
from harness.cell.arena import Note
from harness.cell.channel import Channel
from harness.cell.fence import FENCE
from harness.cell.inside import Call, Load
from harness.cell.server import DIED
from harness.core.cases import CellOf
from harness.core.catalog import KERNELS
from harness.core.cause_codes import Code
from harness.core.crash_stack import user_frame
from harness.core.errors import (
    BrokenPlugin,
    HarnessError,
    InputError,
    KernelError,
    NoMemoryError,
    Refused,
    cut,
)
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.kernels import adapters
from harness.kernels.conduct import CONDUCT, Conduct
from harness.kernels.outputs import BadOutput, wrong_count
from harness.kernels.plugins import kernel

LOG_BYTES = 6_000
IMPORT_SECONDS = 600.0
"""How long a file may take to import. It may compile its kernels then."""
STACK_SECONDS = 30.0
"""How long a process that is late gets to end itself.

Only one whose kernel has stopped its watch takes so long.
"""
MOST_RETURNED = 1 << 31
"""Bytes of outputs that are read back."""


class CellDied(Exception):
    """The process of a cell ended. `how` is its signal or exit code.

    `says_all_is_well`: its exit code is 0. `is_late`: it was killed, as it gave no answer in time.
    """

    def __init__(
        self, how: str, log: str, *, says_all_is_well: bool = False, is_late: bool = False
    ) -> None:
        super().__init__(how)
        self.how = how
        self.log = log
        self.says_all_is_well = says_all_is_well
        self.is_late = is_late


class Cell:
    """A process with the kernels of one file. A call starts it again after its death."""

    def __init__(self, where: CellOf, path: str) -> None:
        self._server = where.server
        self._load = Load(path, where.device, _tags(), IMPORT_SECONDS, where.name, where.words)
        self.seconds = where.seconds
        """How long one call may take."""
        self._channel: Channel | None = None
        self.walls: tuple[str, ...] = ()
        self.conduct_of_import: tuple[Seen, ...] = ()
        self.num_changed_trials = 0
        """Answers that were asked whether they depend on their inputs."""
        self.num_new_processes = 0
        """Processes that were started to ask whether an answer comes from earlier calls."""

    @property
    def path(self) -> str:
        return self._load.path

    def load(self) -> Loaded:
        """Start the process, and have it execute the file. Raises CellDied."""
        self.close()
        walls.hide_memory()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(self._server)
        self._arena = os.memfd_create("arena")
        self._log = os.memfd_create("log", os.MFD_CLOEXEC)
        self._deaths, deaths = os.pipe()
        # The cell appends, wherever others have written.
        socket.send_fds(connection, [b"x"], [self._arena, self._log, deaths])
        os.close(deaths)
        self._channel = Channel(connection)
        standing = self._channel.receive()
        if standing is None:
            raise self._death()
        self.walls = tuple(filter(None, standing.decode("ascii", "replace").split(",")))
        loaded = Loaded.model_validate_json(self._ask(self._load))
        self.conduct_of_import = loaded.conduct
        return loaded

    def call(self, request: Call) -> CallAnswer:
        """Make a call. Raises CellDied."""
        if self._channel is None:
            self.load()
        return CallAnswer.model_validate_json(self._ask(request))

    def _ask(self, request: Load | Call) -> bytes:
        assert self._channel is not None
        started = time.monotonic()
        try:
            # Pickle goes to the cell alone. What comes back is JSON, because a kernel may have
            # written it.
            self._channel.send(pickle.dumps(request))
            reply = self._channel.receive(request.seconds + STACK_SECONDS)
        except OSError:
            # Also a TimeoutError.
            reply = None
        if reply is None:
            is_late = time.monotonic() - started >= request.seconds
            raise self._lateness(request.seconds) if is_late else self._death()
        return reply

    def _death(self) -> CellDied:
        # The guard writes it. Without a guard the pipe is closed, and this ends as well.
        found = os.read(self._deaths, DIED.size)
        is_told = len(found) == DIED.size
        code = DIED.unpack(found)[0] if is_told else 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        log = self._end_of_log()
        self.close()
        return CellDied(how, log, says_all_is_well=is_told and code == 0)

    def _lateness(self, seconds: float) -> CellDied:
        log = self._end_of_log()
        self.close()
        return CellDied(f"no answer within {seconds:g} s", log, is_late=True)

    def _end_of_log(self) -> str:
        size = os.fstat(self._log).st_size
        return os.pread(self._log, LOG_BYTES, max(0, size - LOG_BYTES)).decode("utf-8", "replace")

    @property
    def arena_file(self) -> int:
        """The descriptor of the arena, with the process started."""
        if self._channel is None:
            self.load()
        return self._arena

    def close(self) -> None:
        """End the process."""
        if self._channel is None:
            return
        self._channel.close()
        self._channel = None
        for file in (self._arena, self._log, self._deaths):
            os.close(file)


def _checked(spec: KernelSpec, note: Note) -> Note:
    """A note that a cell changed. Raises KernelError if it leads outside of the tensor."""
    parts = note.parts or ()
    if note.start < 0 or any(not 0 <= begin <= end <= note.room for begin, end in parts):
        raise _broken(spec)
    return note


def _broken(spec: KernelSpec) -> KernelError:
    """The error for an answer that our code in the cell cannot have sent: the kernel wrote it."""
    return KernelError(
        f"{spec.name} broke the connection of its process with the judge",
        cause=Code.CHEATS,
        kernel=spec.name,
    )


def _tags() -> Mapping[str, int]:
    """Site -> the tag in its sentinels, of all sites that the poison knows here."""
    return {name: sites.tag_of(name) for name in sites.names()}


@dataclass(eq=False)
class RemoteKernel:
    """A kernel in a cell, called like a function in this process.

    `spec` is set when the kernel is registered.
    """

    cell: Cell
    number: int
    name: str
    signature: inspect.Signature
    spec: KernelSpec | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(None, args, kwargs)

    def call(self, poison: Poison | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The outputs of a call under poison. Written inputs are written here too.

        Raises KernelError for an exception or the death of the kernel, Refused for its refusal,
        BrokenPlugin for an import that fails, BadOutput for outputs that cannot be read.
        """
        spec = self.spec
        assert spec is not None
        try:
            return self._called(spec, poison, args, kwargs)
        except CellDied as death:
            if death.is_late:
                raise self._late(spec, death) from HarnessError(death.log)
            message = f"{spec.name} ended its process: {death.how}"
            cause = Code.CHEATS if death.says_all_is_well else Code.DIED
            error = KernelError(message, cause=cause, error=death.how, kernel=spec.name)
            raise error from HarnessError(death.log)
        except ValidationError as error:
            self.cell.close()
            raise _broken(spec) from error

    def seconds(self, args: tuple[Any, ...], kwargs: dict[str, Any], repeats: int) -> float:
        """The seconds of one of `repeats` calls, by the clock of this process.

        The inputs cross once, so what the first call takes with them is subtracted. Raises as
        `call`.
        """
        assert self.spec is not None
        taken = []
        for more in (0, repeats):
            started = time.perf_counter()
            self._called(self.spec, None, args, kwargs, more)
            taken.append(time.perf_counter() - started)
        return max(taken[1] - taken[0], 0.0) / repeats

    def _called(
        self,
        spec: KernelSpec,
        poison: Poison | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        repeats: int = 0,
    ) -> Any:
        file = self.cell.arena_file
        start = 0
        sent: dict[int, tuple[Tensor, Note]] = {}
        num_given = 0

        def crossing(value: Any) -> Any:
            nonlocal start, num_given
            # The cell numbers its arguments in the same order, those by position first.
            number = num_given
            num_given += 1
            if not isinstance(value, Tensor):
                return value
            note = arena.note_of(value, start)
            arena.write(file, value, note)
            sent[number] = (value, note)
            start = arena.after(note)
            return note

        request = Call(
            number=self.number,
            args=tuple(map(crossing, args)),
            kwargs={name: crossing(value) for name, value in kwargs.items()},
            poison=poison,
            fence=FENCE.get(),
            output_sites=tuple(output.site for output in spec.outputs if output.shape),
            room=start,
            seconds=self.cell.seconds * (1 + repeats),
            repeats=repeats,
        )
        answer = self.cell.call(request)
        for seen in (*self.cell.conduct_of_import, *answer.conduct):
            CONDUCT.note(Conduct(spec.name, cut(seen.what), seen.is_proof, seen.site))
        if answer.no_room:
            raise NoMemoryError(cut(answer.no_room))
        if answer.raised is not None:
            raise self._error(spec, answer.raised)
        # Inputs are read back as well: the judge looks for writes where none may be.
        for number, (tensor, note) in sent.items():
            if number in answer.written:
                begin, parts = answer.written[number]
                note = _checked(spec, replace(note, start=begin, parts=parts))
            arena.read_into(file, tensor, note)
        FILLED.update({site: int(count) for site, count in answer.filled.items()})
        outputs = tuple(self._output(spec, output) for output in answer.outputs)
        if not OPS.get(spec.op).outputs:
            return None
        if not outputs:
            raise BadOutput(spec, wrong_count(spec, 0))
        if not spec.gives_lse:
            return outputs[0], None
        return outputs if answer.is_several else outputs[0]

    def _output(self, spec: KernelSpec, output: Output) -> Tensor:
        if output.problem:
            raise BadOutput(
                spec, output.problem, cause=Code.CHEATS if output.is_cheat else Code.BAD_OUTPUT
            )
        dtype = getattr(torch, output.dtype, None)
        if not isinstance(dtype, torch.dtype) or any(size < 0 for size in output.shape):
            raise BadOutput(spec, f"a tensor of type {cut(output.dtype)}")
        if output.device != self.cell._load.device:
            raise BadOutput(spec, f"a tensor on {cut(output.device)}; it belongs on its inputs'")
        # Sizes are looked at before memory is allocated for them: the cell says what it likes.
        meta = torch.empty(output.shape, dtype=dtype, device="meta")
        if output.start < 0 or meta.nbytes > MOST_RETURNED:
            raise BadOutput(spec, f"a tensor of shape {list(output.shape)}, of gigabytes")
        tensor = torch.empty(output.shape, dtype=dtype)
        note = replace(arena.note_of(tensor, output.start), parts=((0, tensor.nbytes),))
        if not arena.read_into(self.cell.arena_file, tensor, note):
            raise BadOutput(spec, "a tensor without content")
        return tensor

    def _late(self, spec: KernelSpec, death: CellDied) -> KernelError:
        return KernelError(
            f"{spec.name} gave {death.how}",
            cause=Code.TIME_LIMIT,
            kernel=spec.name,
            at=user_frame(death.log, [self.cell.path]),
        )

    def _error(self, spec: KernelSpec, raised: Raised) -> Exception:
        if raised.is_spent:
            # The next call starts a new process.
            self.cell.close()
        words = f"{raised.type}: {cut(' '.join(raised.words.split()))}"
        if raised.is_refusal:
            refusal = Refused(raised.words)
            refusal.kernel = spec.name
            return refusal
        if raised.is_import and raised.is_of_judge:
            return KernelError(
                f"{spec.name} raised {words}",
                cause=Code.CHEATS,
                error=raised.type,
                kernel=spec.name,
                at=raised.at,
            )
        if raised.is_import:
            mend = "install the package, or mend the import"
            return BrokenPlugin(f"{spec.name} cannot be called: {words}, at {raised.at}; {mend}")
        error = KernelError(
            f"{spec.name} raised {words}",
            cause=Code.DEVICE if raised.is_spent else Code.RAISED,
            error=raised.type,
            kernel=spec.name,
            at=raised.at,
        )
        error.__cause__ = HarnessError(raised.stack)
        return error


_cells: dict[tuple[str, str, str, str], Cell] = {}


def load_in_cell(where: CellOf, path: str) -> tuple[KernelSpec, ...]:
    """Load a file of kernels in a cell, and register its kernels in this process.

    A file that was loaded with the same arguments is not loaded again. Raises InputError with file
    and line for a file that does not import, or declares what no kernel can.
    """
    path = str(Path(path).resolve())
    key = (where.server, path, where.device, where.name)
    if key in _cells:
        # The calls of another case may have to compile the kernel first.
        _cells[key].seconds = where.seconds
        return tuple(spec for spec in KERNELS if spec.origin == path)
    cell = Cell(where, path)
    try:
        specs = tuple(
            _registered(cell, number, declared, where.words if where.name else {})
            for number, declared in enumerate(_kernels_of(cell))
        )
    except BaseException:
        cell.close()
        raise
    _cells[key] = cell
    return specs


def _kernels_of(cell: Cell) -> tuple[Declared, ...]:
    """The kernels of the file of a cell. Raises InputError."""
    path = cell.path
    try:
        loaded = cell.load()
    except CellDied as death:
        ended = "its import gave" if death.is_late else "its import ended the process:"
        raise InputError(f"{path}: {ended} {death.how}; it must import cleanly") from death
    except ValidationError as error:
        raise InputError(f"{path}: its import writes into the judge's connection") from error
    if loaded.failed is not None:
        failed = loaded.failed
        words = cut(" ".join(failed.words.split()))
        raise InputError(f"{path}:{failed.line}: {failed.type}: {words}; it must import cleanly")
    if not loaded.kernels:
        known = ", ".join(loaded.functions) or "none"
        raise InputError(
            f"{path}: decorates no kernel; name a function of it, such as {path}:NAME (it has"
            f" {known}), and its op"
        )
    return loaded.kernels


def _registered(
    cell: Cell, number: int, declared: Declared, words: Mapping[str, Any]
) -> KernelSpec:
    parameters = [
        inspect.Parameter(
            # What a default is stays in the cell. A signature shows only that there is one.
            name,
            inspect._ParameterKind[kind],
            default=None if has_default else inspect._empty,
        )
        for name, kind, has_default in declared.signature
    ]
    remote = RemoteKernel(cell, number, declared.function, inspect.Signature(parameters))
    remote.__signature__ = remote.signature  # type: ignore[attr-defined]
    remote.__name__ = declared.function  # type: ignore[attr-defined]
    remote.__doc__ = declared.doc
    given = {**declared.words, **words, "origin": cell.path}
    if isinstance(given.get("op"), str) and given["op"] in OPS:
        adapters.check(given["op"], str(given.get("name")), given)
    # The cell has adapted the call.
    for word in adapters.WORDS:
        given.pop(word, None)
    if cell._load.device != "cpu":
        # The judge holds its tensors on the host. The cell moves them.
        given["devices"] = ("cpu",)
    # The decorator of this process checks all words, as the one in the cell only notes them.
    kernel(*([None] * declared.num_positional), **given)(remote)
    # The decorator has checked that both words are there.
    remote.spec = KERNELS.get(f"{given['op']}/{given['name']}")
    return remote.spec


def unload(where: CellOf, path: str) -> None:
    """End the cell of a file, and forget its kernels."""
    path = str(Path(path).resolve())
    cell = _cells.pop((where.server, path, where.device, where.name), None)
    if cell is None:
        return
    cell.close()
    for spec in [spec for spec in KERNELS if spec.origin == path]:
        KERNELS.remove(spec.name)


def cell_of(spec: KernelSpec) -> Cell | None:
    """The cell of a kernel; None for one that runs in this process."""
    return spec.impl.cell if isinstance(spec.impl, RemoteKernel) else None
