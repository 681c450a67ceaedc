"""A NIXL agent on a CPU: it keeps descriptors and copies by address, in a seeded order, and fails
on request.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any
from unittest import mock

from vllm.platforms import current_platform

from mla_harness_adapters.host_parts import patched
from mla_harness_adapters.moving_device import Device, DeviceEvent

PACKAGE = "vllm.distributed.kv_transfer.kv_connector"


class Network:
    """All agents of a run.

    The transfers with numbers in `failing` lose their second half and end as an error.
    """

    def __init__(self, device: Device, failing: Iterable[int]) -> None:
        self.device = device
        self.failing = frozenset(failing)
        self.agents: dict[str, Agent] = {}
        self.num_transfers = itertools.count()

    def agent(self, name: str, config: Any = None) -> Agent:
        made = self.agents[name] = Agent(self, name)
        return made


class Agent:
    """The methods of NIXL's wrapper that vLLM's workers call."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self._name = name
        self._notes: dict[str, list[bytes]] = {}
        self._lists: dict[int, list[tuple[int, int]]] = {}
        self._transfers: dict[int, tuple[list[tuple[int, int, int]], bytes | str]] = {}
        self._running: dict[int, tuple[list[DeviceEvent], str, bytes | str]] = {}
        self._numbers = itertools.count(1)

    def get_agent_metadata(self) -> bytes:
        return self._name.encode()

    def add_remote_agent(self, metadata: bytes) -> str:
        return metadata.decode()

    def check_remote_metadata(self, name: str) -> bool:
        return name in self._network.agents

    def get_reg_descs(self, caches: Any, memory: str) -> Any:
        return caches

    def get_xfer_descs(self, blocks: Any, memory: str) -> Any:
        """Descriptors (address, bytes, device) of blocks, as they are."""
        return blocks

    def prep_xfer_dlist(self, agent: str, descriptors: Any = None, **more: Any) -> int:
        number = next(self._numbers)
        # Releases name this argument differently.
        descriptors = more.get("xfer_list", descriptors)
        self._lists[number] = [place for one in descriptors for place in _blocks(*map(int, one))]
        return number

    def make_prepped_xfer(
        self,
        how: str,
        local: int,
        locals_: Any,
        remote: int,
        remotes: Any,
        notif_msg: bytes | str = b"",
        **more: Any,
    ) -> int:
        """The number of a transfer between two lists, piece by piece."""
        parts = []
        for a, b in zip(locals_, remotes, strict=True):
            here, size = self._lists[local][int(a)]
            there, _ = self._lists[remote][int(b)]
            # A read copies from the other side to this one, a write the other way.
            parts.append((there, here, size) if how == "READ" else (here, there, size))
        number = next(self._numbers)
        self._transfers[number] = parts, notif_msg
        return number

    def transfer(self, handle: int) -> str:
        parts, note = self._transfers.pop(handle)
        # Counted over all agents, so that a seed makes the same transfer fail in every run.
        number = next(self._network.num_transfers)
        fails = number in self._network.failing
        events = self._network.device.send(f"nixl {number}", parts, fails)
        self._running[handle] = events, "ERR" if fails else "DONE", note
        return "PROC"

    def check_xfer_state(self, handle: int) -> str:
        """How far a transfer is, in NIXL's words."""
        events, end, note = self._running[handle]
        if not all([event.query() for event in events]):
            return "PROC"
        for agent in self._network.agents.values() if end == "DONE" else ():
            # The other side is only notified when everything has arrived.
            agent._notes.setdefault(self._name, []).append(
                note if isinstance(note, bytes) else note.encode()
            )
        return end

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        notes = self._notes
        self._notes = {}
        # `check_xfer_state` notes to every agent, and so to the sender.
        return {name: found for name, found in notes.items() if name != self._name}

    def send_notif(self, agent: str, notif_msg: bytes) -> None:
        self._network.agents[agent]._notes.setdefault(self._name, []).append(notif_msg)

    def get_xfer_telemetry(self, handle: int) -> Any:
        """Nothing is measured."""
        return mock.Mock(xferDuration=1, postDuration=1, totalBytes=1, descCount=1)

    def create_backend(self, *args: Any, **options: Any) -> None:
        """Nothing is made or registered, so nothing is released."""

    register_memory = deregister_memory = create_backend
    release_xfer_handle = release_dlist_handle = remove_remote_agent = create_backend


def _blocks(
    address: int, num_bytes: int, device: int = 0, stride: int = 0, count: int = 1
) -> Iterator[tuple[int, int]]:
    """The blocks of a descriptor.

    Since 0.33.0 one descriptor is of `count` blocks, `stride` bytes apart.
    """
    for number in range(count):
        yield address + number * stride, num_bytes


class InlineExecutor(Executor):
    """An executor that runs what it is given at once."""

    def __init__(self, *args: Any, **options: Any) -> None: ...

    def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        """Run a function. The future has its result or its error."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **options))
        except Exception as error:
            future.set_exception(error)
        return future


@contextlib.contextmanager
def on_network(network: Network) -> Iterator[None]:
    """Let vLLM's connectors use the agents of `network`, on one rank, for the length of the
    block.
    """
    replaced = {
        "NixlWrapper": network.agent,
        "nixl_agent_config": None,
        # The modules ask vLLM's process groups, which exist in a started server alone.
        "get_tensor_model_parallel_rank": lambda: 0,
        "get_tensor_model_parallel_world_size": lambda: 1,
        "get_pp_group": lambda: mock.Mock(rank_in_group=0, world_size=1),
        "get_kv_cache_layout": lambda *args: "NHD",
        "ThreadPoolExecutor": InlineExecutor,
    }
    with contextlib.ExitStack() as stack:
        for module in [module for name, module in sys.modules.items() if name.startswith(PACKAGE)]:
            if known := {name: made for name, made in replaced.items() if name in vars(module)}:
                stack.enter_context(patched(module, known))
        # The connectors choose their paths by the platform. The paths of a GPU are the ones to
        # test.
        stack.enter_context(mock.patch.object(current_platform, "device_type", "cuda", create=True))
        yield
