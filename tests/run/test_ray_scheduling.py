"""Which worker gets which job, and which node is given up: decided without Ray, on a cluster that
is made up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.core.cases import Case, Job
from harness.core.records import CaseResult, Verdict
from harness.run import ray_pool
from harness.run.environment import Environment, Gpu
from harness.run.ray_cluster import ActorLost, RaySlot
from harness.run.ray_pool import RayPool
from harness.run.runner import WorkerError
from tests.transcripts import Approved

GPU = Gpu(name="stub", capability="9.0", memory_bytes=1)


class Call:
    """An answer that an actor owes."""

    def __init__(self, node: str, answer: Callable[[], Any]) -> None:
        self.node, self.answer = node, answer


class Method:
    def __init__(self, node: str, function: Callable[..., Any]) -> None:
        self._node, self._function = node, function

    def remote(self, *arguments: Any) -> Call:
        return Call(self._node, lambda: self._function(*arguments))


class Actor:
    """Answers at once: starts as `environment` says, and notes on which slot a job ran as its
    reason.
    """

    def __init__(self, slot: RaySlot, answers: dict[str, Any], lost: set[str]) -> None:
        self._slot, self._lost = slot, lost
        self.start = Method(slot.node, lambda: self._answer(answers))
        self.run = Method(slot.node, self._run)

    def _answer(self, answers: Any) -> Any:
        if self._slot.node in self._lost:
            raise ActorLost("made up")
        return answers

    def _run(self, text: str, *others: Any) -> Any:
        job = Job.model_validate_json(text)
        result = CaseResult(
            key=job.key,
            id=job.key,
            scenario="stub",
            verdict=Verdict.PASS,
            reason=f"{self._slot.node} {'gpu' if self._slot.has_gpu else 'cpu'}",
        )
        return self._answer((result.model_dump_json(), {}))


class MadeUp:
    """What `RayPool` asks of a cluster."""

    address = "made-up"

    def __init__(
        self, slots: list[RaySlot], answers: dict[str, dict[str, Any]], lost: set[str]
    ) -> None:
        self._slots, self._answers, self._lost = slots, answers, lost
        self.spawned: list[RaySlot] = []
        self.held: set[str] = set()
        """Nodes with slots that other programs hold, so that nothing starts there."""

    def slots(self) -> list[RaySlot]:
        return self._slots

    def describe(self) -> str:
        return "made up"

    def put(self, value: bytes) -> bytes:
        return value

    def spawn(self, slot: RaySlot, *arguments: Any) -> Actor:
        self.spawned.append(slot)
        return Actor(slot, self._answers[slot.node], self._lost)

    def wait(self, references: list[Any], seconds: float) -> list[Any]:
        return [reference for reference in references if reference.node not in self.held][-1:]

    def take(self, reference: Call) -> Any:
        return reference.answer()

    def end(self, started: list[Any], others: list[Any]) -> None:
        pass


def ready(torch: str = "2.13.0", gpus: tuple[Gpu, ...] = ()) -> dict[str, Any]:
    return {"ready": Environment(python="3.11", torch=torch, gpus=gpus).model_dump(mode="json")}


def slot(node: str, *, gpu: bool = False, number: int = 0) -> RaySlot:
    return RaySlot(node, f"name of {node}", gpu, number)


def pool_on(
    slots: list[RaySlot],
    answers: dict[str, dict[str, Any]],
    lost: set[str] | None = None,
    limit: int | None = None,
    start_seconds: float = 600.0,
) -> tuple[RayPool, MadeUp]:
    pool = RayPool("made-up", limit, start_seconds=start_seconds)
    cluster = MadeUp(slots, answers, set() if lost is None else lost)
    pool._opened = cluster  # type: ignore[assignment]
    return pool, cluster


def job(key: str, device: str = "cpu", system: str = "engine") -> Job:
    return Job(key=key, case=Case(id=key, scenario="stub", system=system), device=device)


MIXED = [slot("a", gpu=True), slot("a"), slot("b")]
MIXED_TOLD = {"a": ready(gpus=(GPU,)), "b": ready()}


def test_cases_on_a_gpu_run_on_slots_with_one_and_vllm_too() -> None:
    pool, cluster = pool_on(MIXED, MIXED_TOLD)
    jobs = [*(job(f"cuda {n}", "cuda") for n in range(3)), job("serve", system="vllm"), job("cpu")]
    results = {result.key: result.reason for result in pool.run(jobs)}
    assert cluster.spawned[0].has_gpu, "what a machine can run is asked where there is a GPU"
    assert {results[key] for key in ("cuda 0", "cuda 1", "cuda 2", "serve")} == {"a gpu"}


def test_no_more_workers_are_started_than_there_are_jobs_for_or_than_n_allows() -> None:
    many = [slot(node, number=number) for number in range(4) for node in "ab"]
    pool, cluster = pool_on(many, {"a": ready(), "b": ready()})
    assert len(list(pool.run([job("one"), job("two")]))) == 2
    assert [slot.node for slot in cluster.spawned] == ["a", "b"], "nodes take turns"
    pool, cluster = pool_on(many, {"a": ready(), "b": ready()}, limit=3)
    list(pool.run([job(str(n)) for n in range(8)]))
    assert len(cluster.spawned) == 3


def test_cases_on_a_gpu_are_not_skipped_by_a_cpu_when_the_node_with_the_gpu_is_lost(
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    monkeypatch.setattr(ray_pool, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(ray_pool, "TICK_SECONDS", 0.01)
    lost: set[str] = set()
    pool, _ = pool_on([slot("a", gpu=True), slot("b")], MIXED_TOLD, lost, start_seconds=0.0)
    pool.start()
    lost.add("a")
    results = pool.run([job("cuda", "cuda"), job("cpu")])
    assert next(results).reason == "b cpu"
    with approved.raises(WorkerError):
        next(results)


def test_a_slot_that_somebody_else_holds_keeps_nobody_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_pool, "SECOND_TRY_SECONDS", 0.05)
    pool, cluster = pool_on([slot("a"), slot("b")], {"a": ready(), "b": ready()})
    cluster.held.add("a")
    assert {result.reason for result in pool.run([job(str(n)) for n in range(3)])} == {"b cpu"}


def test_where_every_slot_is_held_the_run_ends_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    monkeypatch.setattr(ray_pool, "PATIENCE_SECONDS", 0.1)
    pool, cluster = pool_on([slot("a")], {"a": ready()}, start_seconds=0.1)
    cluster.held.add("a")
    with approved.raises(WorkerError):
        pool.start()


def test_where_there_is_no_gpu_anybody_says_so() -> None:
    pool, _ = pool_on([slot("b")], {"b": ready()})
    assert [result.reason for result in pool.run([job("cuda", "cuda")])] == ["b cpu"]


def test_a_node_with_another_torch_is_left_out_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pool, _ = pool_on([slot("a"), slot("b")], {"a": ready("2.13.0"), "b": ready("2.12.0")})
    results = list(pool.run([job(str(n)) for n in range(4)]))
    assert {result.reason for result in results} == {"a cpu"}
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and all(
        words in warning for words in ("name of b", "2.12.0", "2.13.0")
    )


def test_when_no_node_can_run_cases_the_last_reason_is_the_error(
    capsys: pytest.CaptureFixture[str],
    approved: Approved,
) -> None:
    failed = {"failed": "No module named 'torch'; install mla-harness there"}
    pool, _ = pool_on([slot("a"), slot("b")], {"a": failed, "b": failed})
    with approved.raises(WorkerError):
        pool.start()
    assert "name of a" in capsys.readouterr().err


def test_a_case_whose_node_is_lost_waits_before_all_others() -> None:
    lost: set[str] = set()
    pool, _ = pool_on([slot("a"), slot("b")], {"a": ready(), "b": ready()}, lost, limit=1)
    begun: list[str] = []

    def on_start(job: Job) -> None:
        begun.append(job.key)
        lost.add("a")

    results = list(pool.run([job(key) for key in ("one", "two", "three")], on_start))
    assert begun == ["one", "one", "two", "three"]
    assert [(result.key, result.lost_nodes) for result in results] == [
        ("one", ("name of a",)),
        ("two", ()),
        ("three", ()),
    ]
