"""What a reader does with report.html, in a real headless Chromium: look, search, open a case,
copy, print.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.accuracy.judge import wilson_interval
from harness.core.cases import Case, Job, PoisonPlan
from harness.core.findings import Finding
from harness.core.records import (
    AccuracyJudgement,
    AccuracyRecord,
    Blame,
    CaseResult,
    EpochAccuracy,
    FaultResult,
    OutcomeGrid,
    ShrinkStep,
    Shrunk,
    Verdict,
)
from harness.report import page as report
from harness.report.run_view import RunView
from harness.report.wording import reproduce
from harness.store.run_folder import RunStore
from tests import waiting
from tests.transcripts import Approved

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = (
    "</script><script>document.title='hacked'</script><img src=x"
    " onerror=\"document.title='hacked'\"> it's `code`"
)
WIDTHS = (360, 768, 1240)
TRIALS = {"nothing": "pass", "kv.tail": "fail", "kv.free": "pass"}


def make_case(name: str, num_heads: int = 16) -> Case:
    return Case(
        id=name,
        scenario=name.partition("[")[0],
        system="kernel",
        refs=("flashinfer-ai/flashinfer#941",),
        tags=("kernel",),
        op="mla_decode",
        params={"num_heads": num_heads},
        oracles=("finite", "sentinel"),
        poison=PoisonPlan(sites=("kv.tail", "kv.free")),
        seed=7,
    )


def measured(*shares: float) -> AccuracyRecord:
    epochs = tuple(
        EpochAccuracy(
            epoch=number,
            num_questions=200,
            num_correct=int(share * 200),
            accuracy=share,
            interval=wilson_interval(int(share * 200), 200),
        )
        for number, share in enumerate(shares, start=1)
    )
    rows = tuple("1" * int(share * 200) + "0" * (200 - int(share * 200)) for share in shares)
    return AccuracyRecord(
        task="gsm_symbolic",
        model="canary-mla",
        model_hash="sha256:0",
        engine="engine",
        dtype="float32",
        seed=0,
        epochs=epochs,
        ci=tuple(epoch.interval for epoch in epochs),
        verdict=Verdict.FAIL,
        judgement=AccuracyJudgement(
            verdict=Verdict.FAIL, statement="accuracy falls over the epochs"
        ),
        grid=OutcomeGrid(questions=tuple(f"q{n}" for n in range(200)), rows=rows),
    )


def filled(root: Path) -> RunStore:
    """A run with every verdict, a measurement, a caught and a missed fault, and hostile text
    wherever text can be.
    """
    names = [f"decode[kernel=tiled,kv=bf16,n={n}]" for n in range(6)]
    names += [
        "merge[a=1]",
        "it's a case's id",
        "merge[skipped]",
        f"broken[{HOSTILE}]",
        "measured[task=gsm_symbolic]",
    ]
    cases = [make_case(name, n + 1) for n, name in enumerate(names)]
    jobs = [Job(key=case.id, case=case) for case in cases]
    store = RunStore.create(root, jobs, command=f"mla-harness run {HOSTILE}", options={"seed": 3})
    found = Finding(
        oracle="sentinel",
        site="kv.tail",
        tensor="out",
        where="request 0-1; first at [0, 0, 0]",
        bits="0x7fd50006 float32 sentinel of kv.tail",
        message="live rows of out hold the sentinel of kv.tail",
    )
    hostile = Finding(
        oracle="crash", site=HOSTILE, tensor=HOSTILE, where=HOSTILE, bits=HOSTILE, message=HOSTILE
    )
    verdicts: dict[str, dict[str, Any]] = {
        names[0]: {"verdict": Verdict.FAIL, "findings": (found, found), "reason": found.message},
        names[1]: {"verdict": Verdict.FAIL, "findings": (found,), "reason": found.message},
        "merge[skipped]": {"verdict": Verdict.SKIP, "reason": "no CUDA device on this machine"},
        names[9]: {
            "verdict": Verdict.CRASH,
            "findings": (hostile,),
            "reason": HOSTILE,
            "log": HOSTILE * 3,
        },
        names[10]: {
            "verdict": Verdict.FAIL,
            "reason": "accuracy falls",
            "accuracy": measured(0.99, 0.6, 0.02),
        },
    }
    for number, case in enumerate(cases):
        fields: dict[str, Any] = {"verdict": Verdict.PASS, **verdicts.get(case.id, {})}
        store.add(
            CaseResult(
                key=case.id,
                id=case.id,
                scenario=case.scenario,
                refs=case.refs,
                seconds=10.0 - number,
                looked_at={"finite": 4096},
                **fields,
            )
        )
    store.add_blame(
        names[0],
        Blame(sites=("kv.tail",), how="`sentinel` fires when kv.tail is poisoned", trials=TRIALS),
    )
    store.add_shrunk(
        Shrunk(
            key=names[0],
            id=names[0],
            case=make_case("decode[kernel=tiled]@seq_lens=[1]"),
            oracle="sentinel",
            finding=found,
            steps=(ShrinkStep(what="seq_lens", before="[1,63]", after="[1]"),),
            num_trials=9,
            is_smallest=True,
        )
    )
    for name, caught in (("kv.caught", True), ("kv.missed", False)):
        store.add_fault(
            FaultResult(
                fault=name,
                scenario="decode",
                case=names[2],
                ref="vllm-project/vllm#43961",
                caught=caught,
                by=("sentinel",) if caught else (),
                blamed=("kv.new",) if caught else (),
                expected_by=("sentinel",),
                expected_blame=("kv.new",),
                findings=(found,) if caught else (),
                reason="" if caught else HOSTILE,
            )
        )
    store.note_environment(
        {"harness": "0.1.0", "torch": "2.13.0", "gpus": [], "cpu": HOSTILE, "vllm": None}
    )
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    return filled(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def file(store: RunStore) -> Path:
    path = store.path / "report.html"
    path.write_text(report.render(RunView(store)), encoding="utf-8")
    return path


Open = Callable[..., "Page"]


@pytest.fixture
def opened(browser: Browser, file: Path) -> Iterator[Open]:
    """Opens the page; afterwards it must have said nothing on the console and asked the network for
    nothing.
    """
    contexts, trouble = [], []

    def open_page(fragment: str = "", **settings: Any) -> Page:
        context = browser.new_context(**({"viewport": {"width": 1240, "height": 900}} | settings))
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(1000 * waiting.HANG_SECONDS)
        tab.on("console", lambda message: trouble.append(message.text))
        tab.on("pageerror", lambda error: trouble.append(str(error)))
        tab.on(
            "request",
            lambda request: request.url.startswith("file:") or trouble.append(request.url),
        )
        tab.goto(file.as_uri() + fragment)
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def wait_until(tab: Page, predicate: str, argument: Any = None) -> None:
    """Ask the page until `predicate` holds.

    Playwright's own waiting evaluates strings, which the page's policy forbids whenever the answer
    is not there at once.
    """
    waiting.wait_until(lambda: tab.evaluate(predicate, argument), f"the page came to: {predicate}")


def visible(tab: Page, selector: str) -> list[str]:
    """The texts of the elements that can be seen."""
    return [item.inner_text() for item in tab.locator(selector).all() if item.is_visible()]


def anchor_of(tab: Page, text: str) -> str:
    """The fragment of a case in the list."""
    return str(tab.locator("#case-list tbody a", has_text=text).first.get_attribute("href"))


VIEWS = (
    "",
    "decode[kernel=tiled,kv=bf16,n=0]",
    "merge[a=1]",
    f"broken[{HOSTILE}]",
    "measured[task=gsm_symbolic]",
)


@pytest.mark.first(5)
@pytest.mark.parametrize(
    "view", VIEWS, ids=["overview", "failure", "passed", "hostile", "measured"]
)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(opened: Open, width: int, view: str) -> None:
    tab = opened(viewport={"width": width, "height": 800})
    tab.evaluate("id => { location.hash = encodeURIComponent(id) }", view)
    wait_until(
        tab,
        "view => document.documentElement.classList.contains('in-case') === Boolean(view)",
        view,
    )
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    outside = tab.evaluate(
        """() => Array.from(document.querySelectorAll("main *")).filter((item) => {
          const box = item.getBoundingClientRect(), style = getComputedStyle(item);
          return box.width && box.right > innerWidth + 1 && style.clipPath === "none" &&
            !item.closest(".scroll, pre");
        }).map((item) => item.outerHTML.slice(0, 120))"""
    )
    assert outside == []


@pytest.mark.first(5)
@pytest.mark.parametrize(
    "view", VIEWS, ids=["overview", "failure", "passed", "hostile", "measured"]
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_of_wcag_aa(opened: Open, scheme: str, view: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    tab = opened(color_scheme=scheme)
    tab.evaluate("id => { location.hash = encodeURIComponent(id) }", view)
    tab.wait_for_timeout(100)
    tab.evaluate("document.querySelectorAll('details').forEach((item) => { item.open = true })")
    found = axe.Axe().run(tab).response
    assert len(found["passes"]) > 20, "a check that looked at nothing proves nothing"
    assert [(item["id"], item["nodes"][0]["html"]) for item in found["violations"]] == []


def test_axe_would_have_seen_pale_text_and_a_missing_label(opened: Open) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    tab = opened()
    tab.evaluate("document.querySelector('#search').removeAttribute('aria-label')")
    tab.evaluate("document.querySelector('#search').removeAttribute('placeholder')")
    tab.evaluate("document.querySelector('#verdict h1').style.color = '#ddd'")
    assert {"color-contrast", "label"} <= {
        item["id"] for item in axe.Axe().run(tab).response["violations"]
    }


def test_text_of_kernels_runs_nowhere_and_is_shown_as_it_is(opened: Open, store: RunStore) -> None:
    tab = opened()
    name = f"broken[{HOSTILE}]"
    tab.locator("#failures a", has_text="broken[").click()
    assert tab.locator(".view.open h2").inner_text() == f"crash {name}"
    assert HOSTILE in tab.locator(".view.open .finding").first.inner_text()
    assert tab.locator("main img").count() == 0 and tab.title() != "hacked"
    result = next(result for result in store.results() if result.id == name)
    assert tab.locator(".view.open .command code").first.inner_text() == reproduce(
        result, store.plan.options
    )


def test_the_policy_stops_scripts_and_requests_that_got_in_all_the_same(
    browser: Browser, file: Path
) -> None:
    planted = (
        "<script>document.title='hacked'</script><img src='https://example.org/x'"
        " onerror='document.title=1'></body>"
    )
    path = file.with_name("planted.html")
    path.write_text(file.read_text(encoding="utf-8").replace("</body>", planted), encoding="utf-8")
    context = browser.new_context()
    tab, stopped, refused = context.new_page(), [], []
    tab.on("requestfailed", lambda request: stopped.append((request.url, request.failure)))
    tab.on("console", lambda message: refused.append(message.text))
    tab.goto(path.as_uri())
    tab.wait_for_timeout(200)
    assert "hacked" not in tab.title() and "case" in tab.title()
    assert stopped == [("https://example.org/x", "csp")]
    assert sum("Content Security Policy" in text for text in refused) >= 2
    assert tab.locator("html.js").count() == 1, "the page's own script runs under the policy"
    context.close()


def test_failures_come_first_and_like_ones_are_told_once(opened: Open, approved: Approved) -> None:
    tab = opened()
    approved(tab.locator("h1").first.inner_text())
    verdicts = [text.split()[0] for text in visible(tab, "#case-list tbody td:first-child b")]
    assert verdicts == ["fail"] * 3 + ["crash"] + ["pass"] * 6 + ["skip"]
    titles = visible(tab, "#failures h3")
    assert len(titles) == 3 and any(
        "mla_decode/tiled: 2 cases of 1 scenario" in title for title in titles
    )
    assert visible(tab, "#faults .badge") == ["missed", "caught"]


def test_search_verdicts_and_scenarios_narrow_the_list_together(opened: Open) -> None:
    tab = opened()
    rows = lambda: len(visible(tab, "#case-list tbody tr"))  # noqa: E731
    assert rows() == 11 and tab.locator("#shown").inner_text() == "11 of 11"
    tab.fill("#search", "DECODE kv=bf16")
    assert rows() == 6
    tab.click("button.verdict.fail")
    assert rows() == 2 and tab.locator("#shown").inner_text() == "2 of 11"
    assert tab.get_attribute("button.verdict.fail", "aria-pressed") == "true"
    tab.fill("#search", "kv.tail")
    assert rows() == 2, "a site that only a finding names is found"
    tab.fill("#search", "")
    tab.click("button.verdict.fail")
    tab.select_option("#scenario", "merge")
    assert rows() == 2
    tab.fill("#search", "nothing has these words")
    assert rows() == 0 and tab.locator("#shown").inner_text() == "0 of 11"


def test_a_scenario_leads_to_its_cases_and_columns_sort(opened: Open) -> None:
    tab = opened()
    tab.locator("#scenarios a.narrow", has_text="merge").click()
    assert len(visible(tab, "#case-list tbody tr")) == 2
    tab.select_option("#scenario", "")
    tab.locator("#case-list th button", has_text="s").last.click()
    seconds = [float(text) for text in visible(tab, "#case-list tbody td.n")]
    assert seconds == sorted(seconds) and len(seconds) == 11
    tab.locator("#case-list th button", has_text="s").last.click()
    assert [float(text) for text in visible(tab, "#case-list tbody td.n")] == seconds[::-1]
    assert tab.locator("#case-list thead th").last.get_attribute("aria-sort") == "descending"


def test_a_case_opens_alone_with_its_findings_blame_and_smallest_case(opened: Open) -> None:
    tab = opened()
    tab.locator("#failures a", has_text="n=0]").click()
    tab.locator(".view.open h2", has_text="n=0]").wait_for()
    assert visible(tab, ".view h2") == ["fail decode[kernel=tiled,kv=bf16,n=0]"]
    assert not tab.locator("#overview").is_visible() and "n=0]" in tab.title()
    text = tab.locator(".view.open").inner_text()
    for part in (
        "0x7fd50006",
        "sentinel of kv.tail",
        "smallest failing case",
        "mla-harness run 'decode[kernel=tiled]@seq_lens=[1]' --seed 3",
        "seq_lens: [1,63] → [1]",
        "no smaller case fails alike",
        "mla-harness show",
        "finite 4,096",
    ):
        assert part in text, part
    assert tab.evaluate("document.activeElement.textContent").endswith("n=0]")


def test_a_passed_case_opens_too_with_its_parameters_and_command(
    opened: Open, store: RunStore
) -> None:
    tab = opened()
    for name in ("merge[a=1]", "it's a case's id", "decode[kernel=tiled,kv=bf16,n=4]"):
        tab.evaluate("id => { location.hash = encodeURIComponent(id) }", name)
        tab.locator(".view.open h2", has_text=name).wait_for()
        result = next(result for result in store.results() if result.id == name)
        assert tab.locator(".view.open .command code").inner_text() == reproduce(
            result, store.plan.options
        )
        names, values = (
            tab.locator(f".view.open {tag}").all_text_contents() for tag in ("dt", "dd")
        )
        shown = dict(zip(names, values, strict=True))
        job = store.jobs_by_key()[name]
        assert shown["sites to fill"] == "kv.tail, kv.free" and shown["seed"] == "7"
        for key, value in job.case.values().items():
            assert value is None or shown[key] == json.dumps(value)


def test_going_back_returns_to_the_link_and_the_place(opened: Open) -> None:
    tab = opened(viewport={"width": 800, "height": 500})
    link = tab.locator("#case-list a", has_text="merge[skipped]")
    link.scroll_into_view_if_needed()
    place = tab.evaluate("scrollY")
    link.click()
    tab.locator(".view.open h2").wait_for()
    assert visible(tab, ".view h2") == ["skip merge[skipped]"] and tab.evaluate("scrollY") == 0
    tab.keyboard.press("Escape")
    wait_until(tab, "() => !document.documentElement.classList.contains('in-case')")
    assert tab.evaluate("scrollY") == place > 0
    assert tab.evaluate("document.activeElement.textContent") == "merge[skipped]"
    tab.go_back()
    tab.locator(".view.open h2").wait_for()
    assert visible(tab, ".view h2") == ["skip merge[skipped]"]


@pytest.mark.parametrize(
    "fragment", ["#case-999", "#%E0%A4%A", "#<img src=x>", "#data", "#built", "#fault-0"]
)
def test_an_unknown_address_shows_the_overview(opened: Open, fragment: str) -> None:
    tab = opened(fragment)
    assert tab.locator("#overview").is_visible() and visible(tab, ".view") == []


def test_a_fault_has_a_page_that_says_what_was_expected(opened: Open) -> None:
    tab = opened("#fault-2")
    assert "missed" in visible(tab, ".view h2")[0]
    text = tab.locator(".view.open").inner_text()
    assert "sentinel, blaming kv.new" in text and "--fault kv.missed" in text


def test_the_accuracy_of_a_case_is_on_its_page_and_returns_to_the_overview(opened: Open) -> None:
    tab = opened()
    assert tab.locator("#accuracy .acc").count() == 1
    tab.locator("#failures a", has_text="measured[").click()
    tab.locator(".view.open .acc table").first.wait_for()
    tab.locator(".view.open a", has_text="All results").click()
    tab.locator("#accuracy .acc table").first.wait_for()


def test_the_command_is_copied_and_said_to_be(opened: Open) -> None:
    tab = opened("#" + "case-1", permissions=["clipboard-read", "clipboard-write"])
    command = tab.locator(".view.open .command code").first.inner_text()
    tab.locator(".view.open button.copy").first.click()
    tab.locator("#said", has_text="Command copied").wait_for(state="attached")
    assert tab.evaluate("navigator.clipboard.readText()") == command
    tab.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed')) }"
    )
    tab.locator(".view.open button.copy").first.click()
    tab.locator("#said", has_text="Command selected").wait_for(state="attached")
    assert tab.evaluate("getSelection().toString()") == command


def test_everything_is_reached_with_the_keyboard(opened: Open, approved: Approved) -> None:
    tab = opened()
    tab.keyboard.press("Tab")
    approved(tab.evaluate("document.activeElement.textContent"))
    assert tab.locator(".skip-link").bounding_box()["y"] >= 0, "it is seen once it has the focus"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"
    tab.keyboard.press("/")
    wait_until(tab, "() => document.activeElement.id === 'search'")
    tab.keyboard.type("n=1]/")
    assert tab.input_value("#search") == "n=1]/", "a slash that is typed stays one"
    tab.keyboard.press("Backspace")
    for _ in range(20):
        tab.keyboard.press("Tab")
        if tab.evaluate("Boolean(document.activeElement.closest('#case-list tbody'))"):
            break
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    tab.keyboard.press("Enter")
    assert (
        visible(tab, ".view h2") == ["fail decode[kernel=tiled,kv=bf16,n=1]"] and outline == "solid"
    )


def test_without_javascript_all_cases_and_whole_failures_can_be_read(opened: Open) -> None:
    tab = opened(java_script_enabled=False)
    assert len(visible(tab, "#case-list tbody tr")) == 11
    assert len(visible(tab, ".view h2")) == 6 and not tab.locator(".tools").is_visible()
    assert "sentinel of kv.tail" in tab.locator("#case-1").inner_text()
    for link in tab.locator("a[href^='#']").all():
        assert tab.locator(f"[id='{str(link.get_attribute('href'))[1:]}']").count() == 1


def test_print_has_the_overview_and_the_failures_and_no_controls(opened: Open) -> None:
    tab = opened(color_scheme="dark")
    tab.emulate_media(media="print")
    assert len(visible(tab, ".view h2")) == 6 and visible(tab, ".tools, .bar, .copy, .way") == []
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert tab.pdf(format="A4").startswith(b"%PDF")
    single = opened("#case-2")
    single.emulate_media(media="print")
    assert len(visible(single, ".view h2")) == 1 and not single.locator("#overview").is_visible()


def test_two_thousand_cases_are_searched_without_waiting(browser: Browser, tmp_path: Path) -> None:
    cases = [make_case(f"decode-{n % 20}[kernel=tiled,kv=bf16,n={n}]", n + 1) for n in range(2000)]
    store = RunStore.create(tmp_path, [Job(key=case.id, case=case) for case in cases], command="x")
    lines = (
        CaseResult(
            key=case.id,
            id=case.id,
            scenario=case.scenario,
            verdict=Verdict.PASS,
            looked_at={"finite": 1},
        )
        for case in cases
    )
    (store.path / "results.jsonl").write_text(
        "".join(line.model_dump_json() + "\n" for line in lines)
    )
    (tmp_path / "page.html").write_text(report.render(RunView(store)), encoding="utf-8")
    context = browser.new_context()
    tab = context.new_page()
    tab.goto((tmp_path / "page.html").as_uri())
    taken = tab.evaluate(
        """() => { const box = document.getElementById("search"), start = performance.now();
          box.value = "n=1999"; box.dispatchEvent(new Event("input"));
          return [document.getElementById("shown").textContent, performance.now() - start]; }"""
    )
    assert taken[0] == "1 of 2000" and taken[1] < 500, taken
    context.close()


def test_a_page_whose_data_is_packed_opens_and_searches_its_cases(
    browser: Browser, store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "LARGE_DATA", 10)
    monkeypatch.setattr(report, "MOST_BREAKABLE", 1)
    text = report.render(RunView(store))
    assert '<script type="application/gzip" id="data">' in text
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    trouble: list[str] = []
    tab = browser.new_context().new_page()
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.goto((tmp_path / "page.html").as_uri())
    wait_until(tab, "() => document.documentElement.classList.contains('js')")
    tab.evaluate("location.hash = 'merge[a=1]'")
    wait_until(tab, "() => document.documentElement.classList.contains('in-case')")
    assert "merge[a=1]" in tab.locator("#built h2").inner_text()
    assert "num_heads" in tab.locator("#built").inner_text(), "parameters are in the data alone"
    assert trouble == []
