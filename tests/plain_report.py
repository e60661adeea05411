"""A report as `autofedavg.report.build` makes it, plain: for tests of what is around the page.

As a program it is the command with this in the place of the report.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

DRAW = """
document.addEventListener("report:replaced", draw);
function draw() {
  const source = document.querySelector("#report script[type='application/json']");
  document.getElementById("figure").textContent = `drawn ${JSON.parse(source.textContent)}`;
}
draw();
"""


@dataclass(frozen=True)
class Report:
    title: str
    lines: Sequence[str]
    files: dict[str, Any]
    examples: Any = None

    def page(self, script: str = "") -> str:
        scripts = [DRAW, *([script] if script else [])]
        hashes = " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in scripts
        )
        connect = "'self'" if script else "'none'"
        policy = f"default-src 'none'; script-src {hashes}; connect-src {connect}"
        listed = "".join(f"<li>{escape(line)}</li>" for line in self.lines)
        links = "".join(f'<a href="{escape(name)}">{escape(name)}</a> ' for name in self.files)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<title>{escape(self.title)}</title></head><body><main id="report">'
            f'<h1>{escape(self.title)}</h1><ul id="rows">{listed}</ul><p id="figure"></p>'
            f'<script type="application/json">{len(self.lines)}</script>'
            f"<details><summary>More</summary><p>{links}</p></details></main>"
            + "".join(f"<script>{text}</script>" for text in scripts)
            + "</body></html>"
        )


def build_report(
    paths: Sequence[Path], baseline: str = "", *, examples: Any = True, progress: Any = None
) -> Report:
    from autofedavg.report.formats import FORMATS
    from autofedavg.report.read import read_results
    from autofedavg.report.tables import scores_table

    results = read_results(paths, baseline)
    table = scores_table(results)
    lines = [
        f"{row.label}: round {len(repeat.rounds)} of {repeat.config['rounds']}"
        for row in results.rows
        for repeat in row.repeats
    ]
    _, make = FORMATS["csv"]
    return Report(results.title, lines, {"tables/scores.csv": lambda: make(table).encode()})


if __name__ == "__main__":
    sys.modules["autofedavg.report.build"] = sys.modules["__main__"]
    from autofedavg.cli import main

    main()
