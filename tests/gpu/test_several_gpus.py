"""One worker a GPU, in one session and among the sessions of a machine, on the GPUs that the user
lets it see.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.core.cases import Case, Job
from harness.run.runner import WorkerPool

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PATHS = {
    "PYTHONPATH": os.pathsep.join(
        filter(None, (str(HERE), str(ROOT), os.environ.get("PYTHONPATH")))
    )
}

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="this machine has fewer than two GPUs"
)

SESSION = """
import json
from harness.core.cases import Case, Job
from harness.run.runner import WorkerPool

def asked(count, workers=1):
    jobs = [Job(key=str(n), case=Case(id=str(n), scenario="s", system="engine"), device="cuda") for n in range(count)]
    with WorkerPool(workers, execute="where_execute:execute") as pool:
        return [json.loads(result.reason) for result in pool.run(jobs)]
"""  # noqa: E501


def _uuids() -> list[str]:
    return [
        str(torch.cuda.get_device_properties(index).uuid)
        for index in range(torch.cuda.device_count())
    ]


def _asked(count: int, workers: int, **environ: str) -> list[dict[str, Any]]:
    jobs = [
        Job(key=str(n), case=Case(id=str(n), scenario="s", system="engine"), device="cuda")
        for n in range(count)
    ]
    with WorkerPool(
        workers, execute="where_execute:execute", environ={**os.environ, **PATHS, **environ}
    ) as pool:
        return [json.loads(result.reason) for result in pool.run(jobs)]


def test_each_worker_keeps_a_gpu_of_its_own_and_all_gpus_work() -> None:
    said = _asked(4 * torch.cuda.device_count(), torch.cuda.device_count() + 1)
    gpu_of = {one["pid"]: one["uuid"] for one in said}
    assert sorted(gpu_of.values()) == sorted(_uuids())
    assert all(gpu_of[one["pid"]] == one["uuid"] for one in said)


def test_a_session_stays_on_the_devices_that_it_is_let_see() -> None:
    said = _asked(3, 2, CUDA_VISIBLE_DEVICES="1")
    assert {one["uuid"] for one in said} == {_uuids()[1]}
    assert len({one["pid"] for one in said}) == 1


def test_workers_of_xdist_never_hold_one_gpu_at_the_same_time(tmp_path: Path) -> None:
    num_workers = torch.cuda.device_count() + 1
    tests = "\n".join(
        f"def test_{n}():\n    open(r'{tmp_path}/{n}.json', 'w').write(json.dumps(asked(3)))\n"
        for n in range(num_workers)
    )
    (tmp_path / "test_asks.py").write_text(SESSION + tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        str(num_workers),
        str(tmp_path),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **PATHS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-1000:]
    said = [one for path in tmp_path.glob("*.json") for one in json.loads(path.read_text())]
    assert len(said) == 3 * num_workers and {one["uuid"] for one in said} == set(_uuids())
    for uuid in _uuids():
        spans = sorted((one["from"], one["to"]) for one in said if one["uuid"] == uuid)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
