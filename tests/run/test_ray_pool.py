"""Cases on the nodes of a Ray cluster: the same results, crashes contained, and a lost node costs
what it ran.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import exit_code_of
from harness.core.cases import Case, Job
from harness.core.cause_codes import Code
from harness.core.errors import InputError
from harness.core.records import CaseResult, Verdict
from harness.run import ray_pool
from harness.run.ray_pool import RayPool
from harness.run.runner import WorkerError, WorkerPool
from tests.waiting import HANG_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
pytestmark = [
    # Ray's own processes and sockets are not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]
STUB = {"PYTHONPATH": str(Path(__file__).parent)}
MEMORY = 100 << 20
DOES = ("pass", "exit", "segfault", "raise", "fail", "skip")


class Nodes:
    """A head with one CPU slot, which stays, and further nodes that can be added and killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args=self._size())
        self.address: str = self._cluster.address
        self._added: list[Any] = []

    def add(self) -> None:
        """One more node with a CPU slot."""
        self._added.append(self._cluster.add_node(**self._size()))

    def kill(self) -> None:
        """End the node that was added last as the end of its machine would, and all that runs on
        it.
        """
        self._cluster.remove_node(self._added.pop(), allow_graceful=False)
        # On a real machine, its processes end with it. Here they notice within two seconds that
        # their node is gone.
        time.sleep(5.0)

    def close(self) -> None:
        self._cluster.shutdown()

    def _size(self) -> dict[str, int]:
        return {"num_cpus": 1, "object_store_memory": MEMORY}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Two nodes; skipped without Ray."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Nodes()
    nodes.add()
    yield nodes
    nodes.close()


def job(name: str, does: str = "pass", *, timeout: float = HANG_SECONDS, **options: Any) -> Job:
    tags = tuple(f"{name}={value}" for name, value in {"does": does, **options}.items())
    case = Case(id=name, scenario="stub", system="kernel", op="write_kv", tags=tags)
    return Job(key=name, case=case, timeout_seconds=timeout)


def on_ray(
    cluster: Nodes, num_workers: int | None = None, execute: str = "stub_execute:execute"
) -> RayPool:
    return RayPool(cluster.address, num_workers, execute=execute, environ=STUB)


def outcome(result: CaseResult) -> dict[str, Any]:
    """What does not depend on how long a case took and where."""
    return result.model_dump(mode="json", exclude={"seconds", "log"})


@pytest.mark.nightly
def test_results_are_those_of_one_machine_crashes_included(cluster: Nodes) -> None:
    jobs = [job(does, does) for does in DOES] + [job("hang", "hang", timeout=1.0)]
    with WorkerPool(1, execute="stub_execute:execute", environ=STUB) as pool:
        here = pool.run_in_order(jobs)
    with on_ray(cluster) as pool:
        assert pool.num_workers == 2
        there = pool.run_in_order(jobs)
    assert [outcome(result) for result in there] == [outcome(result) for result in here]
    assert "Segmentation fault" in there[DOES.index("segfault")].log


class Gate:
    """Holds cases until `count` of them run at one time, then calls `before` and lets all go on."""

    def __init__(self, folder: Path, count: int, before: Callable[[], None] = lambda: None) -> None:
        self.params = {"started": str(folder / "started"), "until": str(folder / "go")}
        self.count, self.before = count, before
        self._thread = threading.Thread(
            target=self._watch, args=(folder / "started", folder / "go")
        )

    def __enter__(self) -> Gate:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._thread.join()

    def _watch(self, started: Path, go: Path) -> None:
        try:
            wait_until(
                lambda: started.exists() and len(started.read_text().split()) >= self.count,
                "all cases ran",
            )
            self.before()
        finally:
            go.touch()


@pytest.mark.nightly
def test_both_nodes_work_and_their_workers_end_with_the_pool(
    cluster: Nodes, tmp_path: Path
) -> None:
    with on_ray(cluster) as pool:
        assert "2 nodes, 2" in pool.start().cluster
        with Gate(tmp_path, 2) as gate:
            jobs = [job(f"n{n}", "pid", **gate.params) for n in range(2)]
            pids = {result.reason for result in pool.run_in_order(jobs)}
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.nightly
def test_n_limits_how_many_cases_run_at_one_time(cluster: Nodes) -> None:
    with on_ray(cluster, 1) as pool:
        pids = {
            result.reason
            for result in pool.run_in_order([job(f"n{n}", "pid", seconds=0.2) for n in range(3)])
        }
    assert len(pids) == 1


@pytest.mark.nightly
def test_a_node_that_is_killed_costs_only_what_it_was_running_which_is_run_elsewhere_and_marked(
    cluster: Nodes, tmp_path: Path
) -> None:
    cluster.add()
    running: list[str] = []
    with on_ray(cluster) as pool, Gate(tmp_path, 3, before=cluster.kill) as gate:
        jobs = [job(f"n{n}", **gate.params) for n in range(6)]
        results = list(pool.run(jobs, lambda taken: running.append(taken.key)))
    assert sorted(result.key for result in results) == [stub.key for stub in jobs]
    assert {result.verdict for result in results} == {Verdict.PASS}
    marked = [result for result in results if result.lost_nodes]
    assert len(marked) == 1, "a node of one slot runs one case"
    assert len(marked[0].lost_nodes) == 1 and re.fullmatch(
        r"[\d.]+ \(\w{8}\)", marked[0].lost_nodes[0]
    )
    assert running.count(marked[0].key) == 2 and len(running) == 7, "no other case ran twice"


@pytest.mark.nightly
def test_a_case_that_ends_every_node_is_a_crash_and_the_run_goes_on(
    cluster: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pool, "AVOIDED_SECONDS", 0.1)
    with on_ray(cluster) as pool:
        result, after = pool.run_in_order([job("end", "end_the_node"), job("after")])
    assert (result.verdict, result.findings[0].cause) == (Verdict.CRASH, Code.LOST_NODES)
    assert len(result.lost_nodes) == 3 and [finding.oracle for finding in result.findings] == [
        "crash"
    ]
    assert after.verdict is Verdict.PASS and not after.lost_nodes


@pytest.mark.nightly
def test_a_run_that_is_left_early_does_not_answer_the_next_one(cluster: Nodes) -> None:
    with on_ray(cluster) as pool:
        results = pool.run([job("one"), job("two", seconds=2.0)])
        next(results)
        results.close()
        assert [result.key for result in pool.run([job("three")])] == ["three"]


@pytest.mark.nightly
def test_plugin_files_travel_and_results_name_them_as_their_owner_does(
    cluster: Nodes, tmp_path: Path
) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("nothing to run")
    with on_ray(cluster) as pool:
        (result,) = pool.run(
            [job("read", "read_plugin").model_copy(update={"plugins": (str(plugin),)})]
        )
    assert result.reason.startswith(f"{plugin}: ")


@pytest.mark.nightly
def test_a_plugin_that_does_not_load_is_refused_with_the_path_that_was_given(
    cluster: Nodes, tmp_path: Path
) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("import there_is_no_such_module")
    with on_ray(cluster) as pool:
        with pytest.raises(InputError, match=f"plug-in {plugin}:1: ModuleNotFoundError"):
            pool.describe_kernels([str(plugin)])
        with pytest.raises(InputError, match="No such file"):
            pool.describe_kernels([str(tmp_path / "gone.py")])
        correct = str(ROOT / "fixtures" / "kernels" / "correct.py")
        assert [kernel["short_name"] for kernel in pool.describe_kernels([correct])] == ["correct"]


@pytest.mark.nightly
def test_variables_that_decide_what_a_case_does_travel(
    cluster: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_STUB", "as on the driver")
    with on_ray(cluster) as pool:
        (result,) = pool.run([job("environ", "environ", variable="TRITON_STUB")])
    assert result.reason.endswith("the driver")


@pytest.mark.nightly
def test_a_node_that_cannot_run_cases_is_named_in_one_line(cluster: Nodes) -> None:
    with (
        on_ray(cluster, execute="stub_execute:misspelt") as pool,
        pytest.raises(WorkerError, match=r"node \S+ \(\w{8}\) .*misspelt"),
    ):
        list(pool.run([job("never")]))


@pytest.mark.nightly
def test_the_command_line_finds_the_same_with_a_plugin_that_fails(
    cluster: Nodes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = ROOT / "fixtures" / "kernels" / "multiplies_tail.py"
    words = ["decode-kernel", "--plugin", str(plugin), "--history", "none", "--out", str(tmp_path)]
    found = []
    for more in (["-n", "1"], ["--executor", "ray", "--ray-address", cluster.address]):
        assert exit_code_of(["run", *words, *more]) == 1
        capfd.readouterr()
        assert exit_code_of(["report", "latest", "--out", str(tmp_path), "--canonical"]) == 0
        found.append(capfd.readouterr().out)
        time.sleep(1.1)
    assert found[0] == found[1]
    assert any(json.loads(line)["blame"]["sites"] == ["kv.tail"] for line in found[0].splitlines())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.nightly
def test_an_interrupted_run_keeps_its_results_and_is_resumed(
    cluster: Nodes, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, str(ROOT / "tests" / "cli" / "stub_run.py"), str(tmp_path), "2"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "STUB_RAY_ADDRESS": cluster.address}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        run = Path(process.stdout.readline().strip())
        results = run / "results.jsonl"
        wait_until(
            lambda: results.exists() and results.read_text().count("\n") >= 2,
            "2 results were there",
            process,
        )
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130, stderr
    assert f"mla-harness run --resume {run}" in stderr and "Traceback" not in stderr
    assert "the run ended" in stdout and (run / "report.html").exists()
    before = (run / "results.jsonl").read_text().splitlines()
    (tmp_path / "go").touch()
    again = subprocess.run(
        [*command, str(run)],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        timeout=HANG_SECONDS,
    )
    assert again.returncode == 0, again.stderr
    lines = (run / "results.jsonl").read_text().splitlines()
    assert (
        lines[: len(before)] == before
        and len({json.loads(line)["key"] for line in lines}) == len(lines) == 8
    )
