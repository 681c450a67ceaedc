"""Reports are whole, correct, and safe to open whatever a kernel wrote into its messages."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.findings import Finding
from harness.core.records import Blame, CaseResult, FaultResult, Verdict
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.report import junit, page, table
from harness.report.console import console_for
from harness.report.run_view import RunView
from harness.report.terminal import fault_line, print_run
from harness.report.wording import one_line, printable, reproduce, show
from harness.report.write import REPORT_FILES, write_reports
from harness.store.run_folder import RunStore
from harness.store.summary import summarise, to_json
from tests.transcripts import Approved, lines_with, page_text

USUAL = tuple(verdict for verdict in Verdict if verdict is not Verdict.KNOWN)
HOSTILE = (
    "<script>alert('x')</script> ]]> & \"quoted\" \x00\x1b[31mred\x07 \ud800 \u202egnp.exe \ufffe"
    " [bold]"
)


def make_case(name: str) -> Case:
    return Case(
        id=name,
        scenario=name.partition("[")[0],
        system="kernel",
        refs=("vllm-project/vllm#36540",),
        tags=("kernel",),
        op="mla_decode",
        params={"kernel": "tiled", "kv": "bf16"},
        oracles=("finite",),
        poison=PoisonPlan(sites=("output", "kv.tail")),
        seed=7,
    )


def make_result(case: Case, verdict: Verdict = Verdict.PASS, **more: object) -> CaseResult:
    fields = {
        "key": case.id,
        "id": case.id,
        "scenario": case.scenario,
        "refs": case.refs,
        "verdict": verdict,
    }
    return CaseResult.model_validate({"looked_at": {"finite": 100}, **fields, **more})


def make_store(tmp_path: Path, results: list[CaseResult], cases: list[Case]) -> RunStore:
    jobs = [Job(key=case.id, case=case) for case in cases]
    store = RunStore.create(tmp_path, jobs, command="mla-harness run", options={})
    for result in results:
        store.add(result)
    return store


@pytest.fixture
def mixed(tmp_path: Path) -> RunStore:
    """One case of each verdict but `known`, with hostile text in every field that a kernel or a
    user can reach.
    """
    cases = [make_case(f"decode[n={verdict.value}]") for verdict in USUAL]
    finding = Finding(
        oracle="finite",
        site="output",
        tensor=HOSTILE,
        where=HOSTILE,
        bits="0x7fc00001",
        message=HOSTILE,
    )
    results = [
        make_result(cases[0], Verdict.PASS),
        make_result(cases[1], Verdict.FAIL, reason=HOSTILE, findings=(finding, finding)),
        make_result(
            cases[2],
            Verdict.CRASH,
            reason="SIGSEGV",
            log=HOSTILE,
            findings=(Finding(oracle="crash", message=HOSTILE),),
        ),
        make_result(cases[3], Verdict.SKIP, reason="no GPU here"),
        make_result(cases[4], Verdict.ERROR, reason="ValueError: ours", log=HOSTILE),
    ]
    # Stored text went through UTF-8 and JSON, as a worker's does.
    store = make_store(
        tmp_path,
        [
            CaseResult.model_validate(json.loads(json.dumps(r.model_dump(mode="json"))))
            for r in results
        ],
        cases,
    )
    store.add_blame(
        cases[1].id, Blame(sites=("output",), how=HOSTILE, trials={"": "pass", "output": "fail"})
    )
    store.add_fault(
        FaultResult(
            fault="kv.x",
            scenario="decode",
            case="decode",
            ref="vllm-project/vllm#43961",
            caught=True,
            by=("finite",),
            blamed=("kv.new",),
            expected_by=("finite",),
            expected_blame=("kv.new",),
            seconds=1.0,
        )
    )
    store.add_fault(
        FaultResult(
            fault="kv.y",
            scenario="decode",
            case=HOSTILE,
            caught=False,
            expected_by=("finite",),
            reason=HOSTILE,
        )
    )
    return store


class Outline(HTMLParser):
    """What a browser would see: tags, and whatever is fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[dict[str, str | None]] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append(dict(attrs))
        self.fetched += [
            value or ""
            for name, value in attrs
            if name in ("src", "srcset") or (tag == "link" and name == "href")
        ]
        assert not [name for name, _ in attrs if name.startswith("on")], "no inline handlers"


def test_the_page_escapes_hostile_text_and_fetches_nothing(mixed: RunStore) -> None:
    text = page.render(RunView(mixed))
    outline = Outline()
    outline.feed(text)
    assert outline.scripts == [
        {"type": "application/json", "id": "data"},
        {},
    ], "only the page's own data and script"
    assert outline.fetched == [] and "@import" not in text and "url(" not in text
    assert "&lt;script&gt;alert" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    text.encode("utf-8")


def test_the_page_shows_verdicts_findings_blame_faults_and_commands(
    mixed: RunStore, approved: Approved
) -> None:
    text = page.render(RunView(mixed))
    for verdict in USUAL:
        assert f"<tr class={verdict.value}" in text
    approved(lines_with(page_text(text), "2 cases fail,"))
    assert "0x7fc00001" in text and "<h3>Blame</h3>" in text
    assert "mla-harness run &#39;decode[n=fail]&#39;" in text
    assert "https://github.com/vllm-project/vllm/issues/36540" in text
    assert "caught" in text and "missed" in text


def test_a_clean_page_says_so_and_an_all_skipped_one_is_not_green(
    tmp_path: Path, approved: Approved
) -> None:
    case = make_case("decode")
    text = page.render(RunView(make_store(tmp_path / "a", [make_result(case)], [case])))
    start = text.index('id="environment"')
    approved(lines_with(page_text(text), "The one case"))
    assert "{}" not in text[start : text.index("</section>", start)], "a dict is told in words"
    skipped = make_result(case, Verdict.SKIP, reason="no GPU")
    text = page.render(RunView(make_store(tmp_path / "b", [skipped], [case])))
    assert "Nothing ran" in text and '<section id="verdict" class="skip"' in text


def test_junit_is_valid_xml_with_each_verdict_in_its_place(mixed: RunStore) -> None:
    root = ET.fromstring(junit.render(RunView(mixed)))
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "8",
        "failures": "2",
        "errors": "3",
        "skipped": "1",
    }
    by_name = {element.get("name"): element for element in root.iter("testcase")}
    assert list(by_name["decode[n=pass]"]) == []
    failure = by_name["decode[n=fail]"].find("failure")
    assert failure is not None and failure.get("type") == "finite"
    assert "blame: output" in (failure.text or "") and "reproduce: mla-harness run" in (
        failure.text or ""
    )
    crash = by_name["decode[n=crash]"].find("error")
    error = by_name["decode[n=error]"].find("error")
    assert crash is not None and crash.get("type") == "crash"
    assert error is not None and error.get("type") == "harness-error"
    skipped = by_name["decode[n=skip]"].find("skipped")
    assert skipped is not None and skipped.get("message") == "no GPU here"


def test_the_csv_has_a_row_for_each_case_and_no_formula(tmp_path: Path) -> None:
    cases = [make_case("=1+1"), make_case("decode")]
    finding = Finding(
        oracle="finite",
        site="output",
        tensor="out",
        where="row 1, head 2",
        bits="0x1",
        message='says "no"\nagain',
    )
    results = [make_result(cases[0]), make_result(cases[1], Verdict.FAIL, findings=(finding,))]
    rows = list(
        csv.DictReader(io.StringIO(table.render(RunView(make_store(tmp_path, results, cases)))))
    )
    assert [row["id"] for row in rows] == ["'=1+1", "decode"]
    assert list(rows[0]) == list(table.COLUMNS)
    assert rows[1]["messages"] == 'says "no"\nagain'
    assert rows[1]["where"].startswith("row 1")
    assert json.loads(rows[1]["params"])["kv"] == "bf16"


def test_the_terminal_prints_hostile_text_harmlessly_and_commands_whole(
    mixed: RunStore, approved: Approved
) -> None:
    stream = io.StringIO()
    console = console_for(stream)
    print_run(console, RunView(mixed))
    for fault in mixed.faults():
        console.print(fault_line(fault), soft_wrap=True)
    text = stream.getvalue()
    assert "\x1b" not in text and "\x00" not in text and "[bold]" in text
    approved(lines_with(text, "again: mla-harness run", "1 pass, 1", "caught kv.x by"))
    assert "blame: output" in text and "0x7fc00001" in text
    assert "MISSED kv.y" in text


def test_all_reports_are_written_and_again_equal(mixed: RunStore) -> None:
    first = {path.name: path.read_bytes() for path in write_reports(RunView(mixed))}
    assert tuple(first) == REPORT_FILES
    again = {
        path.name: path.read_bytes() for path in write_reports(RunView(RunStore.open(mixed.path)))
    }
    assert first == again


def many(tmp_path: Path, share_bad: float, message: str, num_findings: int) -> RunStore:
    """2,000 cases of 20 scenarios, no two with the same parameters, of which a share fails."""
    cases = [
        make_case(f"scenario-{n % 20}[kernel=tiled,kv=bf16,graph=full,n={n}]") for n in range(2000)
    ]
    cases = [
        case.model_copy(
            update={
                "params": case.params.model_copy(update={"seq_lens": (n + 1, 3, n + 8, 2)}),
                "seed": n,
            }
        )
        for n, case in enumerate(cases)
    ]
    store = RunStore.create(tmp_path, [Job(key=case.id, case=case) for case in cases], command="x")
    finding = Finding(
        oracle="reference",
        site="kv.tail",
        tensor="out",
        where="rows 3-7",
        bits="0x7fd50006 float32",
        message=message,
    )
    failed = {"verdict": Verdict.FAIL, "reason": message, "findings": (finding,) * num_findings}
    lines = (
        make_result(
            case,
            **(failed if n < 2000 * share_bad else {}),
            looked_at={"finite": n, "reference": 2 * n},
        )
        for n, case in enumerate(cases)
    )
    text = "".join(json.dumps(line.model_dump(mode="json")) + "\n" for line in lines)
    (store.path / "results.jsonl").write_text(text)
    return store


@pytest.mark.parametrize(
    ("share_bad", "message", "num_findings"),
    [
        (0, "", 0),
        (0.025, "differs by 12 ulp", 3),
        pytest.param(1, "live rows of out hold a sentinel " * 30, 30, marks=pytest.mark.nightly),
    ],
    ids=["all pass", "one in forty fails", "all fail at length"],
)
def test_two_thousand_cases_stay_below_two_megabytes(
    tmp_path: Path, share_bad: float, message: str, num_findings: int
) -> None:
    view = RunView(many(tmp_path, share_bad, message, num_findings))
    text = page.render(view)
    assert len(text.encode()) < 2_000_000
    if share_bad < 1:
        assert len(to_json(summarise(view.store))) < 1_000_000
    # What two pages say of it.
    root = Path(__file__).parents[2]
    assert all(
        "under 2 MB for 2,000 cases" in (root / name).read_text()
        for name in ("docs/ci.md", "reports/README.md")
    )
    assert len(re.findall("<tr class=[a-z-]+ id=case-|<tr class=[a-z-]+><td><b>", text)) == 2000
    in_full, num_bad = text.count('<article class="view'), 2000 * share_bad
    assert in_full == num_bad or (
        in_full > 10 and f"{num_bad - in_full:.0f} more are not shown in full" in text
    )


def test_the_pages_data_cannot_end_its_own_element(tmp_path: Path) -> None:
    case = make_case("a</script><!--<script>[n=1]")
    case = case.model_copy(
        update={"params": MlaDecodeParams(kernel="</script>\u2028"), "tags": ("</SCRIPT >",)}
    )
    text = page.render(RunView(make_store(tmp_path, [make_result(case, reason="-->")], [case])))
    inside = text.partition('<script type="application/json" id="data">')[2].partition("</script>")[
        0
    ]
    assert not set("<>&\u2028") & set(inside)
    assert sum("</script>" in text.lower() for text in json.loads(inside)["texts"]) == 1


def test_the_policy_names_the_style_and_the_script_that_the_page_has(mixed: RunStore) -> None:
    text = page.render(RunView(mixed))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and policy[1].startswith("default-src &#39;none&#39;; ")
    for tag in ("style", "script"):
        own = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy[1].replace("&#43;", "+")
    assert not re.search(r"<[^>]*\sstyle=", text), "the policy would refuse it"


@pytest.mark.parametrize(
    ("options", "fault", "command"),
    [
        ({}, None, "mla-harness run 'a[b=c]'"),
        (
            {"device": "auto", "kernel": None, "plugins": [], "seed": 0},
            None,
            "mla-harness run 'a[b=c]'",
        ),
        (
            {"plugins": ["/a b/k.py"], "kernel": ["mine"]},
            None,
            "mla-harness run 'a[b=c]' --kernel mine --plugin '/a b/k.py'",
        ),
        (
            {"device": "cpu", "scenarios": "my"},
            None,
            "mla-harness run 'a[b=c]' --device cpu --scenarios my",
        ),
        (
            {"device": "cuda", "seed": 4},
            "kv.x",
            "mla-harness run 'a[b=c]' --device cuda --seed 4 --fault kv.x",
        ),
    ],
)
def test_the_command_names_all_that_decides_the_outcome(
    options: dict[str, object], fault: str | None, command: str
) -> None:
    result = CaseResult(key="k", id="a[b=c]", scenario="a", fault=fault, verdict=Verdict.FAIL)
    assert reproduce(result, options) == command


def test_the_command_that_shows_a_case_names_what_its_id_needs(approved: Approved) -> None:
    assert (
        show("a[b=c]", {"device": "cuda", "kernel": None, "plugins": [], "seed": 0})
        == "mla-harness show 'a[b=c]'"
    )
    options = {"kernel": ["mine"], "plugins": ["/a b/k.py"], "seed": 4, "scenarios": "my"}
    approved(show("a[b=c]", options))


def test_text_is_cleaned_without_losing_what_it_said() -> None:
    assert printable("a\tb\nc é 中") == "a\tb\nc é 中"
    assert printable("\x1b[0m") == "\\x1b[0m"
    assert one_line("a\n  b\x00", 10) == "a b\\x00"
    assert len(one_line("x" * 500, 40)) == 40
