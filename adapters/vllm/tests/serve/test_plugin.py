"""The plug-in: light when off, and what it fills before a step."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_poison import cuda_sweep

from harness.core.errors import InputError
from mla_harness_adapters.plan import ServePoison
from mla_harness_vllm.serve import plugin
from mla_harness_vllm.serve.hooks import FILLED, StepPoison, groups, new_blocks
from mla_harness_vllm.serve.settings import parse_poison
from tests.transcripts import Approved


class MLAAttentionSpec:
    block_size = 128


class MambaSpec:
    block_size = 1024


def runner(cache: torch.Tensor, num_blocks: int = 8) -> Any:
    kv_groups = [
        SimpleNamespace(kv_cache_spec=MambaSpec(), layer_names=["state"]),
        SimpleNamespace(kv_cache_spec=MLAAttentionSpec(), layer_names=["attention"]),
    ]
    layers = {
        "attention": SimpleNamespace(kv_cache=cache),
        "state": SimpleNamespace(kv_cache=[torch.zeros(2)]),
    }
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    caches = SimpleNamespace(num_blocks=num_blocks, kv_cache_groups=kv_groups)
    return SimpleNamespace(kv_cache_config=caches, vllm_config=config)


def step(**changes: Any) -> Any:
    new = SimpleNamespace(req_id="a", block_ids=([1], [2, 3]), num_computed_tokens=128)
    cached = SimpleNamespace(
        req_ids=["b", "c"],
        new_block_ids=[([], [5]), None],
        num_computed_tokens=[256, 9],
        resumed_req_ids=set(),
    )
    values = {
        "scheduled_new_reqs": [new],
        "scheduled_cached_reqs": cached,
        "num_scheduled_tokens": {"a": 70, "b": 1, "c": 1},
    }
    return SimpleNamespace(**{**values, **changes})


def test_off_it_imports_nothing_heavy() -> None:
    code = (
        "import sys; from mla_harness_vllm.serve.plugin import activate; activate();"
        "print(sorted(set(sys.modules) & {'torch', 'numpy', 'pydantic', 'vllm', 'triton'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_fault_is_injected_before_hooks_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    for name, value in {
        "POISON": "context.output",
        "FAULT": "vllm.some-bug",
        "FIRST_NAN": "1",
    }.items():
        monkeypatch.setenv(f"MLA_HARNESS_{name}", value)
    monkeypatch.setattr(plugin, "INSTALLED", {})
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.33.0"))
    monkeypatch.setattr(
        "mla_harness_adapters.patches.Patches.inject",
        lambda patches, name, version: order.append(name),
    )
    monkeypatch.setattr(
        "mla_harness_vllm.serve.first_nan.install", lambda where: order.append("recorder")
    )
    monkeypatch.setattr(
        "mla_harness_vllm.serve.hooks.install", lambda poison: order.append("poison")
    )
    plugin.activate()
    plugin.activate()
    assert order == ["vllm.some-bug", "recorder", "poison"]


def test_blocks_of_a_prefix_hit_are_not_new() -> None:
    assert new_blocks(step(), 1, 128) == [3, 5]


def test_new_blocks_are_filled_whole_and_nothing_else_is() -> None:
    cache = torch.zeros(16, 64, 8, dtype=torch.bfloat16)
    StepPoison(ServePoison(("kv.new",)))(runner(cache), step())
    # A block of the scheduler is two pages of the kernel: blocks 3 and 5 are pages 6, 7, 10 and 11.
    assert cache.isnan().all(dim=2).all(dim=1).nonzero().flatten().tolist() == [6, 7, 10, 11]
    assert int(cache.isnan().sum()) == 4 * 64 * 8


def test_the_tail_of_a_new_requests_last_block_is_filled_from_its_length_on() -> None:
    cache = torch.zeros(16, 64, 8, dtype=torch.bfloat16)
    StepPoison(ServePoison(("kv.tail",)))(runner(cache), step())
    # 128 + 70 tokens: 70 in the second block, which is page 7 from slot 6 on.
    assert (
        cache[7, 6:].isnan().all() and not cache[7, :6].isnan().any() and not cache[6].isnan().any()
    )


def test_a_compressed_cache_has_fewer_slots_in_a_block_than_tokens() -> None:
    cache = torch.zeros(8, 32, 8, dtype=torch.bfloat16)
    StepPoison(ServePoison(("kv.new",)))(runner(cache), step())
    assert cache.isnan().all(dim=2).all(dim=1).nonzero().flatten().tolist() == [3, 5]
    cache = torch.zeros(8, 32, 8, dtype=torch.bfloat16)
    StepPoison(ServePoison(("kv.tail",)))(runner(cache), step())
    # 70 of the 128 tokens of block 3 fill 17 slots of four.
    assert (
        cache[3, 17:].isnan().all()
        and not cache[3, :17].isnan().any()
        and int(cache.isnan().sum()) == 15 * 8
    )


def test_fp8_pages_held_as_bytes_get_the_nan_of_fp8() -> None:
    cache = torch.zeros(16, 64, 8, dtype=torch.uint8)
    StepPoison(ServePoison(("kv.new",)))(runner(cache), step())
    assert cache[6].unique().tolist() == [0xFF]


def test_the_tail_of_a_page_of_index_keys_is_in_its_keys_and_in_its_scales() -> None:
    cache = torch.zeros(16, 64, 132, dtype=torch.uint8)
    StepPoison(ServePoison(("kv.tail",)))(runner(cache), step())
    keys, scales = (
        cache[7].view(-1)[: 64 * 128].view(64, 128),
        cache[7].view(-1)[64 * 128 :].view(64, 4),
    )
    for part in (keys, scales):
        assert not part[:6].any() and (part[6:] == 0xFF).all()


def test_the_buffer_of_chosen_tokens_gets_a_place_that_no_request_has() -> None:
    model, subject = torch.nn.Linear(1, 1), runner(torch.zeros(12, 64, 8))
    model.topk_indices_buffer = torch.zeros(4, 8, dtype=torch.int32)
    subject.get_model = lambda: model
    subject.vllm_config.model_config = SimpleNamespace(max_model_len=256)
    FILLED.topk_buffers = 0
    StepPoison(ServePoison(("sparse.topk",)))(subject, step())
    assert (model.topk_indices_buffer == 255).all() and FILLED.topk_buffers == 1


def test_a_finite_pattern_is_what_an_older_latent_could_have_left() -> None:
    cache = torch.zeros(16, 64, 8, dtype=torch.bfloat16)
    StepPoison(ServePoison(("kv.new",), "finite"))(runner(cache), step())
    assert cache[6].unique().tolist() == [1.0]


@pytest.mark.parametrize(("sites", "is_filled"), [(("workspace",), True), (("output",), False)])
def test_the_workspace_that_layers_share_is_filled_before_a_step(
    sites: tuple[str, ...], is_filled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = torch.zeros(65, dtype=torch.uint8)
    manager = SimpleNamespace(_current_workspaces=[None, buffer])
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.workspace", SimpleNamespace(_manager=manager))
    poison = StepPoison(ServePoison(sites))
    monkeypatch.setattr(cuda_sweep.CudaSweep, "of", lambda: lambda: None)
    poison(runner(torch.zeros(16, 64, 8)), step())
    assert bool(buffer[:64].view(torch.bfloat16).isnan().all()) is is_filled
    assert buffer[64] == 0, "half a number"


def test_only_groups_of_latents_are_touched() -> None:
    assert [index for index, _ in groups(runner(torch.zeros(16, 64, 8)))] == [1]


def test_a_wrong_setting_is_refused(approved: Approved) -> None:
    for text in (
        "kv.nwe",
        "kv.new:nann",
        ":nan",
        "output@",
        "output:nan@one",
        "output@-1",
        "output@1@2",
    ):
        with approved.raises(InputError, text):
            parse_poison(text)


def test_a_setting_survives_its_own_text() -> None:
    poison = ServePoison(("kv.new", "output"), "max")
    assert parse_poison(poison.text()) == poison


def test_steps_and_fills_are_said_on_lines_that_grow_rare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], approved: Approved
) -> None:
    poison = StepPoison(ServePoison(("kv.new",)))
    for name in asdict(FILLED):
        monkeypatch.setattr(FILLED, name, 0)
    for _ in range(12):
        poison(runner(torch.zeros(16, 64, 8, dtype=torch.bfloat16)), step())
    approved(capsys.readouterr().err)
