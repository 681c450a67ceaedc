"""Real captured graphs behind the interface of the recordings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch_poison.patterns import Poison

from harness.core.catalog import SITES
from harness.memory.graph.launch import launch
from harness.memory.graph.recording import new_pool

ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda")
NAN = Poison("nan", frozenset(SITES.names()))


def test_a_replay_reads_what_its_inputs_hold_now() -> None:
    pool, static = new_pool(DEVICE, NAN), torch.ones(3, device=DEVICE)
    static + 1
    graph = pool.capture(lambda: static + 1)
    static.fill_(4)
    graph.replay()
    assert graph.outputs.tolist() == [5, 5, 5]


def test_outputs_last_until_the_next_replay_of_the_pool() -> None:
    pool, static = new_pool(DEVICE, NAN), torch.ones(3, device=DEVICE)
    first, second = pool.capture(lambda: static + 1), pool.capture(lambda: static + 2)
    first.replay()
    assert first.outputs.tolist() == [2, 2, 2]
    second.replay()
    assert bool(first.outputs.isnan().all())
    assert second.outputs.tolist() == [3, 3, 3]


def test_memory_that_only_the_graph_reads_is_swept() -> None:
    pool, holder = new_pool(DEVICE, NAN), {"plan": torch.ones(3, device=DEVICE)}
    graph = pool.capture(lambda: launch(lambda plan: plan * 2, holder["plan"]))
    graph.replay()
    assert graph.outputs.tolist() == [2, 2, 2]
    address = holder["plan"].data_ptr()
    assert graph.tensor_at(address) is not None
    holder["plan"] = torch.ones(3, device=DEVICE)
    graph.replay()
    assert bool(graph.outputs.isnan().all())


def test_reading_a_value_on_the_host_cannot_be_captured() -> None:
    code = """
import torch
from harness.core.errors import CaptureError
from harness.memory.graph.recording import new_pool
from harness.core.cuda_failures import is_spent
static = torch.ones(3, device="cuda")
try:
    new_pool(torch.device("cuda")).capture(lambda: static * float(static.sum()))
except CaptureError as error:
    print(error, is_spent())
"""
    # A capture that fails leaves torch's generator unusable, so it fails in a process of its own.
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert "no graph can hold" in done.stdout and "True" in done.stdout, done.stderr[-2000:]
