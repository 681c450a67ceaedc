"""`mla-harness repro CASE --script FILE`: a failing case leaves as a script, and no claim leaves
that was not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.cli import export
from harness.core.cases import Job
from harness.core.records import CaseResult
from harness.diagnose.script import export as script_export
from harness.diagnose.script.code import MARKER
from harness.diagnose.script.recipes import OP_SCENES, RECIPES, Recipe
from harness.run.runner import WorkerPool
from tests.transcripts import Approved, lines_with
from tests.waiting import HANG_SECONDS

from .conftest import GOOD_BODY  # type: ignore[import-not-found]

Cli = Callable[..., tuple[int, str, str]]
SHOWN = "fails with the bug: yes; passes without: yes"


@pytest.fixture
def repro(cli: Cli, scenarios: Path) -> Cli:
    """`repro` on the small scenarios, with little time to make cases smaller."""
    return lambda *words: cli(
        "repro", *words, "--scenarios", scenarios, "-n", 1, "--shrink-seconds", HANG_SECONDS
    )


@pytest.mark.nightly
@pytest.mark.parametrize("selector", ["merge", "36540", "merge[num_with_context=7]"])
def test_a_known_bug_is_found_made_small_and_written_once_it_is_seen(
    repro: Cli, tmp_path: Path, selector: str, approved: Approved
) -> None:
    code, out, err = repro(selector, "--script", tmp_path / "out.py")
    assert code == 0, err
    assert SHOWN in out
    text = (tmp_path / "out.py").read_text()
    assert "# See https://github.com/vllm-project/vllm/issues/36540" in text
    approved(lines_with(text, "NUM_TOKENS, WITH_CONTEXT, HEADS,"))


@pytest.mark.nightly
def test_when_a_minute_is_nearly_over_the_case_as_found_is_exported(
    cli: Cli, scenarios: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    run = WorkerPool.run

    def noted(self: WorkerPool, jobs: Sequence[Job], *more: Any) -> Generator[CaseResult]:
        tried.extend(job.key for job in jobs)
        return run(self, jobs, *more)

    monkeypatch.setattr(WorkerPool, "run", noted)
    monkeypatch.setattr(export, "BAR_SECONDS", 0.0)
    words = (
        "repro",
        "merge[num_with_context=7]",
        "--scenarios",
        scenarios,
        "--script",
        tmp_path / "out.py",
        "-n",
        1,
    )
    code, out, err = cli(*words)
    assert code == 0, err
    assert SHOWN in out and "from merge[num_with_context=7]\n" in out
    assert "made smaller" not in (tmp_path / "out.py").read_text()
    # No trial was run, neither for blame nor for smaller cases.
    assert tried == ["merge[num_with_context=7]!merge.ignore-context-count"]
    assert cli(*words, "--shrink-seconds", HANG_SECONDS)[0] == 0 and len(tried) > 5


@pytest.mark.parametrize(
    ("timeout", "limit"), [((), 1800), (("--timeout", 3600), 3600)], ids=["as it is", "with more"]
)
def test_a_script_that_had_too_little_time_is_not_said_to_show_nothing(
    cli: Cli,
    scenarios: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    timeout: tuple[object, ...],
    limit: int,
    approved: Approved,
) -> None:
    given: list[float] = []

    def check(text: str, *, seconds: float, **how: object) -> script_export.Check:
        given.append(seconds)
        late, passes = (
            script_export.ExportOutcome(-1, "", seconds_ran_out=True),
            script_export.ExportOutcome(0, ""),
        )
        return script_export.Check(with_bug=late, without_bug=passes)

    monkeypatch.setattr(script_export, "check", check)
    words = (
        "repro",
        "merge",
        "--scenarios",
        scenarios,
        "--script",
        tmp_path / "out.py",
        "--shrink-seconds",
        0,
    )
    code, _, err = cli(*words, "-n", 1, *timeout)
    assert code == 3 and set(given) == {limit} and not (tmp_path / "out.py").exists()
    approved(err)
    assert "does not show" not in err


@pytest.mark.nightly
def test_a_kernel_of_a_plug_in_is_written_into_the_script(
    repro: Cli, plugin: Callable[[str], Path], tmp_path: Path, approved: Approved
) -> None:
    path = plugin(GOOD_BODY.replace("x if num_live is None else x[:num_live]", "x"))
    code, out, err = repro(
        "quantize",
        "--plugin",
        path,
        "--kernel",
        "mine",
        "--script",
        tmp_path / "test_it.py",
        "--pytest",
    )
    assert code == 0, err
    assert SHOWN in out
    text = (tmp_path / "test_it.py").read_text()
    assert f"kernel = mine{MARKER}" in text
    approved(lines_with(text, "def mine(x, *,"))
    assert str(path) not in text
    assert "def test_quantize" in text


WITHOUT_LSE = """
import torch
from harness import kernel

@kernel(op="mla_decode", name="mine", gives_lse=False)
def decode(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    return torch.empty(*q.shape[:3], 1 << ((q.shape[3] - 1).bit_length() - 1), dtype=q.dtype)

@kernel(op="context_attention", name="mine", gives_lse=False)
def context(q, k, v, query_start_loc, chunk_start_loc, *, scale):
    return torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype)

@kernel(op="merge_attn_states", name="mine", gives_lse=False)
def merge(prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    return torch.empty_like(suffix_out)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", ["decode-kernel", "context-kernel", "merge-kernel"])
def test_a_kernel_without_an_lse_leaves_as_a_script_that_asks_for_none(
    cli: Cli, tmp_path: Path, scenario: str, approved: Approved
) -> None:
    path, script = tmp_path / "without_lse.py", tmp_path / "out.py"
    path.write_text(WITHOUT_LSE)
    words = ("repro", scenario, "--plugin", path, "--kernel", "mine", "--script", script, "-n", 1)
    code, out, err = cli(*words, "--shrink-seconds", 3)
    assert (code, err) == (0, "") and SHOWN in out
    approved(lines_with(script.read_text(), "the kernel gives"))


@pytest.mark.nightly
def test_nothing_is_written_when_the_script_does_not_show_the_bug(
    repro: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, approved: Approved
) -> None:
    monkeypatch.setitem(
        RECIPES,
        "merge.ignore-context-count",
        Recipe("merge.count", "harmless = True", OP_SCENES["merge_attn_states"]),
    )
    code, out, err = repro("merge", "--script", tmp_path / "out.py")
    assert code == 3
    approved(err)
    assert SHOWN not in out and not (tmp_path / "out.py").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("quantize", "--script", "out.py"), "only a failing case"),
        (("merge", "--script", "out.txt"), "ends in .py"),
        (("merge", "--script", "no/such/out.py"), "folder that exists"),
        (("merge", "--pytest"), "add --script FILE"),
        (("merge", "--fault", "merge.ignore-context-count"), "add --script FILE"),
        (("merge", "--script", "out.py", "--fault", "no.such"), "unknown fault"),
        (("nothing", "--script", "out.py"), "unknown scenario"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    repro: Cli, words: tuple[str, ...], message: str
) -> None:
    code, _, err = repro(*words)
    assert code == 2 and message in err and err.count("\n") == 1
