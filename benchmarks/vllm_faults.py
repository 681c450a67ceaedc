"""Small bugs for vLLM in its own process: they move log probabilities, and leave nearly all answers
as they are.

Call `install` before `LLM` is built, and before the recorder of decisions. Written for vLLM 0.33.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm_decisions import after_loading

from mla_harness_vllm.serve.first_nan import router_of

LAYER, POSITION = 1, 200
"""Where the bugs are."""


def wrong_index(path: str, module: Any) -> int:
    """The indexer of a layer takes one token that it should have left out, in place of one of its
    choices.
    """
    impl = getattr(module, "impl", None)
    if not hasattr(impl, "record_logical_topk_ready") or not _is_in(path, LAYER):
        return 0
    original = impl.record_logical_topk_ready

    @functools.wraps(original)
    def record_logical_topk_ready(*args: Any, **kwargs: Any) -> Any:
        swap_one(impl.topk_indices_buffer)
        return original(*args, **kwargs)

    impl.record_logical_topk_ready = record_logical_topk_ready
    return 1


def swap_one(chosen: Tensor) -> None:
    """In each full row of ids [n, k], the first gives way to the smallest id that the row left
    out.
    """
    is_full, last = (chosen >= 0).all(dim=1), chosen.amax(dim=1)
    # A row with k ids leaves out one of the first k + 1.
    taken = torch.zeros(len(chosen), chosen.shape[1] + 2, dtype=torch.bool, device=chosen.device)
    inside = chosen.clamp(min=0, max=chosen.shape[1] + 1).long()
    left_out = taken.scatter(1, inside, True).int().argmin(dim=1).to(chosen.dtype)
    chosen[:, 0] = torch.where(is_full & (left_out < last), left_out, chosen[:, 0])


def wrong_expert(path: str, module: Any) -> int:
    """One token of 64 goes to the neighbour of its last expert."""
    router: Any = router_of(module) or router_of(getattr(module, "runner", None))
    if router is None or not _is_in(path, LAYER) or "select_experts" in vars(router):
        return 0
    original = router.select_experts

    @functools.wraps(original)
    def select_experts(*args: Any, **kwargs: Any) -> Any:
        weights, ids, *more = original(*args, **kwargs)
        return (weights, with_neighbours(ids, int(router.global_num_experts)), *more)

    router.select_experts = select_experts
    return 1


def with_neighbours(ids: Tensor, num_experts: int) -> Tensor:
    """The ids [n, k], in row 7 of each 64 with the next free expert in place of the last."""
    ids = ids.clone()
    rows = ids[7::64]
    steps = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    neighbours = (rows[:, -1:] + steps) % num_experts
    is_free = (neighbours[:, :, None] != rows[:, None]).all(dim=2)
    ids[7::64, -1] = (
        neighbours.gather(1, is_free.int().argmax(dim=1, keepdim=True)).squeeze(1).to(ids.dtype)
    )
    return ids


def wrong_scale(path: str, module: Any) -> int:
    """The softmax scale of a layer is 5 % too large, as after a wrong `mscale`."""
    impl = getattr(module, "impl", None)
    if not hasattr(impl, "forward_mqa") or not _is_in(path, LAYER):
        return 0
    names = [name for name in ("scale", "softmax_scale") if isinstance(vars(impl).get(name), float)]
    for name in names:
        setattr(impl, name, getattr(impl, name) * 1.05)
    return len(names)


def wrong_rope(path: str, module: Any) -> int:
    """One position is rotated as the next one."""
    cache = getattr(module, "cos_sin_cache", None)
    if not path.endswith(".rotary_emb") or not isinstance(cache, Tensor):
        return 0
    cache[POSITION] = cache[POSITION + 1].clone()
    return 1


def wrong_epsilon(path: str, module: Any) -> int:
    """The norm after linear attention has an epsilon of 1e-6 where the checkpoint says 1e-5."""
    if not path.endswith(".o_norm") or not isinstance(getattr(module, "eps", None), float):
        return 0
    module.eps = 1e-6
    return 1


FAULTS: dict[str, tuple[str, Callable[[str, Any], int]]] = {
    "wrong-index": ("deepseek_v32", wrong_index),
    "wrong-expert": ("deepseek_v32", wrong_expert),
    "wrong-scale": ("deepseek_v32", wrong_scale),
    "wrong-rope": ("deepseek_v32", wrong_rope),
    "wrong-epsilon": ("kimi_linear", wrong_epsilon),
}
"""Name -> architecture, and what injects it into a module at a path.

It returns how many places it changed.
"""


def _is_in(path: str, layer: int) -> bool:
    return bool(re.search(rf"layers\.{layer}\.", path + "."))


def install(fault: str) -> None:
    """Inject a fault right after the model is loaded.

    Fails if no runner, or then no module, fits.
    """

    def injected(runner: Any) -> None:
        places = sum(
            FAULTS[fault][1](path, module) for path, module in runner.get_model().named_modules()
        )
        if not places:
            raise RuntimeError(f"fault {fault}: no module of this vLLM fits")
        print(f"fault {fault} in {places} places", flush=True)

    if not after_loading(injected):
        raise RuntimeError(f"fault {fault}: no runner of this vLLM was found")
