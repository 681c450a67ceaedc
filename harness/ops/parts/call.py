"""A kernel call: its parts (poisoned inputs, guards, shapes, rows to judge), the launch, and the
check of its outputs.

A wrong shape of an output is a finding about the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_poison.device_ranges import pieces_of, with_memory_at
from torch_poison.errors import PoisonError
from torch_poison.fences import Fence, fenced
from torch_poison.patterns import Poison

from harness.core.cause_codes import Code
from harness.core.contract import Out
from harness.core.corruptions import Corruption
from harness.core.errors import KernelError, NoMemoryError, message_of
from harness.core.kernels import KernelSpec
from harness.core.ops import OPS
from harness.kernels.call import BoundKernel
from harness.kernels.outputs import BadOutput, wrong_count
from harness.memory import pools
from harness.memory.bounds import bad_index, raise_bad_indices
from harness.ops.parts.attention import WantedAttention
from harness.ops.parts.cache_layouts import neighbors
from harness.ops.parts.changed import Change, change_
from harness.ops.parts.corrupted import as_meant, corrupted
from harness.ops.parts.inputs import CacheInputs, OpInputs
from harness.ops.parts.judged import Chosen, Rows

Shape = tuple[int, ...]


def invoke(spec: KernelSpec, poison: Poison, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a kernel under poison and wait for it.

    Raises IllegalAddress or KernelError for any error of the kernel.
    """
    is_on_gpu = any(isinstance(arg, Tensor) and arg.is_cuda for arg in args)
    if is_on_gpu and not poison.is_natural:
        from torch_poison.cuda_sweep import CudaSweep, fill_word

        # Reaches scratch that an extension allocates without torch's dispatcher.
        CudaSweep.of()(fill_word(poison, "workspace"))
    result = BoundKernel(spec, poison)(*args, **kwargs)
    if is_on_gpu:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            reason = message_of(error).strip().partition("\n")[0]
            message = f"{spec.name} failed on the device: {reason}"
            failure = KernelError(message, cause=Code.DEVICE, error=reason, kernel=spec.name)
            # A bad index explains the fault of the device, and is the better sentence of the two.
            raise bad_index() or failure from error
        raise_bad_indices()
    return result


def shape_of(output: Out, dims: dict[str, int]) -> Shape:
    return tuple(
        int(letter) if letter.isdigit() else dims[letter] for letter in output.shape.split()
    )


def check_outputs(
    spec: KernelSpec,
    result: Any,
    shapes: tuple[tuple[Shape, ...], ...],
    dtypes: tuple[torch.dtype, ...],
    device: str,
) -> tuple[Tensor, ...]:
    """Copies of the outputs, as further launches may write there again.

    `shapes` lists for each output the shapes it may have. Raises BadOutput with the wrong output,
    its property, and the promised one.
    """
    declared = spec.outputs
    if not declared:
        return ()
    values = tuple(result) if isinstance(result, tuple | list) else (result,)
    # A kernel that declares no lse may return one all the same. It is not judged.
    values = values if spec.gives_lse else values[: len(declared)]
    if problem := wrong_count(spec, len(values)):
        raise BadOutput(spec, problem)
    # The lse is the last output of each op that has one.
    for output, value, allowed, dtype in zip(declared, values, shapes, dtypes, strict=False):
        if problem := _problem(value, allowed, dtype, device):
            raise BadOutput(spec, f"{output.name} {problem}")
    # A kernel may return the same buffer from each launch; the copy keeps what this launch wrote.
    return tuple(value.detach().clone() for value in values)


def _problem(value: Any, allowed: tuple[Shape, ...], dtype: torch.dtype, device: str) -> str:
    """What is wrong with an output, as one clause; empty if nothing is."""
    if not isinstance(value, Tensor):
        return f"as {type(value).__name__}; return a torch.Tensor"
    if tuple(value.shape) not in allowed:
        return (
            f"of shape {list(value.shape)}; {' or '.join(str(list(shape)) for shape in allowed)} is"
            " promised"
        )
    if value.dtype != dtype:
        return f"of type {value.dtype}; {dtype} is promised"
    if value.device.type != torch.device(device).type:
        return f"on {value.device}; it belongs on {device}"
    return ""


FINITE_FOR_MULTIPLYING_KERNELS = frozenset({"kv.tail", "kv.free", "kv.null"})
"""Sites that get finite bits, max in place of nan and inf, for a kernel that declares
`needs_finite_tail`.
"""
_FINITE_STAND_IN = {"nan": "max", "inf": "max"}

InputsT = TypeVar("InputsT", bound=OpInputs)
Observe = Callable[[tuple[Tensor, ...]], list[Rows]]


@dataclass(slots=True)
class Guarded:
    """Memory that the kernel must not change: a copy from before the call, and how to read it
    afterwards.
    """

    name: str
    site: str | None
    before: Tensor
    watched: Callable[[], Tensor]
    row_name: Callable[[int], str] | None = None


@dataclass(slots=True)
class KernelCall:
    """A call that is ready to be made. `shapes` lists for each output the shapes it may have."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: tuple[tuple[Shape, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    guarded: list[Guarded]
    observe: Observe
    chosen: Callable[[tuple[Tensor, ...]], list[Chosen]] = lambda outputs: []
    by_request: list[Tensor] = field(default_factory=list)
    """Arguments with one row for each request, the lengths last.

    A graph is captured with these rows reordered.
    """
    same: Callable[[Tensor], Tensor] = lambda output: output
    """The part of the first output that equal inputs must give again, a row for each request.

    By default it is all of the output.
    """
    changed: str = ""
    """The part of the inputs that was changed, such as "q[2, 0, 5]"; empty without a change."""
    plan: Callable[[bool], Any] | None = None
    """Makes `metadata`; called with whether a graph captures it."""

    def keywords(self, *, is_captured: bool) -> dict[str, Any]:
        return (
            self.kwargs if self.plan is None else self.kwargs | {"metadata": self.plan(is_captured)}
        )

    def live_requests(self) -> Tensor:
        """[B] bool: whether a request has a length."""
        return self.by_request[-1] > 0

    @classmethod
    def of(
        cls,
        op: str,
        given: OpInputs,
        kept: OpInputs,
        dims: dict[str, int],
        dtypes: tuple[torch.dtype, ...],
        observe: Observe,
        **keywords: Any,
    ) -> KernelCall:
        """A call of `op` with the fields of `given` as arguments, `keywords` in place of or beside
        them.

        No positional argument may be written, unless its contract says so. `dims` are the sizes of
        the letters of the op's output shapes.
        """
        row = OPS.get(op)
        own = {name: getattr(given, name) for name in row.keywords if name not in keywords}
        readonly = [name for name, one in row.arguments.items() if not one.is_written]
        guarded = [_guard(name, getattr(given, name), getattr(kept, name)) for name in readonly]
        if isinstance(given, CacheInputs):
            beside = neighbors(given.kv_cache, given.layout)
            guarded += [_guard_beside(row_name, memory) for row_name, memory in beside.items()]
        return cls(
            args=tuple(getattr(given, name) for name in row.positional),
            kwargs=own | keywords,
            shapes=tuple((shape_of(output, dims),) for output in row.outputs),
            dtypes=dtypes,
            guarded=guarded,
            observe=observe,
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """The parameters of every builder: the kernel, its poison, the seed and the device."""

    spec: KernelSpec
    poison: Poison
    seed: int
    device: str
    fence: Fence = "none"
    corruption: Corruption | None = None
    change: Change | None = None
    """A legal change of one part of the inputs."""
    changed: list[str] = field(default_factory=list)
    """The changed parts of the inputs. It is empty until the inputs are drawn."""


def attention_rows(
    spec: KernelSpec,
    kv: str,
    describe: str,
    empty_site: str,
    outputs: tuple[Tensor, Tensor | None],
    want: WantedAttention,
) -> list[Rows]:
    """What to judge of `outputs`: out [rows, heads, width], and lse [rows, heads] float32, None of
    a kernel without.

    Rows without keys are judged only if the kernel declares what it leaves there.
    """
    out, lse = outputs
    defined = want.defined
    empty = ~defined
    if kv.startswith(".fp8") and spec.fp8_products != "float32":
        kv = f"{kv}.in_{spec.fp8_products}"
    # The bounds of other cache types allow for these roundings, or their kernels do not make them.
    steps = spec.bf16_steps if kv == ".bf16" else ()
    out_bound = f"{spec.op}.out{kv}" + (".partials" if "partials" in steps else "")
    lse_bound = f"{spec.op}.lse{kv}" + (".sums" if "sums" in steps else "")
    slack = want.slack or (None, None)
    observed = [Rows("out", out, defined, want.out, out_bound, describe, slack=slack[0])]
    if lse is not None:
        observed.append(Rows("lse", lse, defined, want.lse, lse_bound, describe, slack=slack[1]))
    if not bool(empty.any()):
        return observed
    if spec.empty_rows != "undefined":
        value = 0.0 if spec.empty_rows == "identity" else float("nan")
        expected = torch.full_like(want.out, value)
        observed.append(
            Rows("out of empty rows", out, empty, expected, out_bound, describe, empty_site)
        )
    if lse is not None and spec.empty_lse != "undefined":
        expected = torch.full_like(want.lse, float(spec.empty_lse))
        observed.append(
            Rows("lse of empty rows", lse, empty, expected, lse_bound, describe, empty_site)
        )
    return observed


def out_and_lse(outputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
    """The `outputs` of an attention op: out [..., H, R] in the activations' type, lse [...]
    float32.

    A kernel without an lse, see `KernelSpec.gives_lse`, has None in its place.
    """
    return outputs[0], outputs[1] if len(outputs) > 1 else None


def prepared(raw: InputsT, setting: Setting) -> tuple[InputsT, InputsT]:
    """Poison the unowned memory of `raw`.

    Returns the kernel's inputs, and a copy that the kernel cannot reach.

    A corrupted call has corrupted inputs, and what they stand for in the copy.
    """
    if setting.change is not None:
        # Before the poison goes in: a change finds live rows by what is not zero.
        setting.changed.append(change_(raw, setting.change, setting.seed))
    for part in raw.unowned:
        poison = setting.poison
        if (
            keeps(setting, setting.spec.needs_finite_tail)
            and part.site in FINITE_FOR_MULTIPLYING_KERNELS
        ):
            poison = replace(poison, pattern=_FINITE_STAND_IN.get(poison.pattern, poison.pattern))
        poison.fill_(part.memory, part.site)
    # Before the kernel gets anything: on a CPU `given` may be the memory of `raw` itself.
    kept = _map_tensors(raw, pools.copied)
    given = _map_tensors(raw, lambda tensor: placed(tensor, setting.device, setting.fence))
    if setting.corruption is None:
        return given, kept
    return corrupted(given, setting.corruption), as_meant(kept, setting.corruption)


def placed(tensor: Tensor, device: str, fence: Fence = "none") -> Tensor:
    """`tensor` [...] of any dtype, such as float8_e4m3fn, on `device` with its strides and gaps.

    `Tensor.to` would close the gaps. The content of gaps is moved too, except in a pool of
    gigabytes, where gaps hold nothing. Where such a pool does not fit, its gaps have no memory at
    all. With a `fence` the memory of the tensor begins or ends at memory without access, except
    such a pool. Raises NoMemoryError for memory that does not fit.
    """
    is_plain = tensor.numel() == 0 or tensor.is_contiguous()
    size = tensor.element_size()
    room = tensor.numel() if is_plain else tensor.untyped_storage().nbytes() // size
    has_content = room <= pools.MOST_GAPS * tensor.numel()
    is_fenced = fence != "none" and room > 0 and has_content
    if not is_fenced and (device == "cpu" or is_plain):
        return tensor.to(device)
    moved = (
        fenced(room * size, fence, device).view(tensor.dtype)
        if is_fenced
        else _room_for(tensor, room, device)
    )
    if is_plain:
        return moved.copy_(tensor.flatten()).view(tensor.shape)
    if has_content:
        # All of the storage, so that poison in the gaps arrives on the device too.
        moved.copy_(tensor.as_strided((room,), (1,), 0))
    view = moved.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    view.copy_(tensor)
    return view


def _room_for(tensor: Tensor, room: int, device: str) -> Tensor:
    """Memory [room] on `device` for a `tensor` with its gaps, or else addresses with memory for its
    rows alone.

    Raises NoMemoryError if neither fits.
    """
    try:
        return torch.empty(room, dtype=tensor.dtype, device=device)
    except torch.OutOfMemoryError:
        free, total = (count / 2**30 for count in torch.cuda.mem_get_info())
        size = room * tensor.element_size()
    try:
        return with_memory_at(size, pieces_of(tensor)).view(tensor.dtype)
    except PoisonError as error:
        need = (
            f"an input with its gaps needs {size / 2**30:.1f} GiB, and {free:.1f} of {total:.1f}"
            " GiB are free"
        )
        raise NoMemoryError(f"{need}; its rows alone could not be mapped: {error}") from None


def keeps(setting: Setting, promise: bool) -> bool:
    return promise and not setting.poison.ignore_contracts


def _map_tensors(record: InputsT, change: Callable[[Tensor], Tensor]) -> InputsT:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    changed: dict[str, Any] = {
        name: change(value) for name, value in values.items() if isinstance(value, Tensor)
    }
    return replace(record, **changed)


def _guard(name: str, given: Tensor, kept: Tensor) -> Guarded:
    return Guarded(name, None, by_rows(kept), lambda: by_rows(given))


def _guard_beside(row_name: str, memory: Tensor) -> Guarded:
    return Guarded(
        "memory beside kv_cache", "kv.neighbor", memory.clone(), lambda: memory, row_name.format
    )


def by_rows(tensor: Tensor) -> Tensor:
    """`tensor` [n] as a column [n, 1], for oracles that count rows along dim 0; other shapes, and
    any dtype such as float32, as they are.
    """
    return tensor[:, None] if tensor.ndim == 1 else tensor
