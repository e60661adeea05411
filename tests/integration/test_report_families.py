"""Rows of many families stand under their families' names; few rows stay as the study has them."""

import csv
import json

import pytest

from autofedavg.report.build import build_report, report_tables
from autofedavg.report.families import FEW, families
from autofedavg.report.figures import all_figures
from autofedavg.report.formats import FORMATS
from autofedavg.report.read import read_results
from folders import METHODS, write_study

# In no order of families, and with a method that nobody here knows.
MANY = {
    "scaffold": "Local correction",
    "fedavg": "Averaging",
    "nobodys": "Other",
    "median": "Robust",
    "krum": "Robust",
    "local-only": "Control",
    "fedadam": "Server step",
}
IN_ORDER = ["fedavg", "median", "krum", "fedadam", "scaffold", "local-only", "nobodys"]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    methods = {name: {"name": name} for name in MANY} | {"krum": {"name": "multi-krum"}}
    return write_study(tmp_path_factory.mktemp("families") / "many", methods)


def table_of(home):
    return next(t for t in report_tables(read_results([home]))["scores"] if t.name == "scores")


def test_rows_are_in_the_order_of_their_families(many) -> None:
    results = read_results([many])
    assert [row.name for row in results.rows] == IN_ORDER
    assert dict(families(results))["robust"] == ["MEDIAN", "KRUM"]
    assert results.baseline == "fedavg"


def test_every_format_says_the_families(many) -> None:
    table = table_of(many)
    made = {name: write(table) for name, (_, write) in FORMATS.items()}
    headings = list(dict.fromkeys(MANY[name] for name in IN_ORDER))
    for name, begin in (
        ("text", ""),
        ("markdown", "| *"),
        ("latex", r"\multicolumn{7}{l}{\textit{"),
    ):
        found = [made[name].find(f"\n{begin}{heading}") for heading in headings]
        assert -1 not in found
        assert found == sorted(found)
    rows = list(csv.DictReader(made["csv"].splitlines()))
    told = {(line["row"], line["family"].capitalize()) for line in rows}
    assert {(name.upper(), MANY[name]) for name in MANY if name != "local-only"} < told | {
        ("LOCAL-ONLY", "Control")
    }
    assert [line["family"] for line in json.loads(made["json"])["rows"]] == [*table.families]


def test_the_page_and_its_figures_say_the_families(many) -> None:
    pytest.importorskip("vl_convert", reason="the extra 'report' is not installed")
    page = build_report([many], examples=False).page()
    assert page.count('<tr class="family"><th scope="rowgroup"') >= len(set(MANY.values()))
    figures = {f.name: f for part in all_figures(read_results([many])).values() for f in part}
    for name in ("differences", "traffic", "time"):
        panels = figures[name].spec["vconcat"]
        titles = [panel["title"]["text"] for panel in panels]
        assert "Robust" in titles
        assert len(titles) == len(set(titles))


def test_few_families_stay_as_they_are(tmp_path) -> None:
    few = {"fedprox": {"name": "fedprox"}, **METHODS}  # four families, five rows
    home = write_study(tmp_path / "few", few)
    results = read_results([home])
    assert FEW == 4
    assert [row.name for row in results.rows] == [*few]
    table = table_of(home)
    assert not table.families
    assert "family" not in "".join(write(table) for _, write in FORMATS.values())
    figures = {f.name: f for part in all_figures(results).values() for f in part}
    assert "layer" in figures["differences"].spec
