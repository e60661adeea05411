"""The small pages that are no report, and the script that keeps a page up to date."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path

STYLE = """
:root { color-scheme: light dark; }
body { margin: 12vh auto; max-width: 40rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } code { font-size: .95em; }
"""


@cache
def _refresh_source() -> str:
    return (
        files("autofedavg.monitor.serve").joinpath("refresh.js").read_text(encoding="utf-8").strip()
    )


def refresh_script(version: str) -> str:
    """The script of a page that is this version."""
    return f"{_refresh_source()}({json.dumps(version)});"


def waiting_page(paths: Sequence[Path], begun: bool, problem: str | None, script: str) -> str:
    """What is shown until there is a report; `begun` says whether there are runs."""
    if problem:
        title, said = "The report cannot be made yet", f"{problem}. It is tried again."
    elif begun:
        title, said = "One moment", "The report is being made."
    else:
        title, said = "No run yet", "The report is shown as soon as a first run has begun."
    listed = "".join(f"<li><code>{escape(str(path))}</code></li>" for path in paths)
    places = f"<p>Run folders are looked for in</p><ul>{listed}</ul>"
    return _page(title, f"<p>{escape(said)}</p>{places}", script)


def note_page(title: str, text: str) -> bytes:
    """A page that says one thing."""
    return _page(title, f"<p>{escape(text)}</p>").encode()


def passing_page() -> bytes:
    """Asks for itself again, which a browser then counts as a request from this very site."""
    again = '<meta http-equiv="refresh" content="0">'
    return _page("One moment", "<p>The page is opened.</p>", head=again).encode()


def _page(title: str, content: str, script: str = "", head: str = "") -> str:
    policy = f"default-src 'none'; style-src {_hashed(STYLE)}"
    if script:
        policy += f"; script-src {_hashed(script)}; connect-src 'self'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{head}'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f'<body><main id="report" data-waiting><h1>{escape(title)}</h1>{content}</main>'
        + (f"\n<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )


def _hashed(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
