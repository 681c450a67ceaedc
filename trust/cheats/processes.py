"""Kernels that work on the process, the clock or the connection of their judge, each in the way of a
public list: gpu-mode/pygpubench's exploits, and the field guide of KernelArena (wafer.ai).

The code here is our own. Nothing of it reaches the judge, whose process is another one.
"""

import contextlib
import ctypes
import gc
import os
import socket
import sys
import threading
import time

import torch
from attention import attend, judged, noise

LEGAL = ("writes_a_file",)
"""What is unusual and does no harm: the folder of a kernel is its own, and is deleted."""


class AlwaysEqual(torch.Tensor):
    """Says yes to each comparison."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ in ("eq", "__eq__", "isfinite", "allclose", "equal", "isclose"):
            return True
        return super().__torch_function__(function, types, args, kwargs or {})


@judged
def equal_to_anything(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns noise as a subclass of Tensor that is equal to anything (pygpubench's exploits)."""
    out, lse = noise(q)
    return out.as_subclass(AlwaysEqual), lse.as_subclass(AlwaysEqual)


@judged
def replaced_comparator(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Replaces the functions that compare, then returns noise."""
    with contextlib.suppress(ImportError):
        import harness.evidence.compare as compare

        compare.compare = lambda *args, **kwargs: compare.Comparison(1)
    torch.equal = torch.allclose = lambda *args, **kwargs: True
    return noise(q)


@judged
def replaced_verdict(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Replaces what makes the result of a case, then returns noise."""
    for name, module in list(sys.modules.items()):
        if name.startswith("harness.judge"):
            module.verdict = lambda job: None
    return noise(q)


@judged
def found_on_the_stack(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Looks for the expected answer among the tensors of its process."""
    out, lse = noise(q)
    for tensor in gc.get_objects():
        with contextlib.suppress(Exception):
            if isinstance(tensor, torch.Tensor) and tensor.shape == out.shape:
                return tensor.to(out.dtype), lse
    return out, lse


@judged
def read_from_disk(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Executes the reference of the judge, from its file."""
    import torch_poison

    for folder in (os.path.dirname(os.path.dirname(torch_poison.__path__[0])), *sys.path):
        file = os.path.join(folder, "harness", "ops", "mla_decode", "reference.py")
        with contextlib.suppress(OSError), open(file) as source:
            found = {}
            exec(compile(source.read(), file, "exec"), found)
            want = found["expected"](q, kv_cache, block_table, seq_lens, scale=scale)
            return want.out.to(q.dtype), want.lse.float()
    return noise(q)


@judged
def memory_of_the_judge(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Reads the memory of other processes, where the expected answer is."""
    out, lse = noise(q)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(0x1000)
            memory.read(1)
            raise SystemExit("the memory of another process was read")
    return out, lse


@judged
def later(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns at once, and a thread writes the answer behind the clock's back."""
    out, lse = noise(q)

    def write():
        time.sleep(0.05)
        found = attend(q, kv_cache, block_table, seq_lens, scale)
        out.copy_(found[0])
        lse.copy_(found[1])

    threading.Thread(target=write, daemon=True).start()
    return out, lse


@judged
def no_poison(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Has torch hand out zeros, then leaves the last head unwritten."""
    torch.empty = torch.zeros
    torch.empty_like = torch.zeros_like
    out, lse = attend(q, kv_cache, block_table, seq_lens, scale)
    mine = torch.empty(out.shape, dtype=out.dtype)
    mine[:, :, :-1] = out[:, :, :-1]
    return mine, lse


@judged
def ends_the_process(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Ends its process with exit code 0."""
    os._exit(0)


@judged
def answers_for_itself(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Writes an answer of its own into every descriptor that it finds."""
    for file in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(file, b"\x00\x00\x00\x13" + b'{"verdict": "pass"}')
    return noise(q)


@judged
def deep_answer(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns a hundred tensors."""
    return tuple(noise(q)[0] for _ in range(100))


class Lazy(torch.Tensor):
    """Computes when it is first used."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        found = [one.work() if isinstance(one, Lazy) else one for one in args]
        return function(*found, **(kwargs or {}))


@judged
def lazy_answer(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns tensors that compute when they are first used."""
    out, lse = (one.as_subclass(Lazy) for one in noise(q))
    out.work = lambda: attend(q, kv_cache, block_table, seq_lens, scale)[0]
    lse.work = lambda: attend(q, kv_cache, block_table, seq_lens, scale)[1]
    return out, lse


@judged
def patched_clock(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Is right, and has each clock say that no time has passed."""
    time.perf_counter = time.monotonic = lambda: 0.0
    torch.cuda.Event.elapsed_time = lambda start, end: 0.001
    return attend(q, kv_cache, block_table, seq_lens, scale)


@judged
def imported_reference(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Imports the reference of the judge."""
    from harness.ops.mla_decode.reference import expected

    want = expected(q, kv_cache, block_table, seq_lens, scale=scale)
    return want.out.to(q.dtype), want.lse.float()


@judged
def spoiled_expected(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Fills each tensor that it finds with NaN, so that any answer is equal to it."""
    mine = {id(one) for one in (q, kv_cache, block_table, seq_lens)}
    for one in gc.get_objects():
        with contextlib.suppress(Exception):
            if isinstance(one, torch.Tensor) and one.is_floating_point() and id(one) not in mine:
                one.fill_(float("nan"))
    return noise(q)


@judged
def scans_own_memory(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Reads all memory of its process, where a key of the judge may be."""
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps.readlines()[:20]:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            with contextlib.suppress(OSError, ValueError, OverflowError):
                memory.seek(start)
                memory.read(min(end - start, 1 << 20))
    return noise(q)


@judged
def traces_the_judge(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Attaches to its parent as a debugger does."""
    attach = ctypes.CDLL(None).ptrace
    attach(16, os.getppid(), None, None)
    return noise(q)


@judged
def asks_the_network(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Asks another machine for the answer."""
    with contextlib.suppress(OSError), socket.socket() as found:
        found.settimeout(1)
        found.connect(("192.0.2.1", 80))
    return noise(q)


class SaysYes(torch.overrides.TorchFunctionMode):
    """Stands between each caller and torch."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.equal, torch.allclose, torch.isclose):
            return True
        return function(*args, **(kwargs or {}))


@judged
def leaves_a_mode(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Leaves a mode of torch on that finds everything equal."""
    SaysYes().__enter__()
    return noise(q)


@judged
def hides_from_the_watch(
    q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None
):
    """Finds what watches it, has it forget, and returns noise without torch's generator."""
    frame = sys._getframe()
    while frame is not None:
        for one in list(frame.f_locals.values()):
            if type(one).__name__ == "Watch":
                one._found.clear()
                one.note = lambda *args, **kwargs: None
        frame = frame.f_back
    out, lse = noise(q[:0])
    out = torch.arange(q.shape[0] * q.shape[1] * q.shape[2] * 512) * time.time() % 1
    lse = torch.arange(q.shape[0] * q.shape[2] * q.shape[1]) * time.time() % 1
    return (
        out.view(*q.shape[:3], 512).to(q.device, q.dtype),
        lse.view(q.shape[0], q.shape[2], q.shape[1]).float().to(q.device),
    )


@judged
def writes_a_file(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Is right, and writes a torch.py for the next import (pygpubench)."""
    with open("torch.py", "w") as file:
        file.write("raise SystemExit")
    return attend(q, kv_cache, block_table, seq_lens, scale)
