"""A release that lacks a name, renamed a parameter or lost a patched line is said not to fit, and
where.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.vllm.tests.fits.checks import Fit, fits
from adapters.vllm.tests.fits.conftest import Maker
from mla_harness_vllm.faults import PATCHES
from mla_harness_vllm.objects import RELIED, STEP
from tests.transcripts import Approved

OUTPUT = """
from dataclasses import dataclass


@dataclass
class NewRequestData:
    req_id: str
    block_ids: tuple
    num_computed_tokens: int


@dataclass
class CachedRequestData:
    req_ids: list
    resumed_req_ids: set
    new_block_ids: list
    num_computed_tokens: list


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: list
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict
    total_num_scheduled_tokens: int
"""
RUNNER = """
class GPUModelRunner:
    def __init__(self, vllm_config, device):
        self.vllm_config = vllm_config
        self.device = device
        self.input_batch = None
    def initialize_kv_cache(self, kv_cache_config):
        self.kv_cache_config = kv_cache_config
    def get_model(self): ...
    def load_model(self, load_dummy_weights=False, *, model=None): ...
    def execute_model(self, scheduler_output, intermediate_tensors=None, dummy_run=False): ...
"""
CUSTOM_OPS = "def concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale, skip=False): ...\n"  # noqa: E501
ROUTER = """
class BaseRouter:
    def _select_experts(self):
        topk_ids = self._apply_eplb_mapping(topk_ids)
        topk_ids = self._convert_indices_dtype(topk_ids, topk_indices_dtype)
        return topk_ids
"""
SIMULATOR = """
from abc import ABC, abstractmethod


class RoutingStrategy(ABC):
    @property
    def supports_monolithic_logits(self): ...
    @abstractmethod
    def route_tokens(self, hidden_states, router_logits, top_k, indices_type=None): ...
"""
FILES = {
    "vllm/model_executor/layers/fused_moe/router/routing_simulator_router.py": SIMULATOR,
    "vllm/v1/core/sched/output.py": OUTPUT,
    "vllm/v1/worker/gpu_model_runner.py": RUNNER,
    "vllm/v1/worker/gpu/model_runner.py": RUNNER,
    "vllm/v1/worker/gpu_input_batch.py": "class InputBatch:\n    @property\n    def req_ids(self): ...\n",  # noqa: E501
    "vllm/_custom_ops.py": CUSTOM_OPS,
    "vllm/model_executor/layers/fused_moe/router/base_router.py": ROUTER,
    "vllm/envs.py": "environment_variables = {'VLLM_HOST_IP': None}\n",
    "vllm/plugins/__init__.py": "GROUP = 'vllm.general_plugins'\n",
    "vllm/engine/arg_utils.py": "class EngineArgs:\n    seed: int = 0\n    moe_backend: str = 'auto'\n",  # noqa: E501
    "vllm/config/kernel.py": "from typing import Literal\nMoEBackend = Literal['auto', 'cutlass']\n",  # noqa: E501
}


def fit(make: Maker, part: str, version: str = "0.33.0", **changed: tuple[str, str]) -> Fit:
    """One part under a release of these files, in which `old` of the file that ends so became
    `new`.
    """
    files = dict(FILES)
    for end, (old, new) in changed.items():
        name = next(name for name in files if name.endswith(f"{end}.py"))
        assert old in files[name]
        files[name] = files[name].replace(old, new)
    return next(one for one in fits(make(files, version)) if one.part == part)


def test_a_part_whose_names_are_all_there_fits(release: Maker) -> None:
    found = fit(release, STEP)
    assert not found.missing and found.num_names == 31


def test_a_name_that_is_gone_is_named(release: Maker, approved: Approved) -> None:
    for file, old, new in (
        ("output", "new_block_ids", "given_block_ids"),
        ("output", "class SchedulerOutput", "class SchedulerOut"),
        ("gpu/model_runner", "dummy_run=False", "is_dummy=False"),
        ("gpu_model_runner", "scheduler_output,", "step,"),
        ("gpu_model_runner", "def load_model", "def load"),
        ("gpu_model_runner", "self.kv_cache_config =", "self.kv_config ="),
    ):
        approved(fit(release, STEP, **{file: (old, new)}).missing, f"{old} is now {new}")


def test_a_class_that_leaves_more_to_others_than_we_give_it_does_not_fit(
    release: Maker, approved: Approved
) -> None:
    assert not fit(release, "routing strategy").missing
    found = fit(
        release, "routing strategy", routing_simulator_router=("@property", "@abstractmethod")
    )
    approved(found.missing)


def test_a_kernel_whose_parameter_was_renamed_does_not_fit(
    release: Maker, approved: Approved
) -> None:
    part = "kernel `write_kv/vllm-cuda`"
    assert not fit(release, part).missing
    found = fit(release, part, _custom_ops=("slot_mapping", "slots"))
    approved(found.missing)


def test_a_kernel_that_needs_one_argument_more_does_not_fit(
    release: Maker, approved: Approved
) -> None:
    found = fit(release, "kernel `write_kv/vllm-cuda`", _custom_ops=("skip=False", "skip"))
    approved(found.missing)


def test_a_kernel_of_a_package_that_is_not_there_is_not_looked_at(
    release: Maker, approved: Approved
) -> None:
    approved(fit(release, "kernel `mla_decode/flashinfer-fa2`").skipped)


@pytest.mark.parametrize("version", ["0.6.14", "0.6.16"])
def test_a_kernel_is_not_missed_in_a_release_before_its_first(
    version: str, release: Maker, tmp_path: Path, approved: Approved
) -> None:
    (tmp_path / f"flashinfer_python-{version}.dist-info").mkdir()
    made = release({**FILES, "flashinfer/quantization.py": ""})
    [found] = [one for one in fits(made) if one.part == "kernel `read_records/flashinfer-nvfp4`"]
    assert bool(found.skipped) == (version == "0.6.14") != bool(found.missing)
    approved([found.skipped, *found.missing])


def test_a_patch_is_held_to_the_text_of_its_function(release: Maker, approved: Approved) -> None:
    part = "bug `vllm.router-int64-ids`"
    assert not fit(release, part).missing
    found = fit(release, part, base_router=("topk_indices_dtype)", "dtype)"))
    approved(found.missing)


def test_a_bug_that_a_release_has_itself_is_not_missing(release: Maker, approved: Approved) -> None:
    found = fit(release, "bug `vllm.skip-zero-new-blocks`", version="0.22.1")
    assert not found.missing
    approved(found.skipped)


def test_a_release_that_nobody_has_read_is_named_with_the_reason(release: Maker) -> None:
    found = fit(release, "bug `vllm.router-int64-ids`", version="9.0.0")
    assert found.skipped == str(PATCHES.why_not("vllm.router-int64-ids", "9.0.0"))


def test_variables_options_and_their_values_are_held_to_vllms_own_lists(release: Maker) -> None:
    environment, options = fit(release, "environment"), fit(release, "options of `LLM`")
    assert (
        "`VLLM_USE_V2_MODEL_RUNNER`" in environment.missing
        and "`VLLM_HOST_IP`" not in environment.missing
    )
    assert "`moe_backend=triton`" in options.missing
    assert (
        "option `seed`" not in options.missing and "option `attention_backend`" in options.missing
    )
    assert not fit(release, "entry points").missing


def test_every_type_and_every_bug_has_its_place_in_the_table(release: Maker) -> None:
    found = {one.part for one in fits(release(FILES))}
    assert {relied.part for relied in RELIED} | {f"bug `{fault}`" for fault in PATCHES} <= found


def test_ranges_of_one_path_leave_no_release_between_them() -> None:
    """Where releases differ, each has a type: none falls between two ranges."""
    by_path: dict[str, list[tuple[str, str]]] = {}
    for relied in RELIED:
        by_path.setdefault(relied.path, []).append((relied.first, relied.last))
    chunked = next(
        ranges for path, ranges in by_path.items() if path.endswith("ChunkedContextMetadata")
    )
    assert chunked == [("", "0.26.0"), ("0.26.0", "0.28.0"), ("0.28.0", "")]
