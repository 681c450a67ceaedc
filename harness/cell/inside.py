"""What runs in a cell: it loads the kernel's file, calls the kernel under poison, and sends back
bytes and JSON.

The only names of the harness that the file can import are those of `_stand_in`: the decorator,
which here just notes what the kernel declares, and the exception of a kernel that refuses.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import inspect
import io
import json
import linecache
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import torch
import torch_poison.sites
from torch import Tensor
from torch_poison.allocations import AllocationPoison
from torch_poison.errors import PoisonError
from torch_poison.fences import Fence
from torch_poison.patterns import FILLED, Poison
from torch_poison.storages import storage_address, tensors_of, why_unreadable

from harness.cell import arena
from harness.cell.arena import Note
from harness.cell.channel import Channel
from harness.cell.returned import Returned, answers_for_itself
from harness.cell.watch import Watch
from harness.kernels import adapters
from harness.memory import pools
from harness.memory.triton_interpreter import repair_when_imported

# In a cell, the files of the harness are out of reach.
adapters.load_all()
MOST_TEXT = 4_000
"""Characters of a message or a stack that cross."""
MOST_OUTPUTS = 16
MOST_OUTPUT_BYTES = 1 << 31
"""A kernel that returns more than any case promises sends no content, only its shape."""


class ToldOutput(TypedDict, total=False):
    """An output as JSON: content at `start` of the arena, -1 without content, or a `problem`.

    The judge reads it as :class:`harness.cell.answers.Output`.
    """

    problem: str
    is_cheat: bool
    dtype: str
    shape: list[int]
    device: str
    start: int


@dataclass(frozen=True, slots=True)
class Load:
    """Load a file, within `seconds`. `tags` are the sites of poison with their numbers.

    With `name`, the function of this name is the kernel, decorated or not, and `words` are added to
    those of its decorator.
    """

    path: str
    device: str
    tags: Mapping[str, int]
    seconds: float
    name: str = ""
    words: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """Call the kernel `number` of the file, within `seconds`. Arguments are values, or notes of
    tensors.

    `output_sites` are the sites of the outputs; `room` is where outputs may lie in the arena. With
    `repeats`, so many further calls follow, each with another first element of the first tensor.
    """

    number: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    poison: Poison | None
    fence: Fence
    output_sites: tuple[str, ...]
    room: int
    seconds: float
    repeats: int = 0


class KernelRefused(Exception):
    """A kernel's own `raise Refused(...)`."""


class _Decorated:
    """What `@kernel` noted: the words of the decorator, and the function."""

    def __init__(self, words: Mapping[str, Any], num_positional: int, function: Any) -> None:
        self.words = words
        self.num_positional = num_positional
        self.function = function


class _Requests(pickle.Unpickler):
    """Reads what the judge sends. The modules of these classes cannot be imported any more."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"Load": Load, "Call": Call, "Note": Note}
        return known[name] if module.startswith("harness.") else super().find_class(module, name)


_OUR_NAMES = ("harness", "mla_harness")
"""The package, and the module that finds it where a project has a `harness` of its own."""


class _NothingElse(MetaPathFinder):
    """Refuses the rest of the harness."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in _OUR_NAMES:
            self._watch.imported(fullname)
            raise ModuleNotFoundError(
                f"{fullname} is not there for a kernel under judgement; it can import kernel and"
                " Refused from harness",
                name=fullname,
            )
        return None


def _stand_in(decorated: list[_Decorated], watch: Watch) -> None:
    """Put a `harness` in place that has the decorator and nothing of the judge."""

    def kernel(*positional: Any, **words: Any) -> Callable[[Any], Any]:
        def note(function: Any) -> Any:
            decorated.append(_Decorated(words, len(positional), function))
            return function

        return note

    for name in [name for name in sys.modules if name.partition(".")[0] in _OUR_NAMES]:
        del sys.modules[name]
    module = ModuleType("harness")
    module.kernel = kernel  # type: ignore[attr-defined]
    module.Refused = KernelRefused  # type: ignore[attr-defined]
    # A package, so that an import of any part of it reaches the finder below.
    module.__path__ = []
    for name in _OUR_NAMES:
        sys.modules[name] = module
    sys.meta_path.insert(0, _NothingElse(watch))


def serve(channel: Channel, arena_file: int, hidden: Path) -> None:
    """Answer the judge until it closes the channel. `hidden` is the folder of its code."""
    decorated: list[_Decorated] = []
    repair_when_imported()
    # From here on nothing of the harness can be imported, so all that a cell needs is loaded.
    watch = Watch(str(hidden))
    _stand_in(decorated, watch)
    cell: _Cell | None = None
    # A process that is late writes to the log where it is, and then does what the system does at
    # this signal: it ends. The signal stops the thread whose stack is read; a thread that looked at
    # it from beside would read what changes meanwhile.
    faulthandler.register(signal.SIGALRM, file=2, all_threads=False, chain=True)
    while (message := channel.receive()) is not None:
        request = _Requests(io.BytesIO(message)).load()
        signal.setitimer(signal.ITIMER_REAL, request.seconds)
        if isinstance(request, Load):
            torch_poison.sites.register(request.tags)
            with watch.on():
                answer, functions = _loaded(request, decorated)
            answer["conduct"] = [one for one in watch.told() if one["is_proof"]]
            cell = _Cell(functions, arena_file, request.device, request.path, watch)
        else:
            assert cell is not None
            answer = cell.call(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        channel.send(json.dumps(answer).encode("utf-8", "replace"))


def _loaded(request: Load, decorated: list[_Decorated]) -> tuple[dict[str, Any], list[Any]]:
    """Execute the file. Returns what its kernels declare, and their functions."""
    path = request.path
    # The file may import its neighbours, as a script may.
    sys.path.insert(0, str(Path(path).parent))
    try:
        spec = importlib.util.spec_from_file_location("mla_harness_judged", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["mla_harness_judged"] = module
        spec.loader.exec_module(module)
    except BaseException as error:
        # Whatever it raised: a file may call sys.exit, and the judge must hear of it.
        return {"failed": _told(error, path)}, []
    if request.name:
        decorated[:] = [one for one in decorated if _name_of(one.function) == request.name] or [
            _Decorated({}, 0, _attribute(module, request.name))
        ]
        decorated[0].words = {**decorated[0].words, **request.words}
        if decorated[0].function is None:
            return {"failed": {"type": "NameError", "words": request.name, "line": 0}}, []
    for one in decorated:
        # Words that no kernel can have are refused by the judge, which reads them below.
        with contextlib.suppress(Exception):
            one.function = adapters.adapted(str(one.words.get("op")), one.words, one.function)
    own = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    told = [
        {
            "words": {word: _plain(value) for word, value in one.words.items()},
            "num_positional": one.num_positional,
            "function": _name_of(one.function),
            "doc": (inspect.getdoc(one.function) or "")[:MOST_TEXT],
            "signature": _signature(one.function),
        }
        for one in decorated
    ]
    return {"kernels": told, "functions": own}, [one.function for one in decorated]


def _attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


def _signature(function: Any) -> list[tuple[str, str, bool]]:
    """Name, kind, and whether there is a default, of each parameter."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [("args", "VAR_POSITIONAL", False), ("kwargs", "VAR_KEYWORD", False)]
    return [(p.name, p.kind.name, p.default is not p.empty) for p in parameters]


def _plain(value: Any) -> Any:
    """A word of a decorator as JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return repr(value)[:MOST_TEXT]


class _Cell:
    """The kernels of one file, and what they returned."""

    def __init__(
        self, functions: list[Any], arena_file: int, device: str, path: str, watch: Watch
    ) -> None:
        self._functions = functions
        self._arena = arena_file
        self._device = device
        self._path = path
        self._watch = watch
        self._output_sites: dict[Any, dict[int, str]] = {}
        self._returned = Returned(watch)
        self._given: list[Tensor] = []
        self._num_repeats = 0

    def call(self, call: Call) -> dict[str, Any]:
        """Call a kernel, and put its inputs and outputs into the arena."""
        given = (*call.args, *call.kwargs.values())
        try:
            placed = [
                arena.received(self._arena, value, call.fence, self._device)
                if isinstance(value, Note)
                else value
                for value in given
            ]
        except (torch.OutOfMemoryError, PoisonError) as error:
            return {"no_room": f"its inputs do not fit: {error}"[:MOST_TEXT]}
        args = placed[: len(call.args)]
        named = placed[len(call.args) :]
        kwargs = dict(zip(call.kwargs, named, strict=True))
        self._forget(call.poison)
        FILLED.clear()
        function = self._functions[call.number]
        try:
            result = self._call_poisoned(function, args, kwargs, call)
            self._repeat(function, args, kwargs, call.repeats)
            if self._device != "cpu":
                torch.cuda.synchronize()
        except BaseException as error:
            raised = _told(error, self._path) | {"is_spent": self._is_spent()}
            return {"raised": raised, "conduct": self._watch.told()}
        written: dict[int, Any] = {}
        start = call.room
        for number, value in enumerate(placed):
            note = given[number]
            if not isinstance(note, Note):
                continue
            if note.parts is not None and note.room > pools.LARGE_BYTES:
                # The kernel may have written where nothing was.
                parts = pools.used_on_gpu(value) if value.is_cuda else pools.used(value)
                note = replace(note, parts=tuple(parts), start=start)
                written[number] = (note.start, note.parts)
                start = arena.after(note)
            arena.write(self._arena, value, note)
        self._given = [value for value in placed if isinstance(value, Tensor)]
        told = self._outputs(result, call, start)
        self._returned.wait_for_threads()
        return told | {
            "filled": dict(FILLED),
            "written": written,
            "conduct": self._watch.told(),
        }

    def _repeat(self, function: Any, args: list[Any], kwargs: dict[str, Any], repeats: int) -> None:
        """Call the kernel again for the clock of the judge, each time with other inputs."""
        if not repeats:
            return
        tensors = (one for one in args if isinstance(one, Tensor))
        first = next((one[(slice(1),) * one.ndim] for one in tensors), torch.zeros(1))
        before = first.clone()
        for _ in range(repeats):
            # What is kept from another call is no answer to this one. bfloat16 holds these numbers
            # exactly.
            self._num_repeats += 1
            first.fill_(self._num_repeats % 256)
            function(*args, **kwargs)
        first.copy_(before)

    def _is_spent(self) -> bool:
        """Whether the device failed for good: nothing more can be called in this process."""
        if self._device == "cpu":
            return False
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def _forget(self, poison: Poison | None) -> None:
        """Take back what the kernel had and gave: its memory is someone else's now.

        The kernel may have kept it. Inputs of the last call are overwritten, and outputs are filled
        as memory that it has to write again. The tensors stay alive until here, so the next inputs
        have other addresses.
        """
        for tensor in self._given:
            if tensor.untyped_storage().nbytes() > pools.LARGE_BYTES:
                # Its rows have no memory yet, and would get some.
                continue
            with contextlib.suppress(RuntimeError):
                tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
        self._given = []
        self._returned.forget(poison)

    def _call_poisoned(
        self, function: Any, args: list[Any], kwargs: dict[str, Any], call: Call
    ) -> Any:
        """The result of a call.

        Which allocations become outputs is known when the kernel returns. So a call whose
        allocations are not those of the call before with such shapes is made twice, the second time
        with the outputs filled as outputs: the rule of `harness.kernels.call.BoundKernel`.
        """
        poison = call.poison
        if poison is None or poison.is_natural or not call.output_sites:
            with (
                self._watch.on(),
                AllocationPoison(poison) if poison else contextlib.nullcontext(),
            ):
                result = function(*args, **kwargs)
            self._returned.note(_sited(result, call.output_sites))
            return result
        shapes = [tuple(v.shape) if isinstance(v, Tensor) else v for v in (*args, *kwargs.values())]
        key = (call.number, repr(shapes))
        expected = self._output_sites.get(key, {})
        result, found = self._called_once(function, args, kwargs, call, expected)
        if found != expected:
            self._output_sites[key] = found
            result, _ = self._called_once(function, args, kwargs, call, found)
        return result

    def _called_once(
        self,
        function: Any,
        args: list[Any],
        kwargs: dict[str, Any],
        call: Call,
        sites: Mapping[int, str],
    ) -> tuple[Any, dict[int, str]]:
        """The result of one call with its allocations filled by `sites`, and the right sites.

        Ordinal of an allocation -> the site of the output that it became.
        """
        assert call.poison is not None
        # The watch is around the mode: a mode that the kernel leaves on is seen behind it.
        with self._watch.on(), AllocationPoison(call.poison, sites) as mode:
            result = function(*args, **kwargs)
        ordinals = {address: number for number, address in enumerate(mode.allocations)}
        found = {
            ordinals[storage_address(tensor)]: site
            for site, tensor in _sited(result, call.output_sites)
            if storage_address(tensor) in ordinals
        }
        self._returned.note(_sited(result, call.output_sites))
        return result, found

    def _outputs(self, result: Any, call: Call, start: int) -> dict[str, Any]:
        is_several = isinstance(result, tuple | list)
        values = list(result) if is_several else [result]
        if len(values) > MOST_OUTPUTS:
            self._watch.note(f"returned {len(values)} values")
            values = values[:MOST_OUTPUTS]
        if not call.output_sites:
            values = []
        told: list[ToldOutput] = []
        for value in values:
            if problem := why_unreadable(value):
                told.append({"problem": problem, "is_cheat": answers_for_itself(value)})
                continue
            plain = value.detach().resolve_conj().resolve_neg()
            one: ToldOutput = {
                "dtype": str(plain.dtype).removeprefix("torch."),
                "shape": list(plain.shape),
                "device": plain.device.type,
                "start": -1,
            }
            if plain.nbytes <= MOST_OUTPUT_BYTES:
                on_host = plain.cpu()
                # A slice has a storage of its own here.
                compact = on_host.clone(memory_format=torch.contiguous_format)
                note = replace(arena.note_of(compact, start), parts=((0, compact.nbytes),))
                arena.write(self._arena, compact, note)
                self._returned.keep(value, compact)
                one["start"] = start
                start = arena.after(note)
            told.append(one)
        return {"outputs": told, "is_several": is_several}


def _sited(result: Any, sites: tuple[str, ...]) -> list[tuple[str, Tensor]]:
    """The plain tensors of a result, with the sites of the outputs that they are part of."""
    values = result if isinstance(result, tuple | list) else (result,)
    return [
        (site, tensor)
        for site, value in zip(sites, values, strict=False)
        for tensor in tensors_of(value)
        if not why_unreadable(tensor)
    ]


def _told(error: BaseException, path: str) -> dict[str, Any]:
    """An exception as JSON: its type, its words, and the last line of the kernel's own file."""
    try:
        # The exception may be of the kernel's own class, with a __str__ of its own.
        message = str(error)[:MOST_TEXT]
    except Exception as broken:
        message = f"its __str__ raised {type(broken).__name__}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.realpath(frame.filename) == os.path.realpath(path)]
    linecache.checkcache(path)
    line = own[-1].lineno if own else getattr(error, "lineno", 0)
    try:
        stack = "".join(traceback.format_exception(error))[-MOST_TEXT:]
    except Exception:
        stack = ""
    return {
        "type": type(error).__name__,
        "words": message,
        "line": line or 0,
        "at": (
            f"{Path(path).name}:{own[-1].lineno} in {own[-1].name}: {own[-1].line}" if own else ""
        ),
        "is_refusal": isinstance(error, KernelRefused),
        "is_import": isinstance(error, ImportError),
        "is_of_judge": str(getattr(error, "name", "")).partition(".")[0] in _OUR_NAMES,
        "stack": stack,
    }
