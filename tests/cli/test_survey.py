"""`survey` on a machine with two GPUs, which are a stand-in: cases of a kernel stand for an
engine's options.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cli.run_and_report import command_to_resume
from harness.run.environment import Gpu
from harness.run.runner import WorkerPool
from harness.store.run_folder import RunStore
from tests.conftest import Cli
from tests.transcripts import Approved, lines_with

OPTIONS = """name: {name}
summary: options
why: a stand-in
refs: [vllm-project/vllm#36540]
tags: [nightly]
system: kernel
op: quantize_fp8
params: {{num_tokens: 6, num_live: 4}}
"""


@pytest.mark.parametrize(
    ("num_gpus", "drawn"), [(1, {"vllm-survey"}), (2, {"vllm-survey", "vllm-survey-ranks"})]
)
def test_options_of_several_ranks_are_drawn_where_two_gpus_are_there(
    num_gpus: int,
    drawn: set[str],
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    approved: Approved,
) -> None:
    start = WorkerPool.start
    gpus = tuple(
        Gpu(name="H100", capability="9.0", memory_bytes=1, uuid=str(number))
        for number in range(num_gpus)
    )

    def with_gpus(pool: WorkerPool) -> Any:
        return start(pool).model_copy(update={"gpus": gpus})

    monkeypatch.setattr(WorkerPool, "start", with_gpus)
    for name in ("vllm-survey", "vllm-survey-ranks"):
        (tmp_path / f"{name}.yaml").write_text(OPTIONS.format(name=name))
    code, out, _ = cli(
        "survey", "vllm", "--scenarios", tmp_path, "-n", 1, "--out", tmp_path / "runs"
    )
    assert code == 2, "the cases of such a machine run on its GPUs"
    approved(lines_with(out, "no CUDA device"))
    (run,) = (tmp_path / "runs").iterdir()
    assert {job.case.scenario for job in RunStore.open(run).plan.jobs} == drawn
    assert cli("survey", "vllm", "--resume", run)[0] == 2
    assert cli("survey", "sglang", "--resume", run)[2].count("leave out sglang") == 1


def test_batch_invariance_has_a_scenario_of_its_own(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(OPTIONS.format(name="vllm-batch-invariant"))
    code, _, err = cli(
        "survey", "--batch-invariant", "--scenarios", tmp_path, "-n", 1, "--out", tmp_path / "runs"
    )
    (run,) = (tmp_path / "runs").iterdir()
    assert (code, {job.case.scenario for job in RunStore.open(run).plan.jobs}) == (
        0,
        {"vllm-batch-invariant"},
    ), err
    assert cli("survey", "sglang", "--batch-invariant", "-n", 1)[0] == 2


def test_a_survey_goes_on_as_a_survey_which_looks_for_the_smallest_sets(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, (), command="mla-harness survey vllm --seconds 5")
    assert command_to_resume(store) == f"mla-harness survey --resume {store.path}"
