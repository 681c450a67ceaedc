"""What an actor does on its node, without Ray: it takes the driver's code, and sends back what a
case noted.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.core.cases import Case, Job
from harness.core.errors import InputError
from harness.core.records import CaseResult
from harness.run import parcel, ray_actor
from harness.run.ray_actor import NodeWorker, unpack
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS

STUB = {"PYTHONPATH": str(Path(__file__).parent)}
Start = Callable[..., NodeWorker]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start an actor that keeps its code in the test's folder."""
    monkeypatch.setattr(ray_actor.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = parcel.pack_code()
    workers: list[NodeWorker] = []

    def start(execute: str = "stub_execute:execute") -> NodeWorker:
        workers.append(NodeWorker(parcel.digest(code), code, execute, STUB, HANG_SECONDS))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


def stub(does: str, **more: object) -> str:
    case = Case(id=does, scenario="stub", system="kernel", op="write_kv", tags=(f"does={does}",))
    return Job(key=does, case=case, timeout_seconds=HANG_SECONDS, **more).model_dump_json()  # type: ignore[arg-type]


def test_what_a_case_notes_is_sent_back_where_the_node_does_not_see_the_runs_directory(
    started: Start,
) -> None:
    worker = started()
    assert "ready" in worker.start()
    text, notes = worker.run(
        stub("note", directory="/nowhere/accuracy/case"), [], None, {"old.txt": b"before"}
    )
    assert "held ['old.txt']" in CaseResult.model_validate_json(text).reason
    assert notes == {"old.txt": b"before", "answers/1.txt": b"noted"}


def test_a_directory_that_the_node_sees_is_the_drivers_own(started: Start, tmp_path: Path) -> None:
    worker = started()
    worker.start()
    place = tmp_path / "case"
    place.mkdir()
    assert worker.run(stub("note", directory=str(place)), [], None, {})[1] == {}
    assert (place / "answers" / "0.txt").read_text() == "noted"


@pytest.mark.nightly
def test_a_worker_that_cannot_start_is_a_reason_and_no_exception(started: Start) -> None:
    answer = started("no_such_module:execute").start()
    assert "no_such_module" in answer["failed"] and answer["failed"].endswith(
        "install mla-harness there"
    )


def test_code_that_travels_is_the_package_and_fixtures_lie_beside_it(
    started: Start, tmp_path: Path
) -> None:
    worker = started()
    names = zipfile.ZipFile(io.BytesIO(parcel.pack_code())).namelist()
    assert {"harness/run/worker.py", "harness/report/page.html"} <= set(names)
    assert {"torch_poison/sites.py", "mla_harness.py"} <= set(names)
    assert {"mla_harness_vllm/tables.yaml", "mla_harness_adapters/base.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or "_fixtures" in name]
    worker.start()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("tasks/mine.yaml", "questions")
    worker.run(stub("pass"), [], archive.getvalue(), {})
    (root,) = (tmp_path / f"mla-harness-ray-{ray_actor.os.getuid()}").iterdir()
    assert (root / "fixtures" / "tasks" / "mine.yaml").read_text() == "questions"
    assert (root / "harness" / "core" / "records.py").is_file()


def test_fixtures_travel_whole() -> None:
    names = zipfile.ZipFile(io.BytesIO(parcel.pack_fixtures())).namelist()
    assert {"canary-mla/model.safetensors", "tasks/gsm_symbolic.yaml"} <= set(names)


def test_unpacking_beside_somebody_who_was_faster_keeps_what_is_there(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("file", "mine")
    folder = tmp_path / "folder"
    assert unpack(archive.getvalue(), folder) and not unpack(archive.getvalue(), folder)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_copies_of_code_that_nobody_used_for_a_week_are_deleted(
    started: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"mla-harness-ray-{ray_actor.os.getuid()}"
    (folder / "old").mkdir(parents=True)
    ray_actor.os.utime(folder / "old", (1.0, 1.0))
    started()
    assert len(list(folder.iterdir())) == 1 and not (folder / "old").exists()


def test_a_plugin_that_is_not_there_is_refused_before_it_travels(
    tmp_path: Path, approved: Approved
) -> None:
    with approved.raises(InputError):
        parcel.read_plugin(str(tmp_path / "gone.py"))
