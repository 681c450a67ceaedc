"""The connection to a Ray cluster, its slots, and the actors in them."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import time
import warnings
from itertools import zip_longest
from typing import Any, NamedTuple

from harness.core import extras
from harness.core.errors import HarnessError, InputError
from harness.run import ray_actor

LOCAL = "local"
CONNECT_SECONDS = 60.0
LISTED_SECONDS = 1.0
"""How long a list of nodes stays valid."""
OBJECT_STORE_BYTES = 256 << 20
"""Memory for objects of a local cluster, which sends only code and fixtures."""
_FORM = re.compile(r"^(?P<host>[^:/\s]+|\[[^\]]+\]):(?P<port>\d{1,5})$")


class RaySlot(NamedTuple):
    """Room for one worker process: a GPU slot or a CPU slot of a node."""

    node: str
    """The node's id."""
    name: str
    """The node's address and the beginning of its id, for people."""
    has_gpu: bool
    number: int


class Cluster:
    """A connection to a Ray cluster, or a local one that lives as long as the connection.

    `address` is `auto` or HOST:PORT of a cluster that this machine is part of. None starts a local
    one with `num_cpus` CPU slots. Raises InputError if Ray is not installed or no cluster answers.
    """

    def __init__(self, address: str | None, num_cpus: int) -> None:
        extras.require(["ray"])
        import ray

        self.address = address or LOCAL
        self._ray: Any = ray
        self._listed: list[RaySlot] = []
        self._listed_at = -LISTED_SECONDS
        self._is_ours = not ray.is_initialized()
        if not self._is_ours:
            # The program that embeds the harness has connected already, and keeps the connection.
            return
        # Ray reports statistics of use over the network unless it is told not to.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        _check_reachable(self.address)
        options: dict[str, Any] = {"address": self.address}
        if self.address == LOCAL:
            options |= {
                "num_cpus": num_cpus,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
            }
        _keep_standard_output_clean()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **options)
        except (Exception, SystemExit) as error:
            raise InputError(_refused(self.address, " ".join(str(error).split()))) from None

    def disconnect(self) -> None:
        """End the connection, and with it a local cluster."""
        if self._is_ours:
            self._ray.shutdown()

    def slots(self) -> list[RaySlot]:
        """The slots of all live nodes: first GPU slots, then CPU slots, of each node in turn."""
        if time.monotonic() - self._listed_at > LISTED_SECONDS:
            nodes = [node for node in self._ray.nodes() if node["Alive"]]
            by_kind = ([_slots(node, has_gpu=kind) for node in nodes] for kind in (True, False))
            self._listed = [
                slot for lists in by_kind for turn in zip_longest(*lists) for slot in turn if slot
            ]
            self._listed_at = time.monotonic()
        return self._listed

    def describe(self) -> str:
        slots = self.slots()
        gpus = sum(slot.has_gpu for slot in slots)
        nodes = len({slot.node for slot in slots})
        return (
            f"Ray {self._ray.__version__}, {self.address}: {nodes} nodes, {len(slots) - gpus} CPU"
            f" slots, {gpus} GPUs"
        )

    def put(self, value: bytes) -> Any:
        return self._ray.put(value)

    def spawn(self, slot: RaySlot, *arguments: Any) -> Any:
        """The handle of a new :class:`harness.run.ray_actor.NodeWorker` in `slot`."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # A node need not have this harness, so the actor's code cannot be imported there by its
        # name.
        self._ray.cloudpickle.register_pickle_by_value(ray_actor)
        actor: Any = self._ray.remote(ray_actor.NodeWorker)
        return actor.options(
            num_cpus=1,
            num_gpus=int(slot.has_gpu),
            # A second thread takes `close` while a case runs.
            max_concurrency=2,
            # A slot is room on one node. Elsewhere the actor would take the room of another slot.
            scheduling_strategy=NodeAffinitySchedulingStrategy(slot.node, soft=False),
        ).remote(*arguments)

    def wait(self, references: list[Any], seconds: float) -> list[Any]:
        """A list of one reference that has its answer, or an empty list after `seconds`."""
        ready, _ = self._ray.wait(references, num_returns=1, timeout=seconds)
        return list(ready)

    def take(self, reference: Any) -> Any:
        """The answer of an actor. Raises ActorLost if the actor is gone."""
        try:
            return self._ray.get(reference)
        # First, as it is a RayError too: here the actor lives, and its own code has failed.
        except self._ray.exceptions.RayTaskError as error:
            last = str(error).strip().splitlines()[-1]
            raise HarnessError(f"the actor on a node failed: {last}") from error
        except self._ray.exceptions.RayError as error:
            raise ActorLost(" ".join(str(error).split())) from None

    def end(self, started: list[Any], others: list[Any]) -> None:
        """End actors, and first the worker processes of `started` ones.

        Actors of lost nodes are gone already.
        """
        closing = [handle.close.remote() for handle in started]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=CONNECT_SECONDS)
        for handle in [*started, *others]:
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.kill(handle)


class ActorLost(Exception):
    """An actor is gone with its work: its node was lost, or ended it."""


def _slots(node: dict[str, Any], *, has_gpu: bool) -> list[RaySlot]:
    """The GPU slots of a node, each with a CPU, or the CPU slots that are left."""
    num_cpus = int(node["Resources"].get("CPU", 0))
    # Every worker takes a CPU as well, so GPUs beyond the CPUs are no slots.
    num_gpus = min(int(node["Resources"].get("GPU", 0)), num_cpus)
    name = f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"
    return [
        RaySlot(node["NodeID"], name, has_gpu, n)
        for n in range(num_gpus if has_gpu else num_cpus - num_gpus)
    ]


def _check_reachable(address: str) -> None:
    """Raise InputError if nothing listens at `address`: Ray itself would try for minutes."""
    if address in (LOCAL, "auto"):
        return
    match = _FORM.match(address)
    if match is None:
        raise InputError(
            f"--ray-address {address}: not of the form HOST:PORT; give that of a cluster, or auto"
        )
    try:
        socket.create_connection(
            (match["host"].strip("[]"), int(match["port"])), CONNECT_SECONDS
        ).close()
    except (OSError, OverflowError) as error:
        raise InputError(_refused(address, str(error))) from None


def _refused(address: str, why: str) -> str:
    if address == LOCAL:
        return f"--executor ray: no local Ray cluster could be started: {why}"
    return (
        f"--ray-address {address}: no Ray cluster answers: {why}; run this on a machine of the"
        " cluster, or leave the address out for a local one"
    )


def _keep_standard_output_clean() -> None:
    """Stop Ray from printing the log of a lost node to standard output, which is for results."""
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *args, **options: None
