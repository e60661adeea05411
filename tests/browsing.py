"""A scripted browser: fixtures `browser` and `open_page`, for tests marked `browser`; and what
must hold for every report's page."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Debian's own build; nothing of it may talk to anybody but the page under test.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


LARGEST = 5_000_000  # bytes of the demo's page


def chromium() -> str | None:
    """The browser's program, if there is one."""
    return os.environ.get("AUTOFEDAVG_CHROMIUM") or shutil.which("chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests; each page has a context, cookies and cache of its own."""
    program = chromium()
    if program is None:
        pytest.skip("no Chromium: install Debian's chromium, or set AUTOFEDAVG_CHROMIUM")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program, headless=True, args=list(FLAGS)
        )
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address or a file.

    The page has three more lists, filled from its first moment on: `console` (messages as
    "error: text"), `errors` (uncaught exceptions) and `requests` (every address asked for).
    """
    contexts = []

    def opened(
        where: str | Path,
        *,
        dark: bool = False,
        width: int = 1280,
        height: int = 900,
        javascript: bool = True,
        still: bool = False,
        printing: bool = False,
    ) -> Page:
        context = browser.new_context(
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if still else "no-preference",
            viewport={"width": width, "height": height},
            java_script_enabled=javascript,
            service_workers="block",
        )
        contexts.append(context)
        page = context.new_page()
        page.console, page.errors, page.requests = [], [], []
        page.on("console", lambda said: page.console.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        context.on("request", lambda request: page.requests.append(request.url))
        if printing:
            page.emulate_media(media="print")
        page.goto(where.resolve().as_uri() if isinstance(where, Path) else where)
        return page

    yield opened
    for context in contexts:
        context.close()


def check_page(page, page_file: Path) -> None:
    """What must hold for the page of every study."""
    assert page.console == []
    assert page.errors == []
    assert page.requests == [page_file.as_uri()]
    assert page_file.stat().st_size <= LARGEST
    figures = page.locator("figure[data-title]")
    assert figures.count() >= 9
    for number in range(figures.count()):
        figure = figures.nth(number)
        name = figure.get_attribute("id")
        box = figure.locator(".live svg").bounding_box()
        assert box is not None, name
        assert min(box["width"], box["height"]) > 40, name
        marks = figure.locator(".live svg .role-mark path, .live svg .role-mark text")
        assert marks.count() > 2, name
    shown = [cell.inner_text() for cell in page.locator("#table-scores tbody tr > *").all()]
    with (page_file.parent / "tables" / "scores.csv").open() as handle:
        lines = list(csv.reader(handle))[1:]
    wanted = [
        text
        for line in lines
        for text in (line[0], *(f"{float(v):.2f}" if v else "" for v in line[1::3]))
    ]
    assert [re.sub(r"†.*| ±.*", "", text.strip()) for text in shown] == wanted
