"""vLLM's scheduler and a KV connector of it, on a CPU: does every byte that a step reads belong to
its token?

Scheduler, connector, their metadata and their bookkeeping are vLLM's. The model, the copies, the
streams and the transport are the harness's (see `moving_device`). The model writes owners of tokens
instead of latents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypedDict
from unittest import mock

import torch
from torch import Tensor
from torch_poison.patterns import Poison
from vllm import config as configs
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

from harness.api import Landed, Moved, Refused, Run, in_orders
from mla_harness_adapters.moving_device import Device, DeviceEvent, Span
from mla_harness_adapters.releases import accepted
from mla_harness_vllm.host.kv_layers import BLOCK, WIDTH, Layer, layers_of, memory_of, planned
from mla_harness_vllm.host.moving_device import in_place
from mla_harness_vllm.params import VllmHostParams
from mla_harness_vllm.releases import CACHE_LAYOUT, LOADS_FIRST, TRANSFER_RESULTS

CLASSES = {
    "simple": "SimpleCPUOffloadConnector",
    "offloading": "OffloadingConnector",
    "nixl": "NixlConnector",
    "mooncake": "MooncakeConnector",
}
ALONE = "engine"
"""The name of an engine that hands nothing over to another one."""
NUM_SCHEDULES = 8
MOST_SEARCHED = 8
MOST_STEPS = 400
ROUNDS = (((0, 70), (1, 60)), ((2, 75), (3, 58), (4, 80), (5, 66), (6, 40)))
"""The requests of each round with the lengths of their prompts.

The second round takes the blocks of the first.
"""
SHARES = {4: (0, 64), 5: (1, 48)}
"""Requests that begin with tokens of another one."""
NUM_GENERATED = 6
"""The tokens that a request generates."""
STOP = 9_999
"""The token that ends a request: when it is looked at, the request's next step may already run."""

# Once: up to 0.26 each call draws a new root of all hashes, and then no request finds the blocks of
# another one.
init_none_hash(sha256)


class Handover(TypedDict, total=False):
    """The parameters of a request that moves between engines, by the names of vLLM's connectors."""

    do_remote_decode: bool
    do_remote_prefill: bool
    transfer_id: str
    remote_engine_id: str
    remote_bootstrap_addr: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Blocks of an engine, bytes of a host's memory, and the tokens that a window of a hybrid model
    has.
    """

    num_blocks: int = 10
    host_bytes: int = 1 << 16
    window: int = 512


ONE_GROUP = Sizes()
SIZES = {
    "": ONE_GROUP,
    "index": ONE_GROUP,
    "window": Sizes(20, 1 << 18, 40),
    "state": Sizes(24, 1 << 18),
}
"""By sidecar.

Each group of layers has blocks of its own. By default a window is longer than every request.
"""


class TinyModel:
    """The settings of a model with MLA, as far as scheduler and connectors ask.

    Anything else is off.
    """

    model = "tiny"
    dtype = torch.bfloat16
    max_model_len = 512
    use_mla = True
    runner_type = "generate"
    is_moe = True
    architectures: tuple[str, ...] = ()
    SIZES: ClassVar[dict[str, int]] = {
        "get_total_num_kv_heads": 1,  # one latent for all heads
        "get_num_kv_heads": 1,
        "get_num_layers": 2,
        "get_total_num_hidden_layers": 2,
        "get_head_size": WIDTH,
    }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.SIZES:
            return lambda *_: self.SIZES[name]
        return False if name.startswith(("is_", "use", "has_", "enable_")) else None


class Attention(AttentionLayerBase):  # type: ignore[misc]
    """An attention layer. A connector asks it where the dimension of blocks is."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer

    def get_attn_backend(self) -> Any:
        return TritonMLABackend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        return self._layer.spec


def settings(
    connector: str,
    is_overlapped: bool,
    engine: str,
    layers: dict[str, Layer],
    sizes: Sizes = ONE_GROUP,
) -> Any:
    """vLLM's configuration with a connector, or with none if `connector` is empty."""
    cache = configs.CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = cache.num_gpu_blocks_override = sizes.num_blocks
    cache.mamba_block_size = BLOCK
    cache.mamba_cache_mode = "align"
    if CACHE_LAYOUT.of(cache):
        cache.kv_cache_layout = "LBNHC"
    scheduler = configs.SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=48,
        max_model_len=TinyModel.max_model_len,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=is_overlapped,
    )
    transfer = configs.KVTransferConfig(
        kv_connector=CLASSES.get(connector),
        kv_role="kv_both",
        # OffloadingConnector names a file in /dev/shm by it. Cases run in several processes.
        engine_id=f"{engine}-{os.getpid()}" if engine == ALONE else engine,
        kv_connector_extra_config={"cpu_bytes_to_use": sizes.host_bytes, "block_size": BLOCK},
    )
    made = configs.VllmConfig(
        cache_config=cache,
        scheduler_config=scheduler,
        kv_transfer_config=transfer if connector else None,
        device_config=configs.DeviceConfig("cpu"),
    )
    made.model_config = TinyModel()
    # A platform that is not known switches it off.
    made.scheduler_config.disable_hybrid_kv_cache_manager = False
    made.compilation_config.static_forward_context.update(
        {name: Attention(one) for name, one in layers.items()}
    )
    return made


def scheduler_of(vllm_config: Any, kv_config: Any, is_overlapped: bool) -> Any:
    kind = AsyncScheduler if is_overlapped else Scheduler
    merged = generate_scheduler_kv_cache_config([kv_config])
    structured = {"should_advance.return_value": False}
    return kind(vllm_config, merged, mock.Mock(**structured), BLOCK)


def request_of(
    number: int, tokens: list[int], max_tokens: int, transfer: Handover | None = None
) -> Any:
    """A request that ends with the token STOP.

    `transfer` has the parameters of its move between engines.
    """
    parameters = SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=[STOP])
    parameters.extra_args = transfer and {"kv_transfer_params": transfer}
    return Request(
        str(number), tokens, parameters, None, block_hasher=get_request_block_hasher(BLOCK, sha256)
    )


def runner_output(sampled: dict[str, list[int]], **more: Any) -> Any:
    """What a runner returns for a step: the tokens of each request."""
    later = accepted(
        {"logprobs": None, "prompt_logprobs_dict": {}, "pooler_output": []}, ModelRunnerOutput
    )
    places = {name: place for place, name in enumerate(sampled)}
    return ModelRunnerOutput(
        list(sampled), places, sampled_token_ids=list(sampled.values()), **more, **later
    )


@dataclass(slots=True)
class ConnectedEngine:
    """One engine with its connector, step by step."""

    device: Device
    landed: Landed
    connector: str
    is_overlapped: bool
    name: str = ALONE
    sidecar: str = ""
    sizes: Sizes = ONE_GROUP
    layers: dict[str, Layer] = field(init=False)
    scheduler: Any = field(init=False)
    worker: Any = field(init=False)
    caches: dict[str, Tensor] = field(init=False)
    groups: dict[str, int] = field(init=False)
    """Layer -> its group of blocks."""

    def __post_init__(self) -> None:
        self.layers = layers_of(self.sidecar, self.sizes.window)
        vllm_config = settings(
            self.connector, self.is_overlapped, self.name, self.layers, self.sizes
        )
        kv_config = planned(vllm_config, self.layers)
        self.groups = {
            name: place
            for place, one in enumerate(kv_config.kv_cache_groups)
            for name in one.layer_names
        }
        self.scheduler = scheduler_of(vllm_config, kv_config, self.is_overlapped)
        self.caches = memory_of(kv_config)
        for name, cache in self.caches.items():
            self.device.caches.setdefault(self._region(name), cache)
        self.worker = KVConnectorFactory.create_connector(
            vllm_config, KVConnectorRole.WORKER, kv_config
        )
        typed = {name: layer.typed(self.caches[name]) for name, layer in self.layers.items()}
        # Handlers refuse memory that is not on a GPU.
        with (
            configs.set_current_vllm_config(vllm_config),
            mock.patch.object(torch.Tensor, "is_cuda", True, create=True),
        ):
            try:
                self.worker.register_kv_caches(typed)
            except (AttributeError, ValueError) as error:
                # Mooncake up to 0.28 takes a state apart in another way than the runner puts it
                # together.
                raise Refused(
                    f"the connector registers no {self.sidecar or 'latents'}: {error}"
                ) from error

    def run(self) -> None:
        for requests in ROUNDS:
            for number, length in requests:
                self.add(number, length)
            self._serve()
        self.device.streams.finish()
        self.close()

    def close(self) -> None:
        self.scheduler.connector.shutdown()
        self.worker.shutdown()

    def add(
        self, number: int, length: int, transfer: Handover | None = None, max_tokens: int = 24
    ) -> None:
        self.scheduler.add_request(request_of(number, prompt(number, length), max_tokens, transfer))

    @property
    def compute(self) -> str:
        return "compute" if self.name == ALONE else f"{self.name} compute"

    def tick(self) -> list[Any]:
        """One step, looked at before the next. Returns what vLLM says of its requests."""
        scheduled = self.scheduler.schedule()
        output = self._execute(scheduled)
        self.device.record(self.compute).synchronize()
        outputs = self.scheduler.update_from_output(scheduled, output)
        return [one for each in outputs.values() for one in each.outputs]

    def _serve(self) -> None:
        newest: tuple[Any, Any, DeviceEvent] | None = None
        for _ in range(MOST_STEPS):
            if not self.scheduler.has_requests() and newest is None:
                return
            scheduled = self.scheduler.schedule()
            ran = (scheduled, self._execute(scheduled), self.device.record(self.compute))
            if self.is_overlapped:
                # The step before is only looked at now, while this one runs.
                ran, newest = newest, ran  # type: ignore[assignment]
            if ran is not None:
                ran[2].synchronize()
                self.scheduler.update_from_output(ran[0], ran[1])
            if self.is_overlapped and not self.scheduler.has_requests():
                newest = None
            self.device.streams.progress(6)
        raise RuntimeError(f"requests are not finished after {MOST_STEPS} steps")

    def _execute(self, scheduled: Any) -> Any:
        """What a worker does in a step, in vLLM's order."""
        worker = self.worker
        metadata = scheduled.kv_connector_metadata
        worker.handle_preemptions(metadata)
        worker.bind_connector_metadata(metadata)
        loads_first = LOADS_FIRST.value(scheduled, True)
        if loads_first:
            worker.start_load_kv(mock.Mock())
        self._compute(scheduled)
        if not loads_first:
            worker.start_load_kv(mock.Mock())
        worker.wait_for_save()
        output = KVConnectorOutput()
        if TRANSFER_RESULTS.of(worker):
            results = worker.get_transfer_results(scheduled.finished_req_ids)
            output.finished_sending = results.finished_sending
            output.finished_recving = results.finished_recving
            output.failed_recving = results.failed_recving
        else:
            output.finished_sending, output.finished_recving = worker.get_finished(
                scheduled.finished_req_ids
            )
        output.invalid_block_ids = worker.get_block_ids_with_load_errors()
        output.kv_connector_worker_meta = worker.build_connector_worker_meta()
        worker.clear_connector_metadata()
        sampled = {request: self._sampled(request) for request in scheduled.num_scheduled_tokens}
        return runner_output(sampled, kv_connector_output=output)

    def _sampled(self, request: str) -> list[int]:
        known = self.scheduler.requests[request]
        # A step that ends within the prompt samples nothing.
        num_generated = known.num_computed_tokens - known.num_prompt_tokens
        return (
            []
            if num_generated < 0
            else [STOP if num_generated >= NUM_GENERATED else 10_000 + int(request)]
        )

    def _compute(self, scheduled: Any) -> None:
        for name, layer in self.layers.items():
            old = []
            new = []
            for request, count in scheduled.num_scheduled_tokens.items():
                end = self.scheduler.requests[request].num_computed_tokens
                blocks = self.scheduler.kv_cache_manager.get_block_ids(request)[self.groups[name]]
                at = partial(places, layer, self._region(name), int(request), blocks)
                # A window has the new token too.
                first = (
                    max(0, end - count + 1 - self.sizes.window) if layer.group == "window" else 0
                )
                old += [(request, *place) for place in at(first, end - count)]
                new += list(at(end - count, end))
            if old or new:
                self._launch(
                    f"{self.name} step {self.device.streams.num_launched} {name}", name, old, new
                )

    def _region(self, name: str) -> str:
        """The name of the memory of a layer. Layers that share their memory have one."""
        address = self.caches[name].data_ptr()
        return f"{self.name} " + next(
            one for one, cache in self.caches.items() if cache.data_ptr() == address
        )

    def _launch(
        self,
        title: str,
        name: str,
        old: list[tuple[str, Span, Tensor]],
        new: list[tuple[Span, Tensor]],
    ) -> None:
        def run() -> None:
            for request, span, wanted in old:
                found = self.caches[name][span[1], span[2] : span[3]].view(wanted.shape)
                self.landed.compare(
                    found, wanted, wanted.shape[1], span, f"{title}, request {request}"
                )
            for span, wanted in new:
                self.caches[name][span[1], span[2] : span[3]] = wanted.flatten()

        self.device.streams.launch(
            self.compute, title, run, [one[1] for one in old], [one[0] for one in new]
        )


def prompt(number: int, length: int) -> list[int]:
    """The tokens of a request. Some begin as another one."""
    return [100 * owner(number, token) + token for token in range(length)]


def owner(number: int, token: int) -> int:
    shared, length = SHARES.get(number, (number, 0))
    return shared if token < length else number


def places(
    layer: Layer, region: str, number: int, blocks: Sequence[int], start: int, end: int
) -> Iterator[tuple[Span, Tensor]]:
    """The bytes of tokens `start` to `end` in a layer's memory, block by block, and their content.

    Of a state only the last one counts: that after `end` tokens.
    """
    if layer.group == "state" and end:
        last = end - 1
        yield (
            (region, blocks[last // BLOCK], 0, layer.width),
            layer.wanted(owner(number, last), last, end),
        )
        return
    for page in range(start // BLOCK, -(-end // BLOCK)):
        first = max(start, page * BLOCK)
        last = min(end, (page + 1) * BLOCK)
        span = (
            region,
            blocks[page],
            (first - page * BLOCK) * layer.width,
            (last - page * BLOCK) * layer.width,
        )
        yield span, layer.wanted(owner(number, first), first, last)


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Serve the rounds in several seeded orders. If two accesses have no order, try both."""
    found = in_orders(partial(_served, params), poison.seed, NUM_SCHEDULES, MOST_SEARCHED)
    return Run(poison.pattern, list(found))


def _served(
    params: VllmHostParams, seed: int, swapped: tuple[str, str] | None, order: str
) -> Moved:
    device = Device(seed, swapped)
    landed = Landed()
    with in_place(device):
        sidecar = params.sidecars
        ConnectedEngine(
            device,
            landed,
            params.connector,
            params.overlapped,
            sidecar=sidecar,
            sizes=SIZES[sidecar],
        ).run()
    return Moved.of(landed, device.streams, order)
