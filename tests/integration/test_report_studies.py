"""Several studies in one report: the overview, the chapters, their files, and what is left out."""

import csv
import html
import io
import json
import re

import pytest

from autofedavg.experiment.archive import archive
from autofedavg.report.collection import by_study, read_studies
from autofedavg.report.figures.critical_difference import critical_difference_figure
from autofedavg.report.figures.risks import risks_figure
from autofedavg.report.figures.vega import COLOURS
from autofedavg.report.page import drawn
from autofedavg.report.ranks import critical_difference
from folders import METHODS, write_study, written_anew

ROWS = {name: METHODS[name] for name in ("fedavg", "n-dirichlet", "l-softmax")}
GAINS = {"n-dirichlet": (0.04, 0.05, 0.06), "l-softmax": (-0.01, 0.0, 0.01)}  # seed by seed

JOINTS = COLOURS[5]


def write_scores(home, gains=GAINS, base=0.5) -> None:
    """Every test score of a row: the base, and what the row gains with a seed."""
    for path in home.glob("*/seed-*/scores.csv"):
        row, seed = path.parts[-3], int(path.parts[-2].removeprefix("seed-"))
        value = base + gains.get(row, (0.0,) * 9)[seed]
        head, *lines = path.read_text().splitlines()
        kept = [f"{line.rsplit(',', 1)[0]},{value}" for line in lines]
        path.write_text("\n".join([head, *kept]) + "\n")
    written_anew(home)


def write_one(path, rows=ROWS, *, task="", **options):
    home = write_study(path, rows, seeds=(0, 1, 2), title=f"Study {path.name}", **options)
    write_scores(home)
    for config in home.rglob("config.toml") if task else ():
        config.write_text(config.read_text().replace('"made-up"', f'"{task}"'))
    return home


@pytest.fixture
def homes(tmp_path):
    """Three studies on other tasks; in the last one L-Softmax is ahead of all."""
    made = [write_one(tmp_path / name, task=f"task-{name}") for name in ("one", "two", "three")]
    write_scores(made[2], {**GAINS, "l-softmax": (0.2, 0.21, 0.22)})
    return made


def printed(say, *arguments):
    code, out, err = say("report", *arguments, "--json")
    assert code == 0, err
    return {table["name"]: table for table in json.loads(out)}


def column(table, name):
    return {row["row"]: row["columns"][name]["value"] for row in table["rows"]}


def test_the_overview_ranks_the_rows_that_studies_share(homes, say) -> None:
    tables = printed(say, *homes)
    assert list(tables)[:4] == ["overview", "ranks", "risks", "gains"]
    assert column(tables["overview"], "three") == pytest.approx(
        {"FEDAVG": 50.0, "N-DIRICHLET": 55.0, "L-SOFTMAX": 71.0}
    )
    assert column(tables["ranks"], "one") == {"FEDAVG": 2.5, "N-DIRICHLET": 1, "L-SOFTMAX": 2.5}
    assert list(column(tables["ranks"], "mean rank").items()) == [
        ("N-DIRICHLET", pytest.approx(4 / 3)),
        ("L-SOFTMAX", pytest.approx(2.0)),
        ("FEDAVG", pytest.approx(8 / 3)),
    ]
    said = " ".join(tables["ranks"]["notes"])
    # Rank sums 4, 6 and 8, two ties of two: (12 / 36 116 - 36) / (1 - 12 / 72) = 3.2
    assert "chi-square 3.20 with 2 degrees of freedom, p = 0.202" in said
    assert f"critical difference at the 5 % level is {critical_difference(3, 3):.2f} ranks" in said
    assert "Further behind N-DIRICHLET than that: none." in said
    assert {"one/scores", "two/scores", "three/scores", "one/weights"} <= set(tables)
    assert tables["two/scores"]["title"] == "two: Study two"


def test_the_row_with_the_least_risk_stands_first(homes, tmp_path, say) -> None:
    """55, 55 and 55 of 71 points; 50, 50 and 71; 50 everywhere: what each is behind, by hand."""
    table = printed(say, *homes)["risks"]
    assert list(column(table, "furthest behind").items()) == [
        ("L-SOFTMAX", pytest.approx(5.0)),
        ("N-DIRICHLET", pytest.approx(16.0)),
        ("FEDAVG", pytest.approx(21.0)),
    ]
    assert column(table, "three")["L-SOFTMAX"] == column(table, "one")["N-DIRICHLET"] == 0.0
    assert column(table, "two") == pytest.approx(
        {"L-SOFTMAX": 5.0, "N-DIRICHLET": 0.0, "FEDAVG": 5.0}
    )
    overview = read_studies(homes)
    said = "Least risk: L-SOFTMAX is at most 5.00 points behind the best row of a study."
    assert said in overview.short
    figure = risks_figure(overview)
    assert len(figure.data) == 9
    assert figure.about.startswith("Furthest behind: L-SOFTMAX 5.00, N-DIRICHLET 16.00")
    picture = drawn(figure).svg
    assert all(picture.count(colour) >= 3 for colour in COLOURS[:3])  # a dot for every row
    assert say("report", *homes, "--out", tmp_path / "page", "--no-examples")[0] == 0
    assert (tmp_path / "page" / "figures" / "risks.svg").is_file()


def test_differences_are_paired_by_seed_and_corrected(homes, say) -> None:
    gains = printed(say, *homes)["gains"]
    assert column(gains, "one") == pytest.approx({"N-DIRICHLET": 5.0, "L-SOFTMAX": 0.0}, abs=1e-9)
    assert column(gains, "all studies") == pytest.approx({"N-DIRICHLET": 5.0, "L-SOFTMAX": 7.0})
    single, corrected = (column(gains, name) for name in ("p", "p (Holm)"))
    assert corrected["N-DIRICHLET"] >= single["N-DIRICHLET"]
    assert "above FEDAVG: N-DIRICHLET; L-SOFTMAX, and below FEDAVG: none." in gains["notes"][-1]
    text = say("report", *homes)[1]
    assert "+5.00 [+2.52, +7.48]" in text
    assert "about other seeds of these studies, not about other studies" in text


def test_the_page_has_a_chapter_for_each_study(homes, tmp_path, say) -> None:
    out = tmp_path / "page"
    code, _, err = say("report", *homes, "--out", out, "--no-examples")
    assert (code, err) == (0, f"report written to {out / 'index.html'}\n")
    text = (out / "index.html").read_text()
    plain = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", plain) == [
        "Overview", "Study one", "Study two", "Study three",
    ]  # fmt: skip
    ids = re.findall(r'\bid="([^"]+)"', plain)
    assert len(ids) == len(set(ids))
    assert {"table-ranks", "figure-critical-difference", "study2-table-scores"} <= set(ids)
    anchors = set(re.findall(r'href="#([^"]+)"', plain))
    assert anchors <= set(ids)
    for link in set(re.findall(r'href="([^"#][^"]*)"', plain)):
        assert (out / html.unescape(link)).is_file(), link
    assert plain.count('<fieldset class="rows">') == 1
    assert len(re.findall(r'type="checkbox"', plain)) == 3
    ranks = list(csv.reader(io.StringIO((out / "tables" / "ranks.csv").read_text())))
    assert ranks[1][0] == "N-DIRICHLET"
    assert (out / "studies" / "two" / "tables" / "scores.csv").is_file()
    assert (out / "figures" / "critical-difference.pdf").read_bytes().startswith(b"%PDF")
    assert say("report", homes[0], "--out", out, "--no-examples")[0] == 0
    assert not list((out / "studies").rglob("*.csv"))


def test_in_a_browser_a_box_hides_its_row_in_all_chapters(homes, tmp_path, say, open_page) -> None:
    assert say("report", *homes, "--out", tmp_path / "page", "--no-examples")[0] == 0
    page = open_page(tmp_path / "page" / "index.html")
    page.locator("html[data-drawn]").wait_for(state="attached", timeout=120_000)
    assert (page.console, page.errors) == ([], [])
    figures = page.locator("figure[data-title]")
    assert page.locator("html").get_attribute("data-drawn") == str(figures.count())
    names = page.locator("#figure-critical-difference .live svg")
    assert "L-SOFTMAX" in names.text_content()
    page.locator("fieldset.rows input[value='L-SOFTMAX']").uncheck()
    page.wait_for_function(
        "!document.querySelector('#figure-critical-difference .live svg')"
        ".textContent.includes('L-SOFTMAX')"
    )
    assert page.locator("tr[data-row='L-SOFTMAX']:visible").count() == 0
    assert page.locator("#study3-table-scores tr[data-row='FEDAVG']").is_visible()


def test_the_diagram_joins_rows_that_do_not_differ(tmp_path) -> None:
    """With 30 studies in the same order, all rows differ; with three, neighbours do not."""
    names = [f"s{k:02d}" for k in range(30)]
    for name in names:
        home = write_study(tmp_path / name, ROWS, rounds=1, cases=1)
        write_scores(home, {"n-dirichlet": (0.1,), "l-softmax": (0.05,)})
    figure = critical_difference_figure(read_studies([tmp_path]))
    assert "Mean ranks: N-DIRICHLET 1.00, L-SOFTMAX 2.00, FEDAVG 3.00." in figure.about
    assert drawn(figure).svg.count(JOINTS) == 0
    few = read_studies([tmp_path / name for name in names[:3]])
    assert few.groups == [["N-DIRICHLET", "L-SOFTMAX"], ["L-SOFTMAX", "FEDAVG"]]
    picture = drawn(critical_difference_figure(few)).svg
    assert picture.count(JOINTS) == 2
    assert "CD 1.91" in picture


def test_two_studies_have_ranks_and_no_test(homes, tmp_path, say) -> None:
    code, out, _ = say("report", *homes[:2], "--out", tmp_path / "page", "--no-examples")
    assert code == 0
    assert "Ranks of 3 rows over 2 studies mean little" in out
    assert "chi-square" not in out
    text = (tmp_path / "page" / "index.html").read_text()
    assert 'id="figure-critical-difference"' not in text


def test_rows_that_not_all_studies_have_are_named(homes, tmp_path, say) -> None:
    more = {**ROWS, "local-only": METHODS["local-only"]}
    other = write_one(tmp_path / "four", more, task="task-four")
    other_method = {**ROWS, "l-softmax": {"name": "fedprox", "mu": 0.1}}
    last = write_one(tmp_path / "five", other_method, task="task-five")
    tables = printed(say, *homes[:1], other, last)
    assert list(column(tables["overview"], "one")) == ["FEDAVG", "N-DIRICHLET"]
    said = " ".join(tables["overview"]["notes"])
    assert "for want of a finished run with a global model in every study: local-only." in said
    assert "l-softmax is not one method in all studies (auto-fedavg, fedprox)" in said


def test_settings_that_differ_between_studies_are_named(homes, tmp_path, say) -> None:
    tuned = {**ROWS, "n-dirichlet": {**METHODS["n-dirichlet"], "t0": 5, "new_setting": 1}}
    other = write_one(tmp_path / "four", tuned, task="task-four")
    said = " ".join(printed(say, homes[0], other)["overview"]["notes"])
    assert "Settings that differ between studies: N-DIRICHLET (method.t0)." in said


def test_studies_without_a_common_row_have_chapters_alone(tmp_path, say) -> None:
    one = write_one(tmp_path / "one", {"fedavg": METHODS["fedavg"]}, task="a")
    two = write_one(tmp_path / "two", {"l-softmax": METHODS["l-softmax"]}, task="b")
    tables = printed(say, one, two)
    assert not {"overview", "ranks", "gains"} & set(tables)
    _, _, err = say("report", one, two)
    assert "no overview of the studies: 2 studies: one, two. They share 0 rows by name." in err
    assert "for want of a finished run with a global model in every study: fedavg, l-soft" in err
    code, *_ = say("report", one, two, "--out", tmp_path / "page", "--no-examples")
    assert code == 0
    assert "They share 0 rows by name." in (tmp_path / "page" / "index.html").read_text()


def test_studies_without_a_test_score_are_left_out_and_named(homes, tmp_path, say) -> None:
    trials = {f"{name}.trial-1": method for name, method in ROWS.items()}
    other = write_study(tmp_path / "tuned-trials", trials)
    for path in other.rglob("scores.csv"):
        path.write_text(path.read_text().splitlines()[0] + "\n")
    written_anew(other)
    alone, together = printed(say, *homes), printed(say, *homes, other)
    assert together["risks"] == alone["risks"]
    assert together["ranks"] == alone["ranks"]
    notes = together["overview"]["notes"]
    assert "Not compared, for want of a test score: tuned-trials." in " ".join(notes)
    assert "Repeats of a row: one 3; two 3; three 3." in " ".join(notes)
    assert "trial-1" not in " ".join(notes)
    code, *_ = say("report", *homes, other, "--out", tmp_path / "page", "--no-examples")
    assert code == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "4 studies: one, two, three, tuned-trials. They share 3 rows by name." in page
    _, _, err = say("report", homes[0], other)
    assert "Not compared, for want of a test score: tuned-trials." in err


def test_without_a_common_baseline_there_are_no_differences(homes, say) -> None:
    study = homes[1] / "study.json"
    study.write_text(study.read_text().replace('"baseline": "fedavg"', '"baseline": "l-softmax"'))
    assert "gains" not in printed(say, *homes)
    assert "gains" in printed(say, *homes, "--baseline", "fedavg")
    code, _, err = say("report", *homes, "--baseline", "nobody")
    assert code == 1
    assert "baseline 'nobody' is not among the runs" in err


def test_single_seeds_have_differences_without_intervals(tmp_path, say) -> None:
    homes = []
    for name in ("one", "two"):
        homes.append(write_study(tmp_path / name, ROWS))
        write_scores(homes[-1])
    gains = printed(say, *homes)["gains"]
    assert column(gains, "one")["N-DIRICHLET"] == pytest.approx(4.0)
    assert column(gains, "p")["N-DIRICHLET"] is None
    assert "so nothing is tested" in gains["notes"][-1]


def test_a_method_for_the_examples_must_be_in_some_study(homes, tmp_path, say) -> None:
    code, _, err = say("report", *homes, "--out", tmp_path / "page", "--method", "fedavk")
    assert code == 1
    assert "row 'fedavk' is not among the runs" in err


def test_targets_hold_for_every_study(homes, say) -> None:
    tables = printed(say, *homes, "--target", "30")
    for name in ("one", "two", "three"):
        assert "rounds to 30.00 %" in tables[f"{name}/targets"]["rows"][0]["columns"]


def test_runs_are_grouped_by_the_name_of_their_study(homes, tmp_path) -> None:
    """Parts of one study belong together, also in archives; runs that are missing are named."""
    one, two, three = homes
    assert list(by_study([one / "fedavg", one / "n-dirichlet"])) == ["one"]
    assert by_study([tmp_path]) == {"one": [one], "three": [three], "two": [two]}
    archive([one, two], tmp_path / "packed")
    assert list(read_studies([tmp_path / "packed"]).studies) == ["one", "two"]
    parts = by_study([one / "fedavg" / "seed-0", one / "n-dirichlet", two])
    assert parts == {"one": [one / "fedavg" / "seed-0", one / "n-dirichlet"], "two": [two]}
    gap = write_one(tmp_path / "gap", missing=[("fedavg", 2)])
    found = read_studies([gap, two]).studies["gap"]
    assert [(run.label, run.seed) for run in found.missing] == [("FEDAVG", 2)]


def test_runs_outside_of_studies_are_one_more(homes, tmp_path) -> None:
    alone = write_one(tmp_path / "alone")
    (alone / "study.json").unlink()
    assert list(by_study([alone])) == ["runs"]
    assert list(by_study([alone, homes[0]])) == ["one"]
    assert list(by_study([alone, *homes])) == ["runs", "one", "two", "three"]
