"""Scripts of requests against a server with one bug, or with none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy.script import PagePool, Script, ScriptStep, length_of, requests_of
from harness.accuracy.script_check import Judged, ScriptCheck, check_script
from harness.core.errors import InputError
from harness.run.scripts import load_script, script_names
from tests.conftest import Cli
from tests.transcripts import Approved, lines_with
from tests.waiting import HANG_SECONDS, wait_until, wait_until_gone

pytest.importorskip("httpx")

SIX = ("abort", "cache-reuse", "lengths", "preempt", "reload", "sleep")


@pytest.fixture
def serve(start_server: Callable[..., str]) -> Callable[..., str]:
    """Start the server with a bug; returns its address."""
    return partial(start_server, "sequence_server.py")


def judged(url: str, name: str, **more: Any) -> Judged:
    return check_script(
        ScriptCheck(url=url, script=load_script(name), timeout=HANG_SECONDS, **more)
    )


STARTS_A_SERVER = """
import sys, time
from mla_harness_vllm.serve import scripts
scripts.SERVER = "sleeps"
print(scripts._Server(("serve", "model"))._process.pid, flush=True)
time.sleep(3600)
"""


def test_a_server_ends_with_the_process_that_asks_it_also_by_sigkill(tmp_path: Path) -> None:
    words = "open('words', 'w').write(' '.join(sys.argv[1:3])); os.rename('words', 'begun')"
    (tmp_path / "sleeps.py").write_text(f"import os, sys, time\n{words}\ntime.sleep(3600)\n")
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[4]), str(tmp_path)]),
    }
    command = [sys.executable, "-c", STARTS_A_SERVER]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True
    ) as asker:
        assert asker.stdout is not None
        server = int(asker.stdout.readline())
        wait_until((tmp_path / "begun").is_file, "the server began", asker)
        asker.kill()
    assert (tmp_path / "begun").read_text() == "serve model"
    wait_until_gone(server)


def test_the_shipped_scripts_are_six() -> None:
    assert tuple(script_names()) == SIX and all(load_script(name).name == name for name in SIX)


@pytest.mark.nightly
def test_a_sound_server_passes_all_scripts_one_after_the_other(serve: Callable[..., str]) -> None:
    url = serve()
    for name in SIX:
        found = judged(url, name)
        assert (found.verdict, found.findings, found.not_shown, found.ties) == (
            "pass",
            [],
            [],
            [],
        ), name
        assert found.num_tokens > 100 and found.drift == 0.0


@pytest.mark.parametrize(
    ("name", "bug", "where"),
    [
        ("cache-reuse", "hash-without-past", "step 2 (the same page after another past)"),
        pytest.param("cache-reuse", "found-after-eviction", "step ", marks=pytest.mark.nightly),
        ("preempt", "kept-after-preemption", "step 1 (answers outgrow the pool)"),
        ("abort", "abort-keeps-slot", "step "),
        pytest.param("lengths", "prompt-as-decode", "asked alone", marks=pytest.mark.nightly),
        ("sleep", "garbage-on-wake", "step 4 (after sleep)"),
        pytest.param(
            "sleep", "hashes-survive-sleep", "step 4 (after sleep)", marks=pytest.mark.nightly
        ),
        pytest.param(
            "cache-reuse",
            "loses-last-token",
            "step 4 (cold prefills of one prefix together)",
            marks=pytest.mark.nightly,
        ),
        pytest.param("lengths", "drifts", "step 2 (together)", marks=pytest.mark.nightly),
    ],
)
def test_a_bug_is_caught_by_its_script(
    serve: Callable[..., str], name: str, bug: str, where: str
) -> None:
    found = judged(serve(bug), name)
    assert found.verdict == "fail" and found.findings[0].where.startswith(where)
    assert found.findings[0].message.startswith("request ")


@pytest.mark.nightly
def test_the_last_bit_counts_without_a_tolerance(serve: Callable[..., str]) -> None:
    url = serve("last-bit")
    assert judged(url, "lengths").verdict == "pass"
    assert judged(url, "lengths", tolerance=0.0).verdict == "fail"
    assert judged(serve(), "lengths", tolerance=0.0).verdict == "pass"


@pytest.mark.nightly
def test_a_reload_that_keeps_half_is_caught_by_a_server_that_was_started_with_the_weights(
    serve: Callable[..., str], approved: Approved
) -> None:
    against = serve("weights=new")
    assert judged(serve(), "reload", weights="new", against=against).verdict == "pass"
    # Without a path vLLM loads what it loaded last, so a server must say which weights are its own.
    unknown = judged(serve("no-root"), "reload", weights="new", against=against)
    assert unknown.verdict == "skip"
    approved(unknown.not_shown)
    found = judged(serve("reload-keeps-half"), "reload", weights="new", against=against)
    assert found.verdict == "fail" and found.findings[0].where == "step 4 (with other weights)"


@pytest.mark.nightly
def test_without_such_a_server_answers_with_other_weights_are_not_compared(
    serve: Callable[..., str], approved: Approved
) -> None:
    found = judged(serve(), "reload", weights="new")
    assert found.verdict == "pass"
    approved(found.notes, "notes")
    approved(judged(serve(), "reload", weights="own").not_shown, "not shown")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cache-reuse", "no-prefix-cache"),
        ("cache-reuse", "no-salt"),
        ("abort", "never-aborts"),
        ("sleep", "no-endpoints"),
        ("reload", "no-endpoints"),
        ("lengths", "no-metrics"),
    ],
)
def test_what_did_not_happen_is_not_a_pass(
    serve: Callable[..., str], name: str, kind: str, approved: Approved
) -> None:
    found = judged(serve(kind), name)
    assert found.verdict == "skip"
    approved(found.reason)


def test_a_pool_with_room_shows_no_preemption(
    serve: Callable[..., str], approved: Approved
) -> None:
    step = ScriptStep(ask=("a:1p", "b:1p"), together=True, proves=("preemptions",))
    script = Script(name="own", summary="", steps=(step,))
    found = check_script(ScriptCheck(url=serve("roomy"), script=script))
    assert found.verdict == "skip"
    approved(found.not_shown)
    empty = check_script(
        ScriptCheck(url=serve("roomy"), script=Script(name="own", summary="", steps=()))
    )
    assert empty.verdict == "skip"
    approved(empty.reason)


def without_place(tie: str) -> str:
    """Which token of an answer came in a batch with others depends on when their requests came."""
    return re.sub(
        r"token \d+: token_id:\d+ instead of token_id:\d+", "token N: A instead of B", tie
    )


def test_a_difference_between_two_nearly_equal_tokens_is_a_tie(
    serve: Callable[..., str], approved: Approved
) -> None:
    url, step = serve("near-tie"), ScriptStep(ask=("a:1p", "b:1p", "c:5"), together=True)
    script = Script(name="own", summary="", steps=(step,))
    found = check_script(ScriptCheck(url=url, script=script))
    assert found.verdict == "pass"
    approved(without_place(found.ties[0]))
    assert check_script(ScriptCheck(url=url, script=script, tolerance=0.005)).verdict == "fail"
    # On an H200 five tokens of one place were within 0.2 nats, and the fourth of them was given.
    third = check_script(ScriptCheck(url=serve("third-of-ties"), script=script))
    assert third.verdict == "pass"
    approved(without_place(third.ties[0]))


def test_lone_answers_that_cannot_be_checked_leave_a_note(
    serve: Callable[..., str], approved: Approved
) -> None:
    script = Script(name="own", summary="", steps=(ScriptStep(ask=("a:1p",)),))
    found = check_script(ScriptCheck(url=serve("no-scores"), script=script))
    assert found.verdict == "pass"
    approved(found.notes)


def test_the_command_runs_a_script_and_stores_it(
    serve: Callable[..., str], cli: Cli, tmp_path: Path, approved: Approved
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "name: own\nsummary: twice the same\nsteps:\n- {ask: ['a:2p+1', 'a:2p+1'], proves:"
        " [hits]}\n"
    )
    code, out, _ = cli("serve-check", serve(), "--script", own, "--json")
    found = json.loads(out)
    assert code == 0 and (
        found["script"],
        found["num_tokens"],
        found["events"]["prefix_cache_hits"],
    ) == ("own", 16, 8)
    assert "serve-check[script=own" in (Path(found["directory"]) / "junit.xml").read_text()
    code, out, _ = cli("serve-check", serve("hash-without-past"), "--script", "cache-reuse")
    assert code == 1
    approved(lines_with(out, "different: "), "hash-without-past")
    code, out, _ = cli("serve-check", serve("no-prefix-cache"), "--script", own)
    assert code == 2
    approved(lines_with(out, "not shown: "), "no-prefix-cache")


def test_wrong_input_is_one_line(cli: Cli, approved: Approved) -> None:
    for options in (
        "--script cache-reus",
        "--script reload --against http://x/v1",
        "--weights x",
        "--script gone.yaml",
        "--script sleep",
    ):
        server = "http://127.0.0.1:9/v1"
        code, _, told = cli("serve-check", server, *options.split(), "--timeout", 2)
        assert code == 2
        approved(told, options)


def test_a_wrong_script_is_refused_with_its_place(tmp_path: Path, approved: Approved) -> None:
    file = tmp_path / "own.yaml"
    for steps in (
        "- {ask: ['a:1q']}",
        "- {ask: ['a']}",
        "- {ask: ['a:1p-16']}",
        "- {do: nap}",
        "- {do: wake_up, proves: [hits]}",
        "- {name: nothing}",
        "- {ask: ['a:1'], togther: true}",
    ):
        file.write_text(f"name: own\nsummary: s\nsteps:\n{steps}\n")
        with approved.raises(InputError, steps):
            load_script(str(file))


def test_prompts_share_tokens_by_name_and_have_exact_lengths() -> None:
    script = Script(
        name="s", summary="", steps=(ScriptStep(ask=("a:2p b:3", "a:2p+1", "c:1p b:3")),)
    )
    first, second, third = requests_of(script, script.steps[0], PagePool(16, 8))
    assert [len(request.prompt) for request in (first, second, third)] == [35, 33, 19]
    assert (
        first.prompt[:32] == second.prompt[:32]
        and first.prompt[32:] == third.prompt[16:] != second.prompt[32:]
    )
    assert (length_of("3p", 16), length_of("2p-1", 16), length_of("17", 16)) == (48, 31, 17)


def test_a_pool_that_is_too_large_to_fill_is_named(approved: Approved) -> None:
    script = Script(name="s", summary="", steps=(ScriptStep(ask=("a#:1p",), fill=1.0),))
    assert len(requests_of(script, script.steps[0], PagePool(16, 512))) == 512
    with approved.raises(ValueError):
        requests_of(script, script.steps[0], PagePool(16, 5000))


def test_the_page_lists_all_scripts_and_its_own_one_is_valid(
    serve: Callable[..., str], tmp_path: Path
) -> None:
    page = (Path(__file__).parents[4] / "docs" / "serve-check.md").read_text()
    assert [name for name in SIX if f"| `{name}` |" not in page] == []
    (tmp_path / "own.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    found = check_script(ScriptCheck(url=serve(), script=load_script(str(tmp_path / "own.yaml"))))
    assert found.verdict == "pass"
