"""An inspection as one HTML page that stands alone: no scripts, nothing from the network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from autofedavg.tasks.imaging.drawing import COLOURS
from autofedavg.tasks.inspection import text as words
from autofedavg.tasks.inspection.charts import dots, ridges
from autofedavg.tasks.inspection.pictures import Example

if TYPE_CHECKING:
    from autofedavg.tasks.inspection.look import Inspection

FULL = 1.5  # shift at which a cell's colour is fullest
STYLE = """
:root { color-scheme: light dark; --ink: #1b1d21; --paper: #fff; --soft: #5c6370; --rule: #d5d9e0;
  --fill: #3b6fb6; --head: #f3f5f8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6eb; --paper: #16181d; --soft: #9aa3b2;
  --rule: #3a3f4a; --fill: #6ea2e6; --head: #20242c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin-bottom: .4rem; }
p.means, figcaption { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { border: 1px solid var(--rule); padding: .25rem .6rem; text-align: right; }
td.words { text-align: left; overflow-wrap: anywhere; min-width: 9rem; }
th { background: var(--head); text-align: left; font-weight: 600; }
.strip { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr));
  gap: .8rem; }
figure { margin: 0; } figure img { width: 100%; max-width: 320px; height: auto; background: #000; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr));
  gap: 1rem; }
svg { width: 100%; max-width: 640px; height: auto; font-size: 15px; }
svg text { fill: var(--ink); } .fill, .dot { fill: var(--fill); } .dot { opacity: .6; }
.axis { stroke: var(--rule); } .median { stroke: var(--ink); stroke-width: 2; }
.key { display: inline-block; width: 1.2em; height: 0; border-top: 3px solid;
  margin: 0 .3em .25em .8em; }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(found: Inspection, examples: Sequence[Example]) -> str:
    """The whole page."""
    title = escape(f"Inspection of {found.name}")
    parts = [
        _section("What sets sites apart", "", _list(found.differences)),
        _section("Worth a look", "", _list(found.oddities or ["nothing odd was found"])),
        _section("Sites", words.SITES_MEAN, _table(words.site_rows(found), [*found.sites])),
        _section("Examples", _examples_mean(found), _examples(examples)),
        *(_intensities(found, channel) for channel in range(len(found.shifts))),
        _label_sizes(found),
        _section("Settings worked out from the data", words.SETTINGS_MEAN, _settings(found)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>"
        f"<p>{escape(words.headline(found))}</p>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _section(title: str, means: str, content: str) -> str:
    said = f'<p class="means">{escape(means)}</p>' if means else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>"


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(said)}</li>' for said in sentences)}</ul>"


def _table(rows: Sequence[words.Row], head: Sequence[str]) -> str:
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", *head))
    body = "".join(
        f'<tr><th scope="row">{escape(what)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for what, cells in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def _examples_mean(found: Inspection) -> str:
    where = "" if found.flat else ", in the slice where the label is largest"
    turned = any(site.spacing for site in found.sites.values())
    side = " The patient's right is on the left." if turned else ""
    return (
        f"Cases with a median, a small and a large label{where}; lines are borders of labels.{side}"
    )


def _examples(examples: Sequence[Example]) -> str:
    parts = [_key([*examples[0].line.voxels])]
    for site, group in groupby(examples, key=lambda shown: shown.line.site):
        figures = "".join(_figure(shown) for shown in group)
        parts.append(f'<h3>{escape(site)}</h3><div class="strip">{figures}</div>')
    return "".join(parts)


def _key(classes: Sequence[str]) -> str:
    keys = "".join(
        f'<span class="key" style="color:rgb{COLOURS[k % len(COLOURS)]}"></span>{escape(name)}'
        for k, name in enumerate(classes)
    )
    return f"<p>Classes:{keys}</p>"


def _figure(shown: Example) -> str:
    line = shown.line
    place = "" if shown.slice is None else f", slice {shown.slice} of {shown.slices}"
    size = f"{line.label_voxels:,} {'pixels' if shown.slice is None else 'voxels'}"
    if line.label_ml is not None:
        size += f", {words.number(line.label_ml)} ml"
    said = f"{line.case}: {shown.why} ({size}){place}"
    width, height = shown.size
    source = base64.b64encode(shown.png).decode()
    return (
        f'<figure><img width="{width}" height="{height}" alt="{escape(f"{line.site}, {said}")}" '
        f'src="data:image/png;base64,{source}"><figcaption>{escape(said)}</figcaption></figure>'
    )


def _intensities(found: Inspection, channel: int) -> str:
    named = words.channel_name(found, channel)
    seen = found.histograms[channel]
    charts = "".join(
        f"<div><h3>{escape(title)}</h3>{ridges(known, f'Histogram of intensities, {title}')}</div>"
        for title, known in (
            (f"as stored{named}", seen.before),
            (f"after {found.normalise}{named}", seen.after),
        )
    )
    shift = found.shifts[channel]
    tables = "".join(
        f"<div><h3>{escape(title)}</h3>{_matrix(found, cells, numbers)}</div>"
        for (title, cells), numbers in zip(
            words.matrices(found, channel), (shift.before, shift.after), strict=True
        )
    )
    return _section(
        f"Intensities{named}",
        words.SPARKS_MEAN,
        f'<div class="pair">{charts}</div><p class="means">{escape(words.SHIFT_MEANS)}</p>'
        f'<div class="pair">{tables}</div>',
    )


def _matrix(
    found: Inspection, cells: Sequence[Sequence[str]], numbers: Sequence[Sequence[float]]
) -> str:
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", *found.sites))
    body = ""
    for site, shown, values in zip(found.sites, cells, numbers, strict=True):
        body += f'<tr><th scope="row">{escape(site)}</th>'
        for cell, value in zip(shown, values, strict=True):
            depth = 0.6 * min(1.0, value / FULL)
            body += f'<td style="background:rgb(230 120 20 / {depth:.2f})">{cell}</td>'
        body += "</tr>"
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def _label_sizes(found: Inspection) -> str:
    known = all(site.label_ml is not None for site in found.sites.values())
    unit = "ml" if known else "pixels" if found.flat else "voxels"
    sizes = {
        site: [(line.label_ml or 0.0) if known else float(line.label_voxels) for line in lines]
        for site, lines in found.cases.items()
    }
    means = f"One dot per case, in {unit}, all classes together; the bar is the median."
    return _section("Label sizes", means, dots(sizes, f"Label sizes in {unit} by site"))


def _settings(found: Inspection) -> str:
    body = "".join(
        f'<tr><th scope="row">{escape(path)}</th><td class="words">{escape(value)}</td>'
        f'<td class="words">{escape(origin)}</td></tr>'
        for path, value, origin in words.setting_rows(found)
    )
    top = "".join(f'<th scope="col">{name}</th>' for name in ("setting", "value", "why"))
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'
