"""The page of `bisect --html`: cases by version, with the first bad one, and why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from harness.report.bisect import Column, reasons
from harness.report.bisect_page import colour_of, render
from tests.report.answered_runs import HOSTILE
from tests.transcripts import Approved, page_text


def version(number: str, verdict: str, **more: Any) -> Column:
    """One release of vLLM with the verdict of its only case."""
    bad = verdict in ("fail", "known")
    found = [{"oracle": "finite", "message": f"NaN {HOSTILE}"}] if bad else []
    case = {
        "id": "kv-new[kv=bf16]",
        "refs": ["vllm-project/vllm#43961"],
        "verdict": verdict,
        "reason": "no such release" if verdict == "skip" else "",
        "findings": found,
    }
    environment = {"engines": {"vllm": number}, "python": "3.11.7", "torch": "2.13.0"}
    summary = {"cases": [case], "environment": environment}
    return Column("/v/bin/python", site=f"/s/{number}", summary=summary, seconds=3.0, **more)


FAULT = {
    "case": "kv-new[kv=bf16]",
    "fault": "kv.skip",
    "caught": False,
    "seen": False,
    "by": [],
    "reason": "the case ended in pass",
}
VERSIONS = [version("0.22.1", "fail"), version("0.24.0", "pass", faults=[FAULT])]


def test_the_page_says_the_first_bad_version_and_why(approved: Approved) -> None:
    approved(page_text(render(VERSIONS)))


def test_the_message_of_a_release_is_text() -> None:
    assert HOSTILE not in render(VERSIONS)


def test_a_known_failure_is_bad_in_its_version_and_colours_the_page_as_known() -> None:
    text = render([version("0.22.1", "known"), version("0.24.0", "pass")])
    assert '<section id="verdict" class="known"' in text


def test_cases_that_every_version_skipped_are_not_called_good() -> None:
    text = render([version("0.22.1", "skip"), version("0.24.0", "skip")])
    assert "Nothing was judged in any version" in text and "No version is bad" not in text


def test_a_version_that_could_not_be_asked_makes_no_page_green() -> None:
    text = render([version("0.22.1", "pass"), Column("/v/bin/python", trouble="exit code 3: no")])
    assert '<section id="verdict" class="error"' in text and "exit code 3: no" in text


@pytest.mark.parametrize(
    ("cell", "colour"),
    [
        ("FAIL finite", "fail"),
        ("pass", "pass"),
        ("known finite", "known"),
        ("MISSED", "fail"),
        ("WRONG BLAME finite", "fail"),
        ("caught sentinel", "pass"),
        ("as released", "skip"),
        ("-", ""),
    ],
)
def test_each_cell_has_the_colour_of_its_first_word(cell: str, colour: str) -> None:
    assert colour_of(cell) == colour


def test_versions_of_one_engine_stand_without_its_name() -> None:
    heads = re.findall(r'<th scope="col">([^<]+)</th>', render(VERSIONS))
    assert heads[:5] == ["case", "bug", "0.22.1", "0.24.0", "first bad"]


def test_a_reason_that_many_cases_have_is_one_line() -> None:
    one = version("0.22.1", "skip")
    cases = [one.summary["cases"][0] | {"id": f"kv-new[n={n}]"} for n in range(17)]
    told = reasons([Column("/v/bin/python", summary=one.summary | {"cases": cases})])
    assert told == ["vLLM 0.22.1: kv-new[n=0] and 16 more: skip: no such release"]
