"""The page of the demo, in a real browser: drawn, interactive, alone, readable by everyone."""

import itertools
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from autofedavg import read_study, run_study
from autofedavg.report.build import build_report
from browsing import check_page

SHORT = ["rounds=4", "training.iterations=1", "task.scale=0.02", "task.pipeline.channels=[4, 8]"]
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """The demo's study with few rounds and cases: all its rows, figures and pictures."""
    return run_study(read_study("demo", SHORT), tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def page_file(home, tmp_path_factory) -> Path:
    return build_report([home]).write(tmp_path_factory.mktemp("report"))


@pytest.fixture
def drawn(open_page, page_file):
    """Opens the page and waits until every figure is drawn."""

    def opened(**options):
        page = open_page(page_file, **options)
        page.locator("html[data-drawn]").wait_for(state="attached")
        return page

    return opened


def test_everything_is_drawn_and_nothing_asked_for(drawn, page_file) -> None:
    page = drawn()
    check_page(page, page_file)
    pictures = page.locator(".examples img")
    assert pictures.count() >= 4 * 3
    assert all(image.evaluate("i => i.complete && i.naturalWidth > 50") for image in pictures.all())


def test_the_drawn_curve_has_the_values_of_the_run(drawn, home) -> None:
    """Tooltips and pictures come from the specification in the page; it holds the run's alpha."""
    page = drawn()
    spec = json.loads(page.locator("#figure-alpha script").text_content())
    found = {
        (row["t"], row["site"]): row["alpha"]
        for row in spec["data"]["values"]
        if row["row"] == "Auto-FedAvg-N-Dirichlet"
    }
    lines = (home / "n-dirichlet" / "seed-0" / "rounds.jsonl").read_text().splitlines()
    wanted = {
        (line["t"], site): alpha
        for line in map(json.loads, lines)
        for site, alpha in zip(("I", "II", "III"), line["alpha"], strict=True)
    }
    assert found == wanted


@pytest.mark.parametrize("row", ["n-dirichlet", "l-softmax"])
def test_the_slider_changes_the_simplex(drawn, row) -> None:
    page = drawn()
    figure = page.locator(f"#figure-simplex-{row}")
    slider = figure.locator("input[type=range]")
    picture = figure.locator(".live svg")
    before = picture.inner_html()
    expect(picture).to_contain_text("round 4")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(picture).to_contain_text("round 2")
    assert picture.inner_html() != before
    assert slider.get_attribute("aria-label").startswith("round, Weights on the simplex")


def test_hovering_shows_a_value(drawn) -> None:
    page = drawn()
    # Dots may lie on one another: whichever is on top answers.
    page.locator("#figure-alpha .live svg .mark-symbol.role-mark path").first.hover(force=True)
    shown = page.locator("#vg-tooltip-element.visible")
    shown.wait_for()
    assert re.search(r"alpha:?\s*0\.\d{3}", shown.inner_text())


def test_a_row_is_hidden_everywhere_by_its_box(drawn) -> None:
    page = drawn()
    curves = page.locator("#figure-validation .live svg .mark-line.role-mark path")
    expect(curves).to_have_count(7)
    page.get_by_label("FedProx", exact=True).uncheck()
    assert not page.locator("#table-scores tr[data-row=FedProx]").is_visible()
    softmax = page.locator("#figure-simplex-n-softmax")
    page.get_by_label("Auto-FedAvg-N-Softmax", exact=True).uncheck()
    expect(softmax).to_be_hidden()
    page.get_by_label("Auto-FedAvg-N-Softmax", exact=True).check()
    expect(softmax).to_be_visible()
    expect(curves).to_have_count(6)
    page.get_by_label("FedProx", exact=True).check()
    assert page.locator("#table-scores tr[data-row=FedProx]").is_visible()
    expect(curves).to_have_count(7)


def test_a_number_leads_to_its_cases(drawn) -> None:
    page = drawn()
    link = page.locator("#table-scores tr[data-row=FedAvg] a").first
    line = page.locator(link.get_attribute("href"))
    expect(line).to_be_hidden()
    link.click()
    expect(line).to_be_visible()
    assert "FedAvg" in line.locator("xpath=ancestor::details/summary").inner_text()


def test_without_scripts_every_figure_is_a_picture(open_page, page_file) -> None:
    page = open_page(page_file, javascript=False)
    stills = page.locator("figure[data-title] .still svg")
    assert stills.count() == page.locator("figure[data-title]").count() >= 9
    assert all(still.bounding_box()["width"] > 40 for still in stills.all())
    assert page.locator("fieldset.rows").is_hidden()
    assert page.locator("#table-scores").is_visible()


def test_paper_has_the_still_pictures(drawn) -> None:
    page = drawn(printing=True)
    figure = page.locator("#figure-simplex-n-dirichlet")
    assert figure.locator(".still svg").is_visible()
    assert figure.locator(".live").is_hidden()
    assert page.locator("nav").is_hidden()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert all(table.is_visible() for table in page.locator("#origins table").all())
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("#origins details:not([open])").count() >= 3


def test_light_and_dark_have_readable_ink(drawn) -> None:
    for dark in (False, True):
        page = drawn(dark=dark)
        ink, paper = page.evaluate(
            "() => [getComputedStyle(document.querySelector('#figure-alpha .live svg text')).fill,"
            " getComputedStyle(document.body).backgroundColor]"
        )
        assert contrast(ink, paper) > 7, (dark, ink, paper)


def test_a_phone_needs_no_sideways_scrolling(drawn) -> None:
    page = drawn(width=360, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    sizes = page.locator("#figure-alpha .live").evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert sizes[0] > 400 > sizes[1]  # figures keep a size one can read, and scroll by themselves


def test_readers_of_the_screen_get_words(drawn) -> None:
    page = drawn()
    assert page.locator("html").get_attribute("lang") == "en"
    for picture in page.locator(".live svg, .examples img").all():
        words = picture.get_attribute("aria-label") or picture.get_attribute("alt")
        assert len(words) > 10
    levels = [int(h.evaluate("h => h.tagName[1]")) for h in page.locator("h1, h2, h3, h4").all()]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for box in page.locator("input").all():
        assert box.evaluate("b => b.labels.length > 0 || b.hasAttribute('aria-label')")
    names = page.locator("th:not([scope])")
    assert names.count() == 0


def test_the_keyboard_reaches_tables_and_boxes(drawn) -> None:
    page = drawn()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.closest('[id]')?.id"))
    assert {"shown-1", "table-scores"} <= reached


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours as browsers print them."""

    def light(colour: str) -> float:
        parts = [int(n) / 255 for n in re.findall(r"\d+", colour)[:3]]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
