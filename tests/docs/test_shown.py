"""The commands that pages show: run word by word, with the output that they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from .shown import ROOT, differs, plain, printed, shown_in  # type: ignore[import-not-found]

STARTS = ("start-kernel", "start-pr", "start-server", "start-ci")
PAGES = (
    "README.md",
    "examples/rowkernels/README.md",
    "docs/judge-your-kernel.md",
    *(f"docs/{name}.md" for name in STARTS),
)
RUN = [one for name in PAGES for one in shown_in(ROOT / name) if not one.why_not]


def test_the_readme_shows_three_ways_in_and_names_a_reason_for_what_is_not_run() -> None:
    shown = shown_in(ROOT / "README.md")
    assert [one.command.split()[1] for one in shown if not one.why_not] == [
        "judge",
        "repro",
        "epochs",
    ]
    assert {one.why_not for one in shown if one.why_not} == {
        "needs a server, and a GPU with vLLM and SGLang"
    }
    # A command that writes a file prints nothing.
    assert all(one.output.strip() or ">" in one.command for one in RUN)


def test_the_page_for_authors_shows_its_own_right_kernel_pass() -> None:
    (shown,) = (one for one in RUN if "deepseek_decode.py --timeout" in one.command)
    assert " pass, " in shown.output and not {"fail", "crash", "error"} & {
        *shown.output.lower().split()
    }


@pytest.mark.nightly  # CI runs `python tests/docs/shown.py` as a step of its own
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_print_what_it_shows(page: str, tmp_path: Path) -> None:
    # In one folder and in order: a command reads what the one before it wrote.
    shown = [one for one in shown_in(ROOT / page) if not one.why_not]
    found = {one.command: differs(one.output, printed(one.command, tmp_path)) for one in shown}
    assert {command: problem for command, problem in found.items() if problem} == {}


def test_a_command_that_is_refused_is_no_example(tmp_path: Path) -> None:
    assert printed("echo a; exit 1", tmp_path) == "a\n"
    with pytest.raises(RuntimeError, match="exit code 2: no such case"):
        printed("echo no such case; exit 2", tmp_path)


def test_another_word_another_order_and_a_missing_line_are_seen() -> None:
    text = "a 1.5 s\nb\nc\n"
    assert differs(text, "a 9.25 s\nb\nc\n") == ""
    assert "shown:   b" in differs(text, "a 1.5 s\nB\nc\n")
    assert differs(text, "a 1.5 s\nc\nb\n") and differs(text, "a 1.5 s\nb\n")
    assert differs(text, text + "d\n") == "printed and not shown: d"


def test_lines_may_be_left_out_where_the_page_says_so_and_nowhere_else() -> None:
    printed_lines = "a\nx\ny\nb\n"
    assert differs("a\n…\nb\n", printed_lines) == "" and differs("a\n…\n", printed_lines) == ""
    assert differs("a\nb\n", printed_lines) and differs("…\nc\n", printed_lines)


def test_lines_of_progress_do_not_count() -> None:
    progress = [
        "planning the cases: 0 s so far",
        "looking for a failing case: 3 cases run, 60 s so far; now fuzz[op=write_kv]",
        "7 of 12 cases after 30 s: pass 6 fail 1; now fuzz[op=write_kv]",
    ]
    assert plain("\n".join([*progress, "1 pass in 1.3 s"])) == ["1 pass in 0 s"]


def test_widths_of_tables_and_run_ids_do_not_count() -> None:
    assert plain(" a   b  \n ───\n20261122T183408Z-6b58\n") == plain(
        " a  b\n ─────────\n20250101T000000Z-ffff\n"
    )
