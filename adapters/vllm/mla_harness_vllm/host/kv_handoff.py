"""vLLM's NIXL and Mooncake connectors on a CPU: a prefill and a decode engine in one process, with
two schedulers.

The handshake, the requests' parameters and the plans of copies are vLLM's. NIXL itself is
`nixl_agent`, Mooncake itself `mooncake_engine`.
"""

from __future__ import annotations

import os
import socket
from typing import Any
from unittest import mock

from torch_poison.patterns import Poison
from vllm.distributed.kv_transfer.kv_connector.v1 import nixl as nixl

from harness.api import Landed, Moved, Run
from mla_harness_adapters.moving_device import Device
from mla_harness_vllm.host.kv_moves import MOST_STEPS, ConnectedEngine, Handover
from mla_harness_vllm.host.mooncake_engine import PREFILL, Exchange, on_exchange
from mla_harness_vllm.host.moving_device import in_place
from mla_harness_vllm.host.nixl_agent import Network, on_network
from mla_harness_vllm.params import VllmHostParams
from mla_harness_vllm.releases import HANDSHAKE_BY_STAGE

REQUESTS = ((0, 40), (1, 56), (2, 30))
NUM_SCHEDULES = 3


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Hand the pages of each request over, in several seeded orders."""
    found = Run(poison.pattern)
    for number in range(NUM_SCHEDULES):
        found.evidence.append(served(params, poison.seed + number, f"schedule {number}"))
    return found


def served(params: VllmHostParams, seed: int, order: str) -> Moved:
    """One schedule."""
    device = Device(seed)
    landed = Landed()
    # vLLM's default is one fixed port, and tests run side by side.
    port = mock.patch.dict(os.environ, VLLM_NIXL_SIDE_CHANNEL_PORT=str(_free_port()))
    exchange = Exchange(device, params.failing, seed)
    pushes = params.connector == "mooncake"
    with port, in_place(device), on_network(Network(device, params.failing)), on_exchange(exchange):
        prefill, decode = (
            ConnectedEngine(device, landed, params.connector, False, name, params.sidecars)
            for name in (PREFILL, "decode")
        )
        if not pushes:
            _shake_hands(prefill)
        for number, length in REQUESTS:
            transfer = f"transfer {number}"
            sent = Handover(do_remote_decode=True, do_remote_prefill=False, transfer_id=transfer)
            prefill.add(number, length, sent, max_tokens=1)
            if pushes:
                # A router gives such a request to both engines at once.
                received = Handover(
                    do_remote_decode=False,
                    do_remote_prefill=True,
                    transfer_id=transfer,
                    remote_engine_id=PREFILL,
                    remote_bootstrap_addr="http://prefill",
                )
                decode.add(number, length, received)
        finished = 0
        failed = []
        for _ in range(MOST_STEPS):
            for output in prefill.tick():
                if output.kv_transfer_params:
                    decode.add(
                        int(output.request_id),
                        dict(REQUESTS)[int(output.request_id)],
                        output.kv_transfer_params,
                    )
            ended = [output for output in decode.tick() if output.finish_reason is not None]
            finished += len(ended)
            failed += [
                output.request_id
                for output in ended
                if str(output.finish_reason) in ("error", "abort")
            ]
            device.streams.progress(6)
            exchange.tick()
            if finished == len(REQUESTS):
                break
        device.streams.finish()
        if not params.failing and (failed or finished < len(REQUESTS)):
            raise RuntimeError(
                f"{finished} of {len(REQUESTS)} requests ended, and {failed} failed without a cause"
            )
        for engine in (prefill, decode):
            engine.close()
    return Moved.of(landed, device.streams, order)


def _shake_hands(prefill: ConnectedEngine) -> None:
    """Publish where the prefill engine's cache lies, as vLLM's engine core does."""
    connector: Any = prefill.scheduler.connector
    payload = prefill.worker.get_handshake_metadata()
    if HANDSHAKE_BY_STAGE.of(connector):
        connector.set_xfer_handshake_metadata_pp_aware({(0, 0): payload})
    else:
        connector.set_xfer_handshake_metadata({0: payload})


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port
