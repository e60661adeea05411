"""An inspection as text for terminals, and as tables for the page and for CSV files."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from autofedavg.core.errors import printable
from autofedavg.tasks.imaging.prepared import SPLITS
from autofedavg.tasks.inspection.comparison import HIGH, LOW, CaseLine, MedianRange, SiteFacts

if TYPE_CHECKING:
    from autofedavg.tasks.inspection.look import Inspection

BARS = " ▁▂▃▄▅▆▇█"
MOST = 20  # oddities listed in full
WIDEST = 26  # letters of a site's name
SHIFT_MEANS = (
    "How far two sites' intensities lie apart (Wasserstein distance over the common spread). "
    "0: alike. 1: apart by one standard deviation of all sites together."
)
SITES_MEAN = (
    "One column per site: the median over its cases, and in brackets the smallest and largest."
)
SPARKS_MEAN = (
    "How many voxels have which intensity, on one scale for all sites; 0 is left out, and "
    "bars far higher than the others are cut."
)
SETTINGS_MEAN = "What a study that leaves them open will use."
Row = tuple[str, list[str]]


def text(found: Inspection, width: int) -> str:
    """An inspection without its pictures."""
    parts = [headline(found), "", *_table(site_rows(found), [*found.sites], width)]
    parts += _wrapped([SITES_MEAN], width)
    for channel in range(len(found.shifts)):
        named = channel_name(found, channel)
        parts += ["", f"Intensities{named}", *_sparks(found, channel, width)]
        for title, table in matrices(found, channel):
            rows = [*zip(found.sites, cells(table), strict=True)]
            parts += ["", title, *_table(rows, [*found.sites], width)]
    parts += _wrapped([SHIFT_MEANS], width)
    parts += ["", "What sets sites apart", *_wrapped(found.differences, width, "- ")]
    odd = found.oddities[:MOST]
    if len(found.oddities) > MOST:
        odd.append(f"and {len(found.oddities) - MOST} more; inspection.json has all")
    parts += ["", "Worth a look", *_wrapped(odd or ["nothing odd was found"], width, "- ")]
    parts += ["", "Settings worked out from the data", *_wrapped([SETTINGS_MEAN], width)]
    parts += _wrapped(
        [f"{path} = {value}  ({origin})" for path, value, origin in setting_rows(found)],
        width,
        "- ",
    )
    return "\n".join(printable(line).rstrip() for line in parts) + "\n"


def site_rows(found: Inspection) -> list[Row]:
    """(what, a cell for every site)."""
    sites = list(found.sites.values())
    rows: list[Row] = [
        ("cases", [str(site.cases) for site in sites]),
        ("patients", [str(site.patients) for site in sites]),
    ]
    for split in SPLITS:
        counts = [site.splits.get(split, 0) for site in sites]
        if split != "holdout" or any(counts):
            drawn = [str(n) if any(s.splits) else "?" for n, s in zip(counts, sites, strict=True)]
            rows.append((split, drawn))
    axes = range(len(sites[0].grid))
    rows += [(f"grid, axis {k + 1}", [_spread(s.grid[k]) for s in sites]) for k in axes]
    if found.flat:
        rows.append(("spacing", ["flat" for _ in sites]))
    else:
        rows += [
            (f"spacing, axis {k + 1}, mm",
             ["unknown" if s.spacing is None else _spread(s.spacing[k]) for s in sites])
            for k in axes
        ]  # fmt: skip
    for channel in range(len(found.shifts)):
        for level, name in ((LOW, "low"), (50.0, "median"), (HIGH, "high")):
            title = f"intensity, {level:g} %{channel_name(found, channel)}"
            seen = [getattr(site.intensities[channel], name) for site in sites]
            rows.append((title, [number(value) for value in seen]))
    unit = "pixels" if found.flat else "voxels"
    for name in found.classes:
        rows.append((f"class {name}, % of {unit}", [number(100 * s.shares[name]) for s in sites]))
    rows += _label_rows(unit, [site.label_voxels for site in sites])
    if any(site.label_ml for site in sites):
        rows += _label_rows("ml", [site.label_ml for site in sites])
    return rows


def matrices(found: Inspection, channel: int) -> list[tuple[str, list[list[float]]]]:
    """(title, K x K distances between sites) as stored and normalised."""
    named = channel_name(found, channel)
    titles = (f"as stored{named}", f"after {found.normalise}{named}")
    tables = zip(titles, found.shifts[channel], strict=True)
    return [(f"Shift between sites {title}", table) for title, table in tables]


def setting_rows(found: Inspection) -> list[tuple[str, str, str]]:
    """(path, value, origin) of the settings derived from the data."""
    return [(path, _plain(value), origin) for path, value, origin, _ in found.settings]


def channel_name(found: Inspection, channel: int) -> str:
    """The suffix of a title if there are several channels."""
    return f", channel {channel + 1}" if len(found.shifts) > 1 else ""


def number(value: float) -> str:
    """A number with three digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def headline(found: Inspection) -> str:
    """The numbers of cases and sites, in one line."""
    cases = sum(site.cases for site in found.sites.values())
    left = f", {found.unlabelled} without a label left out" if found.unlabelled else ""
    sites = f"{len(found.sites)} site{'s' * (len(found.sites) != 1)}"
    return f"{found.name}: {cases} cases of {sites}{left}"


def cells(table: Sequence[Sequence[float]]) -> list[list[str]]:
    """The distances between sites as text."""
    return [
        ["-" if i == j else f"{value:.2f}" for j, value in enumerate(row)]
        for i, row in enumerate(table)
    ]


def _spread(known: MedianRange) -> str:
    middle, low, high = map(number, known)
    return middle if low == high else f"{middle} ({low}..{high})"


def _label_rows(unit: str, sizes: Sequence[MedianRange | None]) -> list[Row]:
    return [
        (f"label, {unit}", ["unknown" if s is None else number(s.median) for s in sizes]),
        (
            f"label, {unit}, range",
            ["unknown" if s is None else f"{number(s.low)}..{number(s.high)}" for s in sizes],
        ),
    ]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sparks(found: Inspection, channel: int, width: int) -> list[str]:
    seen = found.histograms[channel].before
    names = [_short(name) for name in seen.shares]
    lines = []
    for name, shares in zip(names, seen.shares.values(), strict=True):
        heights = (max(share > 0, round(8 * min(1.0, share / seen.top))) for share in shares)
        bars = "".join(BARS[height] for height in heights)
        lines.append(f"  {name:<{max(map(len, names))}}  {bars}")
    scale = f"{number(seen.low)} .. {number(seen.high)}"
    return [*lines, *_wrapped([f"{SPARKS_MEAN} Scale: {scale}."], width)]


def _table(rows: Sequence[Row], head: Sequence[str], width: int) -> list[str]:
    """As many columns side by side as fit, then the others below."""
    shown = [(_short(what), [*map(_short, row)]) for what, row in [("", head), *rows]]
    first = max(len(what) for what, _ in shown)
    widths = [max(map(len, column)) for column in zip(*(row for _, row in shown), strict=True)]
    lines: list[str] = []
    start = 0
    while start < len(widths):
        end, used = start + 1, 2 + first + 2 + widths[start]
        while end < len(widths) and used + 2 + widths[end] <= width:
            used += 2 + widths[end]
            end += 1
        lines += [""] if start else []
        for what, row in shown:
            part = "".join(f"  {row[k]:>{widths[k]}}" for k in range(start, end))
            lines.append(f"  {what:<{first}}{part}")
        start = end
    return lines


def _short(name: str) -> str:
    return name if len(name) <= WIDEST else name[: WIDEST - 1] + "…"


def _wrapped(sentences: Iterable[str], width: int, mark: str = "") -> list[str]:
    return [
        line
        for sentence in sentences
        for line in textwrap.wrap(
            sentence,
            max(width, 30),
            initial_indent=f"  {mark}",
            subsequent_indent="  " + " " * len(mark),
        )
    ]


def case_values(line: CaseLine) -> dict[str, Any]:
    """A case as one line of a table."""
    entry, facts = line.entry, line.facts
    values: dict[str, Any] = {
        "site": entry.site,
        "case": entry.case,
        "patient": entry.patient,
        "split": line.split,
        **_axes("grid", facts.grid),
        **_axes("spacing", facts.spacing or (None,) * len(facts.grid)),
        "zeros": facts.zeros,
    }
    for channel, (mean, deviation) in enumerate(facts.moments):
        mark = f"_channel_{channel + 1}" if facts.channels > 1 else ""
        values |= _percentiles(line.intensities(channel), mark)
        values |= {f"bright_mean{mark}": mean, f"bright_deviation{mark}": deviation}
    values |= {f"voxels_{name}": count for name, count in line.voxels.items()}
    return values | {"label_voxels": line.label_voxels, "label_ml": line.label_ml}


def site_values(site: str, facts: SiteFacts) -> dict[str, Any]:
    """A site as one line of a table."""
    values: dict[str, Any] = {"site": site, "cases": facts.cases, "patients": facts.patients}
    values |= {split: facts.splits.get(split, 0) for split in SPLITS}
    spreads: dict[str, MedianRange | None] = {
        **_axes("grid", facts.grid),
        **_axes("spacing", facts.spacing or (None,) * len(facts.grid)),
        "label_voxels": facts.label_voxels,
        "label_ml": facts.label_ml,
    }
    for name, known in spreads.items():
        for part in MedianRange._fields:
            values[f"{name}_{part}"] = None if known is None else getattr(known, part)
    for channel, seen in enumerate(facts.intensities):
        values |= _percentiles(seen, f"_channel_{channel + 1}" * (len(facts.intensities) > 1))
    return values | {f"share_{name}": share for name, share in facts.shares.items()}


def _axes(name: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"{name}_{axis}": value for axis, value in enumerate(values, 1)}


def _percentiles(seen: MedianRange, mark: str) -> dict[str, float]:
    levels = ((LOW, seen.low), (50.0, seen.median), (HIGH, seen.high))
    return {f"intensity_{level:g}{mark}": value for level, value in levels}


def csv_table(rows: Sequence[dict[str, Any]]) -> str:
    """Lines with the same keys as CSV."""
    stream = io.StringIO()
    table = csv.DictWriter(stream, [*rows[0]], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return stream.getvalue()
