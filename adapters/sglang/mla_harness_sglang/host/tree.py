"""The radix cache that a server of the installed release gets from SGLang, and room in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.radix_cache import RadixCache

from mla_harness_adapters.moving_device import Device
from mla_harness_adapters.releases import accepted
from mla_harness_sglang.releases import TREE_FACTORY, TREES

MOST_WAITS = 100


def tree_of(
    server_arguments: Any,
    cache: Any,
    *,
    is_hierarchical: bool = False,
    is_sparse: bool = False,
    has_states: bool = False,
    has_windows: bool = False,
) -> Any:
    """Ask SGLang's factory, as its scheduler does; before 0.5.13 there is none.

    `cache` is a `CacheInitParams`. A hierarchical tree backs pages up to the host. `is_sparse`,
    `has_states` and `has_windows` say of the model that it has an indexer, recurrent layers, and
    sliding windows.
    """
    trees = TREES.module()
    if not TREE_FACTORY.of(trees):
        if is_hierarchical:
            return trees.HiRadixCache(params=cache, server_args=server_arguments)
        return RadixCache(cache)
    context = trees.TreeCacheBuildContext
    said = {
        "server_args": server_arguments,
        "params": cache,
        "is_hybrid_swa": has_windows,
        "is_hybrid_ssm": has_states,
        "enable_hierarchical_cache": is_hierarchical,
        "disable_radix_cache": False,
        "effective_chunked_prefill_size": None,
        "tp_worker": mock.Mock(),
        "model_config": None,
        "tp_size": 1,
        "tp_rank": 0,
        "tp_group": None,
        "is_dsa": is_sparse,
    }
    return trees.default_radix_cache_factory(context(**accepted(said, context)))


def make_room(tree: Any, device: Device, lacking: Callable[[], EvictParams]) -> None:
    """Evict from a hierarchical tree until `lacking` says that nothing is."""
    nothing = EvictParams()
    for _ in range(MOST_WAITS):
        wanted = lacking()
        if wanted == nothing:
            return
        tree.evict(wanted)
        # A page on its way to the host cannot be evicted.
        device.streams.progress(6)
        tree.check_hicache_events()
    raise RuntimeError(f"no room: {wanted}")
