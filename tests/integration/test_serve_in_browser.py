"""The served page in a browser: it renews itself and leaves the reader alone."""

import base64
import hashlib
import re
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from autofedavg.monitor.serve.serving import serve
from slow_motion import resting, rounds_of

pytestmark = pytest.mark.browser
FEW = 15_000  # milliseconds


# --- over real runs -----------------------------------------------------------------------------


def test_new_rounds_appear_without_a_reload(tiny, tmp_path, start, serving, open_page) -> None:
    """From before the first run to the end of it, under a reader's eyes."""
    _, url = serving(tmp_path / "runs" / "tiny")
    page = open_page(url)
    page.wait_for_selector("text=No report yet")
    row = ("--only", "n-dirichlet", "--set", "rounds=999")
    run = start("run", tiny, *row, "--out", tmp_path / "runs")
    folder = tmp_path / "runs/tiny/n-dirichlet/seed-0"
    with resting(run, folder, 1):
        page.wait_for_selector("main:has-text('of 999')", timeout=90_000)
        page.evaluate("window.untouched = true")
        shown = [round_shown(page)]
    for _ in range(2):
        with resting(run, folder, shown[-1] + 1):
            page.wait_for_function(
                "t => /round (\\d+) of 999/.exec(report.innerText)[1] > t",
                arg=shown[-1],
                timeout=60_000,
            )
            shown.append(round_shown(page))
            status(page, "live, updated")
    run.send_signal(signal.SIGINT)
    status(page, "finished, updated", 60_000)
    assert round_shown(page) == rounds_of(folder) >= shown[-1]
    assert page.evaluate("window.untouched"), "the page has not been loaded anew"
    assert page.errors == []
    assert [said for said in page.console if said.startswith(("error", "warning"))] == []
    assert {urlsplit(asked).netloc for asked in page.requests} == {urlsplit(url).netloc}


def round_shown(page) -> int:
    return int(re.search(r"round (\d+) of 999", page.inner_text("main"))[1])


def test_files_are_downloaded_by_their_links(tiny_home, serving, open_page) -> None:
    _, url = serving(tiny_home)
    page = open_page(url)
    link = page.locator("main a[href='tables/scores.csv']").first
    link.wait_for(state="attached", timeout=60_000)
    with page.expect_download() as coming:
        link.evaluate("link => link.click()")
    assert coming.value.suggested_filename == "scores.csv"
    assert Path(coming.value.path()).read_text().startswith("row,")


# --- over a page made for it --------------------------------------------------------------------

DRAW = """
"use strict";
let drawn = 0;
function draw() {
  drawn += 1;
  document.getElementById("figure").textContent = `drawn ${drawn}`;
  document.getElementById("late").replaceChildren();
  window.setTimeout(() => {
    const slider = document.createElement("input");
    slider.type = "range";
    slider.id = "drawn-slider";
    document.getElementById("late").replaceChildren(slider);
    document.dispatchEvent(new Event("report:drawn"));
  }, 100);
}
window.heard = [];
document.addEventListener("report:replaced", draw);
document.addEventListener("change", ({ target }) => window.heard.push(target.id || target.name));
draw();
"""


@dataclass
class Page:
    """A report with all that a reader can set."""

    number: int
    rows: int = 1
    examples: object = None
    problem: str | None = None

    @property
    def files(self):
        return {}

    def page(self, script=""):
        rows = "".join(f"<p>row {row}</p>" for row in range(self.rows))
        filler = "".join(f'<p id="line-{line}">line {line}</p>' for line in range(80))
        hashes = " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in (DRAW, script)
        )
        policy = f"default-src 'none'; script-src {hashes}; connect-src 'self'"
        return f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>Edition {self.number}</title></head><body><a href="#report" id="skip">skip</a>
<main id="report"><h1>Edition {self.number}</h1>{rows}<p id="figure"></p><div id="late"></div>
<details><summary>First</summary>first</details>
<details open><summary>Second</summary>second</details>
<details id="third"><summary>Third, {self.number}</summary>third</details>
<label><input type="checkbox" id="box" value="fedavg" checked>FedAvg</label>
<label><input type="radio" name="unit" value="percent" checked>percent</label>
<label><input type="radio" name="unit" value="points">points</label>
<label>Round <input type="range" name="round" min="0" max="10" value="{self.number}"></label>
<label>Other <input type="range" name="other" min="0" max="10" value="{self.number}"></label>
<label>Find <input type="text" id="find"></label>
<select name="by"><option>name</option><option>score</option></select>
<button>Sort</button>
<div id="wide" tabindex="0">{filler}</div></main>
<script>{DRAW}</script><script>{script}</script></body></html>"""


class Live:
    """A server over one run folder; `publish` makes another edition."""

    def __init__(self, home: Path) -> None:
        self.run = home / "fedavg" / "seed-0"
        self.run.mkdir(parents=True)
        (self.run / "config.toml").write_text("")
        self.state("running")
        self.page, self.error = Page(1), None

    def state(self, name: str) -> None:
        (self.run / "status.json").write_text(f'{{"state": "{name}"}}')

    def publish(self, **changes) -> None:
        self.page = Page(self.page.number + 1, **changes)
        self.touch()

    def touch(self) -> None:
        with (self.run / "rounds.jsonl").open("a") as handle:
            handle.write("{}\n")

    def build(self, paths, **_):
        if self.error:
            raise self.error
        return self.page

    @contextmanager
    def serving(self, **how):
        stop, ready, shown = threading.Event(), threading.Event(), []

        def show(url):
            shown.append(url)
            ready.set()

        def work():
            serve(
                [self.run.parent], show=show, warn=lambda text: None, every=0.1,
                build=self.build, stop=stop, **{"port": 0, **how},
            )  # fmt: skip

        thread = threading.Thread(target=work)
        thread.start()
        assert ready.wait(10)
        try:
            yield shown[0]
        finally:
            stop.set()
            thread.join(10)


@pytest.fixture
def live(tmp_path):
    return Live(tmp_path)


def edition(page, number: int) -> None:
    page.wait_for_selector(f"h1:text-is('Edition {number}')", timeout=FEW)


def status(page, text: str, within: int = FEW) -> None:
    page.wait_for_function(
        "text => document.getElementById('live-status').textContent.includes(text)",
        arg=text,
        timeout=within,
    )


def test_what_a_reader_has_set_is_kept(live, open_page) -> None:
    with live.serving() as url:
        page = open_page(url, height=400)
        edition(page, 1)
        page.click("summary:text-is('First')")
        page.click("summary:text-is('Second')")
        page.click("summary:text-is('Third, 1')")
        page.uncheck("#box")
        page.check("[value=points]")
        page.fill("[name=round]", "7")
        page.select_option("select", "score")
        page.fill("#drawn-slider", "33")
        page.fill("#find", "fedavg")
        page.evaluate("document.getElementById('find').setSelectionRange(2, 4)")
        page.evaluate("window.heard.length = 0")
        live.publish()
        edition(page, 2)
        assert page.title() == "Edition 2"
        assert page.inner_text("#figure") == "drawn 2"
        opened = "[...document.querySelectorAll('details')].map((one) => one.open)"
        assert page.evaluate(opened) == [True, False, True]
        assert not page.is_checked("#box")
        assert page.is_checked("[value=points]")
        assert not page.is_checked("[value=percent]")
        assert page.input_value("[name=round]") == "7"
        assert page.input_value("[name=other]") == "2", "what was not touched is the page's own"
        assert page.input_value("select") == "score"
        assert page.input_value("#find") == "fedavg"
        assert page.evaluate("document.activeElement.id") == "find"
        marked = "(({ selectionStart, selectionEnd }) => [selectionStart, selectionEnd])"
        assert page.evaluate(f"{marked}(document.getElementById('find'))") == [2, 4]
        page.wait_for_function("() => document.getElementById('drawn-slider')?.value === '33'")
        heard = page.evaluate("window.heard")
        assert {"box", "round", "find", "drawn-slider"} <= set(heard)
        live.publish()
        edition(page, 3)
        assert page.input_value("[name=round]") == "7"
        assert page.errors == page.console == []


@pytest.mark.parametrize("selector", ["summary >> nth=0", "button", "#wide", "[name=other]"])
def test_the_keyboard_stays_where_it_is(live, open_page, selector) -> None:
    with live.serving() as url:
        page = open_page(url)
        edition(page, 1)
        page.locator(selector).focus()
        here = "document.activeElement.outerHTML.slice(0, 60)"
        before = page.evaluate(here)
        live.publish()
        edition(page, 2)
        assert page.evaluate(here) == before.replace('value="1"', 'value="2"')


def test_focus_outside_the_report_is_left_alone(live, open_page) -> None:
    with live.serving() as url:
        page = open_page(url)
        edition(page, 1)
        page.focus("#skip")
        live.publish()
        edition(page, 2)
        assert page.evaluate("document.activeElement.id") == "skip"


@pytest.mark.parametrize("rows", [1, 40])
def test_what_is_read_stays_in_its_place(live, open_page, rows) -> None:
    """Also when rows are added above it."""
    with live.serving() as url:
        page = open_page(url, height=400)
        edition(page, 1)
        page.wait_for_selector("#drawn-slider")
        page.evaluate("document.getElementById('line-40').scrollIntoView()")
        page.evaluate("window.scrollBy(0, 7)")
        place = "document.getElementById('line-40').getBoundingClientRect().top"
        before = page.evaluate(place)
        assert page.evaluate("scrollY") > 500
        live.publish(rows=rows)
        edition(page, 2)
        page.wait_for_function("() => document.getElementById('report').style.minHeight === ''")
        assert abs(page.evaluate(place) - before) < 1, "also once the slider is drawn"


def test_a_selection_is_not_taken_away(live, open_page) -> None:
    with live.serving() as url:
        page = open_page(url)
        edition(page, 1)
        page.evaluate("getSelection().selectAllChildren(document.getElementById('line-3'))")
        live.publish()
        status(page, "new results are shown when no text is selected")
        assert page.evaluate("getSelection().toString()") == "line 3"
        assert page.inner_text("h1") == "Edition 1"
        page.evaluate("getSelection().removeAllRanges()")
        edition(page, 2)
        status(page, "live, updated")


def test_a_build_that_fails_is_told_above_the_last_page(live, open_page) -> None:
    with live.serving() as url:
        page = open_page(url)
        edition(page, 1)
        status(page, "live, updated")
        assert page.is_hidden("#live-problem")
        live.error = ValueError("<b>odd</b>")
        live.touch()
        page.wait_for_selector("#live-problem:visible", timeout=FEW)
        assert page.inner_text("#live-problem") == "Not up to date: ValueError: <b>odd</b>"
        assert page.inner_text("h1") == "Edition 1"
        live.error = None
        live.publish()
        edition(page, 2)
        assert page.is_hidden("#live-problem")


def test_a_server_that_is_gone_is_told_and_found_again(live, open_page) -> None:
    with live.serving() as url:
        page = open_page(url)
        edition(page, 1)
        status(page, "live, updated")
    status(page, "connection lost, trying again")
    assert page.inner_text("h1") == "Edition 1"
    with live.serving(port=urlsplit(url).port):
        status(page, "live, updated")
        assert page.errors == []


def test_it_is_said_to_those_who_listen_and_not_on_paper(live, open_page) -> None:
    with live.serving() as url:
        page = open_page(url)
        status(page, "live, updated")
        for name in ("live-status", "live-problem"):
            said = page.locator(f"#{name}")
            assert said.get_attribute("aria-live") == "polite"
            assert said.get_attribute("role") == "status"
        assert page.evaluate("document.activeElement === document.body")
        page.emulate_media(media="print")
        assert page.is_hidden("#live-status")


def test_without_scripts_the_page_is_there(live, open_page) -> None:
    with live.serving() as url:
        page = open_page(url, javascript=False)
        for _ in range(50):
            if "Edition 1" in page.content():
                break
            page.wait_for_timeout(100)
            page.reload()
        assert page.inner_text("h1") == "Edition 1"


def asked_for_version(page) -> int:
    return sum(asked.endswith("/version") for asked in page.requests)


def test_how_often_it_asks(live, open_page) -> None:
    """Every 2 s while a run goes on, every 10 s afterwards, never when nobody sees the page."""
    with live.serving() as url:
        page = open_page("about:blank")
        page.clock.install(time="2026-01-01T00:00")
        page.goto(url)
        page.clock.pause_at("2026-01-01T01:00")
        while not (asked_after(page, 500) and "live, up" in page.inner_text("#live-status")):
            pass
        assert [asked_after(page, wait) for wait in (1900, 200, 1900, 200)] == [0, 1, 0, 1]
        live.state("finished")
        while not (asked_after(page, 500) and "finished" in page.inner_text("#live-status")):
            pass
        assert [asked_after(page, wait) for wait in (9900, 200, 9900, 200)] == [0, 1, 0, 1]
        assert asked_upon_being_seen(page, False) == 0
        assert asked_after(page, 60_000) == 0
        assert asked_upon_being_seen(page, True) == 1
        assert [asked_after(page, wait) for wait in (9900, 200)] == [0, 1]


def asked_after(page, milliseconds: int) -> int:
    """How often the page asks for its version within the time, answers included."""
    before = len(page.requests)
    page.clock.run_for(milliseconds)
    page.wait_for_timeout(200)
    return sum(asked.endswith("/version") for asked in page.requests[before:])


def asked_upon_being_seen(page, seen: bool) -> int:
    before = len(page.requests)
    page.evaluate(
        "seen => { Object.defineProperty(document, 'hidden', { value: !seen, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        seen,
    )
    page.wait_for_timeout(200)
    return len(page.requests) - before


# --- with a token -------------------------------------------------------------------------------


def test_the_token_opens_the_page_and_leaves_the_address(live, open_page) -> None:
    with live.serving(token=True) as url:
        page = open_page(url)
        edition(page, 1)
        assert urlsplit(page.url).query == ""
        assert page.evaluate("document.cookie") == "", "no script can read it"
        live.publish()
        edition(page, 2)
        refused = open_page(url.partition("?")[0])
        assert "401" in refused.inner_text("h1")
        assert "it ends with the token" in refused.inner_text("main")


def test_a_link_on_another_site_opens_the_page(live, tmp_path, open_page) -> None:
    """The cookie is for this site alone, and a click elsewhere does not carry it."""
    with live.serving(token=True) as url:
        elsewhere = tmp_path / "mail.html"
        elsewhere.write_text(f'<!doctype html><title>Mail</title><a href="{url}">the report</a>')
        page = open_page(elsewhere)
        page.click("a")
        edition(page, 1)
        elsewhere.write_text(f'<!doctype html><a href="{url.partition("?")[0]}">again</a>')
        page.goto(elsewhere.as_uri())
        page.click("a")
        edition(page, 1)


def test_a_server_with_another_token_says_so(live, open_page) -> None:
    with live.serving(token=True) as url:
        page = open_page(url)
        edition(page, 1)
    with live.serving(port=urlsplit(url).port, token=True):
        status(page, "access was refused: open the address with its token again")
        assert page.inner_text("h1") == "Edition 1"
