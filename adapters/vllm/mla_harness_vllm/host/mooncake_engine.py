"""Mooncake on a CPU: a transfer engine that copies by address, and one event loop for the workers
of both engines.

In vLLM each worker runs loops in threads, a pool of threads, a socket, and an HTTP server that
names the sockets. Here the loop runs when the host waits or ticks, and a message to another worker
is a task of the loop. Schedulers, metadata, bookkeeping and the plans of copies are vLLM's.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import random
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from mla_harness_adapters.host_parts import patched
from mla_harness_adapters.moving_device import Device

# The HTTP server is not run, so its package need not be there.
sys.modules.setdefault("uvicorn", mock.Mock())
connector: Any = importlib.import_module(
    "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector"
)

# A worker that is collected later finds no engine to shut down.
connector.MooncakeConnectorWorker.__del__ = lambda worker: None

MOST_TURNS = 12
PREFILL = "prefill"


class Exchange:
    """All workers of a run.

    The transfers with numbers in `failing` copy their first half and report an error.
    """

    def __init__(self, device: Device, failing: Iterable[int], seed: int) -> None:
        self.device = device
        self.failing = frozenset(failing)
        self.loop = asyncio.new_event_loop()
        self.listening: dict[str, Any] = {}
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self.loop.run_in_executor = self._in_pool  # type: ignore[assignment,method-assign]

    def tick(self) -> None:
        """Let every task that can go on do so, for some turns."""
        for _ in range(self._random.randint(1, MOST_TURNS)):
            self.loop.run_until_complete(asyncio.sleep(0))

    def schedule(self, coroutine: Coroutine[Any, Any, Any], loop: Any) -> Any:
        task = self.loop.create_task(coroutine)
        self.loop.run_until_complete(asyncio.sleep(0))
        return SimpleNamespace(
            done=task.done, cancel=task.cancel, result=lambda *_: self.loop.run_until_complete(task)
        )

    async def _in_pool(self, pool: Any, function: Callable[..., Any], *args: Any) -> Any:
        """A call in a pool of threads: it runs some turns later."""
        for _ in range(self._random.randint(0, MOST_TURNS)):
            await asyncio.sleep(0)
        return function(*args)

    def write(self, session: str, sources: list[int], targets: list[int], sizes: list[int]) -> int:
        """The engine's transfer. It returns when all pieces have landed."""
        number = next(self._numbers)
        fails = number in self.failing
        for event in self.device.send(
            f"mooncake {number}", list(zip(sources, targets, sizes, strict=True)), fails
        ):
            event.synchronize()
        return -1 if fails else 0

    def engine(self) -> Any:
        succeeds = lambda *args: 0  # noqa: E731
        return SimpleNamespace(
            initialize=succeeds,
            batch_register_memory=succeeds,
            get_rpc_port=lambda: 1,
            batch_transfer_sync_write=self.write,
        )

    async def listen(self, worker: Any, ready: threading.Event, *more: Any) -> None:
        self.listening[worker.engine_id] = worker
        ready.set()

    async def connect(self, worker: Any, address: str) -> None:
        worker._remote_agents[PREFILL] = {0: {0: PREFILL}}
        worker._tp_size[PREFILL] = 1
        worker._pending_bootstrap_queries.pop(address).set()

    @contextlib.contextmanager
    def socket(self, context: Any, address: str, *args: Any, **options: Any) -> Iterator[Any]:
        """A socket to the prefill worker: what is sent becomes a task there, and its replies come
        back.
        """
        replies: asyncio.Queue[bytes] = asyncio.Queue()

        async def send(data: bytes) -> None:
            worker = self.listening[address]
            back = SimpleNamespace(send_multipart=lambda parts: replies.put(parts[1]))
            self.loop.create_task(
                worker.send_kv_to_decode(b"", back, worker._xfer_meta_decoder.decode(data))
            )

        yield SimpleNamespace(send=send, recv=replies.get, setsockopt=lambda *args: None)


@contextlib.contextmanager
def on_exchange(exchange: Exchange) -> Iterator[None]:
    """Let vLLM's Mooncake workers use `exchange` for the length of the block."""
    loops = {"new_event_loop": lambda: exchange.loop, "run_coroutine_threadsafe": exchange.schedule}
    of_connector = {
        "TransferEngine": exchange.engine,
        "get_ip": lambda: "host",
        "make_zmq_socket": exchange.socket,
        # `connect` knows where the prefill worker is, so no server of addresses is needed.
        "should_launch_bootstrap_server": lambda config: False,
        "asyncio": SimpleNamespace(**vars(asyncio) | loops),
        # The exchange runs the loop of a worker, so the worker's own thread must not.
        "threading": SimpleNamespace(**vars(threading) | {"Thread": mock.Mock()}),
    }
    of_worker = {
        "shutdown": lambda one: None,
        "_mooncake_sender_listener": lambda one, *args: exchange.listen(one, *args),
        "_connect_to_prefiller_bootstrap": lambda one, address: exchange.connect(one, address),
    }
    worker = connector.MooncakeConnectorWorker
    with patched(connector, of_connector), patched(worker, of_worker):
        yield
    for task in asyncio.all_tasks(exchange.loop):
        task.cancel()
    exchange.tick()
    exchange.loop.close()
