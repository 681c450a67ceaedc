"""The head of the report, its counters, and a green page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.findings import Finding
from harness.core.records import CaseResult, Verdict
from harness.report import bisect_page, compare_page, page
from harness.report.case_view import facts
from harness.report.run_view import RunView
from harness.store.history.compare import compare
from harness.store.history.entry import entry_of
from harness.store.run_folder import RunStore
from harness.store.source import Source
from tests.report.test_bisect_page import VERSIONS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAN = Finding(oracle="finite", site="kv.tail", tensor="out", message="NaN in live rows of out <b>")


def run_of(root: Path, verdicts: dict[str, Verdict], **options: object) -> RunStore:
    cases = {
        name: Case(
            id=name,
            scenario=name.partition("[")[0],
            system="kernel",
            op="mla_decode",
            refs=("a/b#1",),
            params={"kernel": "tiled"},
            poison=PoisonPlan(sites=("kv.tail",), patterns=(name.rpartition("=")[2][:-1],)),
        )
        for name in verdicts
    }
    jobs = [Job(key=name, case=case) for name, case in cases.items()]
    store = RunStore.create(
        root, jobs, command="mla-harness run --plugin mine.py", options=dict(options)
    )
    store.note_source(Source(commit="abcdef0123", branch="topic"))
    store.note_environment(
        {"torch": "2.13.0", "cpu": "a CPU", "gpus": [], "engines": {"vllm": "0.33.0"}}
    )
    for name, verdict in verdicts.items():
        found = (NAN,) if verdict is Verdict.FAIL else ()
        reason = NAN.message if found else "no GPU here" if verdict is Verdict.SKIP else ""
        scenario = cases[name].scenario
        store.add(
            CaseResult(
                key=name, id=name, scenario=scenario, verdict=verdict, findings=found, reason=reason
            )
        )
    return store


FAILING = {
    "decode[kernel=tiled,p=nan]": Verdict.FAIL,
    "decode[kernel=tiled,p=max]": Verdict.PASS,
    "merge[p=inf]": Verdict.SKIP,
}
GREEN = dict.fromkeys(FAILING, Verdict.PASS)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A failing and a green run, two runs compared, and two versions."""
    root = tmp_path_factory.mktemp("runs")
    failing, green = run_of(root, FAILING, plugins=["/k/mine.py"]), run_of(root, GREEN)
    texts = {
        "failing": page.render(RunView(failing)),
        "green": page.render(RunView(green)),
        "compared": compare_page.render(
            [compare(entry_of(green), entry_of(failing))],
            {str(run.path): RunView(run) for run in (failing, green)},
            failing.path,
        ),
        "versions": bisect_page.render(VERSIONS),
    }
    paths = {name: failing.path / f"{name}.html" for name in texts}
    for name, text in texts.items():
        paths[name].write_text(text, encoding="utf-8")
    return paths


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 400, "height": 800})
    yield context.new_page()
    context.close()


def test_a_green_page_opens_with_the_scenarios_and_a_red_one_with_the_cause(
    pages: dict[str, Path],
) -> None:
    for name, first in (("green", "scenarios"), ("failing", "failures")):
        sections = re.findall(r'<section id="([a-z]+)"', pages[name].read_text(encoding="utf-8"))
        assert sections[:2] == ["verdict", first] and sections.count("scenarios") == 1


def test_a_counter_shows_its_cases(pages: dict[str, Path], tab: Page) -> None:
    tab.goto(pages["failing"].as_uri())
    tab.locator(".counts a[data-verdict=skip]").click()
    shown = [
        row.inner_text() for row in tab.locator("#case-list tbody tr").all() if row.is_visible()
    ]
    assert len(shown) == 1 and "merge" in shown[0]
    assert tab.get_attribute("button.verdict.skip", "aria-pressed") == "true"
    tab.locator(".counts a[data-verdict=pass]").click()
    assert tab.locator("#shown").inner_text() == "1 of 3"


def test_menu_and_tables_of_a_phone_show_all_without_scrolling_sideways(
    pages: dict[str, Path], tab: Page
) -> None:
    tab.goto(pages["failing"].as_uri())
    for item in tab.locator(".bar li a, #scenarios tbody th, #scenarios tbody td:not(.zero)").all():
        box = item.bounding_box()
        assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= 400), item.inner_text()
    assert tab.locator("#scenarios .scroll").evaluate(
        "item => item.scrollWidth <= item.clientWidth"
    )


@pytest.mark.first(8)
@pytest.mark.parametrize("name", ["failing", "green", "compared", "versions"])
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_fits_and_axe_finds_nothing(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    trouble: list[str] = []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.goto(pages[name].as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.Axe().run(tab).response
    assert [(item["id"], item["nodes"][0]["html"]) for item in found["violations"]] == []
    context.close()
    assert trouble == []


def test_a_case_says_which_sites_were_filled_with_how_many_bytes(tmp_path: Path) -> None:
    store = run_of(tmp_path, FAILING)
    job = store.plan.jobs[0]
    filled = store.results()[0].model_copy(update={"filled": {"kv.tail": 435456}})
    assert dict(facts(job, filled, {}))["filled"] == "kv.tail 435,456 bytes"
    assert "sites to fill" not in dict(facts(job, filled, {}))
    assert dict(facts(job, store.results()[0], {}))["sites to fill"] == "kv.tail"
