"""What a reader does with the questions of an accuracy run, in a real headless Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.report import page as report
from harness.report.run_view import RunView
from tests import waiting
from tests.report.answered_runs import HOSTILE, answered

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Open = Callable[..., "Page"]
EPOCHS = (
    ["yes"] * 40,
    ["yes"] * 30 + ["yet"] * 10,
    ["yes"] * 30 + ["yet"] * 9 + ["yes"],
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = answered(tmp_path_factory.mktemp("run"), EPOCHS, logprobs=[-0.25])
    path = store.path / "report.html"
    path.write_text(report.render(RunView(store)), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Browser, file: Path) -> Iterator[Open]:
    """Opens the page; afterwards it must have said nothing on the console."""
    contexts, trouble = [], []

    def open_page(**settings: Any) -> Page:
        context = browser.new_context(**({"viewport": {"width": 1240, "height": 900}} | settings))
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(1000 * waiting.HANG_SECONDS)
        tab.on("console", lambda message: trouble.append(message.text))
        tab.on("pageerror", lambda error: trouble.append(str(error)))
        tab.goto(file.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert trouble == []


def numbers(tab: Page) -> list[str]:
    """The numbers of the questions in the list."""
    return [item.inner_text() for item in tab.locator(".explore li b").all()]


def test_the_list_begins_with_the_questions_that_flipped_and_is_narrowed(opened: Open) -> None:
    tab = opened()
    assert numbers(tab) == [str(number) for number in range(31, 41)]
    tab.locator(".explore select").select_option("all questions")
    assert len(numbers(tab)) == 40
    tab.locator(".explore input").fill("7")
    assert numbers(tab) == ["7"]


def test_a_question_opens_with_its_words_its_answers_and_where_they_part(opened: Open) -> None:
    tab = opened()
    tab.locator(".explore li button").first.click()
    shown = tab.locator(".explore .asked").inner_text()
    assert HOSTILE in shown, "text of a model is shown as it is, and is no markup"
    assert "epoch 1: right" in shown and "epoch 2: wrong" in shown
    assert 'token 1: "yes" (log probability -0.250) became "yet" (-0.250)' in shown
    assert tab.locator(".explore mark").all_inner_texts() == ["t", "t"]


def test_a_click_on_a_cell_of_the_grid_opens_its_question(opened: Open) -> None:
    tab = opened()
    tab.locator("svg.grid").scroll_into_view_if_needed()
    box = tab.locator("svg.grid").bounding_box()
    assert box is not None
    shape = (
        "(({width, height}) => [width, height])(document.querySelector('.grid').viewBox.baseVal)"
    )
    width, height = tab.evaluate(shape)
    # 40 questions are drawn as if they were 60, so that their cells are no huge squares.
    assert (width, height) == (60 * 5, 3 * 5)
    scale = min(box["width"] / width, box["height"] / height)
    left = box["x"] + (box["width"] - width * scale) / 2
    tab.mouse.click(left + (34 + 0.5) * 5 * scale, box["y"] + 7 * scale)
    assert tab.locator(".explore .asked h4").inner_text() == "Question 35"


def test_questions_are_opened_with_the_keyboard_alone(opened: Open) -> None:
    tab = opened()
    tab.locator(".explore input").focus()
    for _ in range(3):
        tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    assert tab.locator(".explore .asked h4").inner_text() == "Question 32"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_in_an_open_question(opened: Open, scheme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    tab = opened(color_scheme=scheme)
    tab.locator(".explore li button").first.click()
    found = axe.Axe().run(tab).response
    assert len(found["passes"]) > 20
    assert [(item["id"], item["nodes"][0]["html"]) for item in found["violations"]] == []


@pytest.mark.parametrize("width", [360, 1240])
def test_an_open_question_is_not_wider_than_the_window(opened: Open, width: int) -> None:
    tab = opened(viewport={"width": width, "height": 800})
    tab.locator(".explore li button").first.click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_without_javascript_the_questions_that_differ_stand_in_a_table(opened: Open) -> None:
    tab = opened(java_script_enabled=False)
    tab.locator("details.flips summary").click()
    assert tab.locator("details.flips tbody tr").count() == 10
