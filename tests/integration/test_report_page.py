"""The report as files: the page's words, its tables against the CSV files, and hard input."""

import csv
import html
import io
import json
import os
import re
from html.parser import HTMLParser

import pytest

from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.report.build import build_report
from autofedavg.report.repeats import MANY
from folders import METHODS, write_study, written_anew

EVIL = "<script>alert('site')</script>"


@pytest.fixture(scope="module")
def written(tiny_home, tmp_path_factory):
    """The tiny study's report, through the command."""
    from autofedavg import cli

    out = tmp_path_factory.mktemp("report")
    assert cli._main(["report", str(tiny_home), "--out", str(out)]) == 0
    return out


class Tables(HTMLParser):
    """The texts of a page's tables, by the table's id: lines of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables, self._at, self._cell = {}, None, None
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        if tag == "table":
            self._at = self.tables.setdefault(dict(attrs).get("id", ""), [])
        elif tag == "tr":
            self._at.append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag) -> None:
        if tag in ("td", "th"):
            self._at[-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data) -> None:
        if self._cell is not None:
            self._cell.append(data)


def test_every_table_and_figure_has_its_files(written) -> None:
    tables = {path.name for path in (written / "tables").iterdir()}
    for name in ("scores", "weights", "differences", "traffic", "time", "speed", "runs", "machines",
                 "data", "settings", "settings-rows"):  # fmt: skip
        assert {f"{name}.{ending}" for ending in ("csv", "md", "tex", "json", "txt")} <= tables
    figures = sorted((written / "figures").iterdir())
    stems = {path.stem for path in figures}
    assert {"alpha", "validation", "loss", "simplex-n-dirichlet", "differences", "matrices",
            "traffic", "time"} <= stems  # fmt: skip
    assert {stem for stem in stems if stem.startswith("examples-")}
    for stem in stems:
        svg = (written / "figures" / f"{stem}.svg").read_text()
        assert svg.startswith("<svg")
        assert (written / "figures" / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
    assert {path.stem for path in (written / "cases").iterdir()} == {
        "local-only", "fedavg", "n-dirichlet",
    }  # fmt: skip


def test_the_pages_numbers_are_those_of_the_csv_files(written) -> None:
    shown = Tables((written / "index.html").read_text()).tables
    for name, decimals in (("scores", 2), ("weights", 3), ("traffic", 3), ("time", 3)):
        lines = list(csv.reader(io.StringIO((written / "tables" / f"{name}.csv").read_text())))
        heads = lines[0][1::3]
        assert shown[f"table-{name}"][0][1:] == heads
        for cells, line in zip(shown[f"table-{name}"][1:], lines[1:], strict=True):
            assert cells[0] == line[0]
            wanted = [f"{float(v):.{decimals}f}" if v else "" for v in line[1::3]]
            assert [re.sub(r"[†\s].*", "", cell) for cell in cells[1:]] == wanted


def test_every_number_leads_to_its_cases(written) -> None:
    text = (written / "index.html").read_text()
    scores = re.search(r'<table id="table-scores".*?</table>', text, re.DOTALL)[0]
    scores = re.sub(r' title="[^"]*"', "", scores)
    links = re.findall(r'<a href="#([^"]+)"', scores)
    assert len(links) == len(re.findall(r"\d\d?\.\d\d", scores))
    assert set(links) <= set(re.findall(r' id="([^"]+)"', text))


def test_links_lead_to_files_that_are_there(written) -> None:
    text = (written / "index.html").read_text()
    for link in set(re.findall(r'href="([^"#][^"]*)"', text)):
        assert (written / html.unescape(link)).is_file(), link


def test_the_page_stands_alone(written) -> None:
    text = (written / "index.html").read_text()
    assert text.count("<script>") == 2
    assert not re.search(r"<(?:link|iframe|object|embed|base)\b", text)
    text = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    assert "connect-src 'none'" in html.unescape(text)
    assert (written / "index.html").stat().st_size < 5_000_000


def test_provenance_is_on_the_page(written, tiny_home) -> None:
    tables = Tables((written / "index.html").read_text()).tables
    settings = {line[0]: line[1:] for line in tables["table-settings"][1:]}
    assert settings["training.batch_size"] == ["2", "study"]
    assert settings["task.pipeline.loss"] == ['"dice"', "paper Sec. 4.2.1"]
    rows = tables["table-settings-rows"]
    learn_on = rows[0].index("method.learn_on")
    assert [line[learn_on] for line in rows[1:]] == ["", "", '"validation" [ours: decision 3]']
    about = json.loads((tiny_home / "fedavg" / "seed-0" / "environment.json").read_text())
    machine = {line[0]: line[1] for line in tables["table-machines"][1:]}
    assert machine["torch"] == about["versions"]["torch"]
    assert machine["processor"] == (about["processor"] or "not recorded")
    messages = (written / "tables" / "data.txt").read_text()
    assert about["data"]["split_sha256"] in messages
    assert "weights learned on the validation cases, which also chose the tested model" in messages
    states = [line[1] for line in tables["table-runs"][1:]]
    assert states == ["finished"] * 3


def test_markup_in_names_stays_text(tmp_path, say) -> None:
    labels = {"fedavg": "</script><img src=x onerror=alert(1)>", "n-dirichlet": "{{ 7 * 7 }}"}
    study = write_study(
        tmp_path / "s", sites=(EVIL, "B & C", "\"D'"), labels=labels, title="<b>T</b>"
    )
    code, _, err = say("report", study, "--out", tmp_path / "out", "--no-examples")
    assert code == 0, err
    text = (tmp_path / "out" / "index.html").read_text()
    assert EVIL not in text
    assert "<img src=x" not in text
    assert "<b>T" not in text
    assert html.escape(EVIL, quote=False).replace("'", "&#39;") in text
    assert "{{ 7 * 7 }}" in text
    for figure in (tmp_path / "out" / "figures").glob("*.svg"):
        assert "<script" not in figure.read_text()


def test_missing_seeds_are_shown(tmp_path, say) -> None:
    study = write_study(tmp_path / "s", seeds=(0, 1), missing=[("fedavg", 1), ("l-softmax", 0)])
    code, out, err = say("report", study, "--out", tmp_path / "out", "--no-examples")
    assert code == 0, err
    assert "FEDAVG: seed 1 missing, not begun." in out
    assert "L-SOFTMAX: seed 0 missing, not begun." in out
    tables = Tables((tmp_path / "out" / "index.html").read_text()).tables
    states = {line[0]: line[1] for line in tables["table-runs"][1:]}
    assert states["FEDAVG, seed 1"] == "missing"
    assert states["FEDAVG, seed 0"] == "finished"
    _, out, _ = say("report", study / "fedavg" / "seed-0")
    assert "missing" not in out


def test_a_folder_without_status_is_not_begun(tmp_path, say) -> None:
    study = write_study(tmp_path / "s")
    run = study / "n-dirichlet" / "seed-0"
    for name in ("status.json", "rounds.jsonl", "scores.csv"):
        (run / name).unlink()
    code, out, err = say("report", study, "--out", tmp_path / "out", "--no-examples")
    assert code == 0, err
    assert "N-DIRICHLET, seed 0: not begun, not counted." in out


def test_a_run_half_way_is_drawn_and_not_counted(tmp_path, say) -> None:
    study = write_study(tmp_path / "s", rounds=6)
    run = study / "n-dirichlet" / "seed-0"
    lines = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rounds.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:20])
    (run / "scores.csv").unlink()
    (run / "status.json").write_text('{"schema": 1, "state": "running"}')
    with RunFolder(run).lock():
        code, out, err = say("report", study, "--out", tmp_path / "out", "--no-examples")
    assert code == 0, err
    assert "N-DIRICHLET, seed 0: running, not counted." in out
    text = (tmp_path / "out" / "index.html").read_text()
    assert "N-DIRICHLET: round 3 of 6." in text
    assert "Not complete: 1 run(s) not finished, 0 not begun." in text
    rows = csv.DictReader(io.StringIO((tmp_path / "out" / "figures" / "alpha.csv").read_text()))
    assert {row["t"] for row in rows if row["row"] == "N-DIRICHLET"} == {"1", "2", "3"}


@pytest.mark.parametrize("sites", [1, 2, 40])
def test_other_numbers_of_sites(tmp_path, say, sites) -> None:
    methods = None if sites > 1 else {k: METHODS[k] for k in ("fedavg", "local-only")}
    study = write_study(tmp_path / "s", methods, sites=[f"site {k:02d}" for k in range(sites)])
    code, _, err = say("report", study, "--out", tmp_path / "out", "--no-examples")
    assert code == 0, err
    text = (tmp_path / "out" / "index.html").read_text()
    shown = Tables(text).tables
    aside = sites > MANY  # with a table of their own
    own = "mean" if aside else "site 00"
    assert f'<tr data-row="LOCAL-ONLY"><th scope="row">LOCAL-ONLY - {own}</th>' in text
    assert len(shown["table-scores"][0]) == 1 + 3 + (0 if aside else sites)
    assert ("table-sites" in shown) == aside
    if aside:
        assert len(shown["table-sites"]) == len(shown["table-weights"]) == 1 + sites
        assert len(shown["table-differences"]) == 1 + sites + 1


@pytest.mark.slow
def test_five_hundred_runs(tmp_path, say, monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # made-up folders need not survive a crash
    dirichlet = METHODS["n-dirichlet"]
    methods = {f"t{n}": {**dirichlet, "t0": n} for n in range(1, 100)}
    methods["fedavg"] = METHODS["fedavg"]
    study = write_study(tmp_path / "s", methods, seeds=range(5), rounds=4, cases=3)
    code, _, err = say("report", study, "--out", tmp_path / "out", "--no-examples")
    assert code == 0, err
    assert (tmp_path / "out" / "index.html").stat().st_size < 8_000_000
    shown = Tables((tmp_path / "out" / "index.html").read_text()).tables
    assert len(shown["table-scores"]) == 101
    assert len(shown["table-runs"]) == 501
    with (tmp_path / "out" / "figures" / "alpha.csv").open() as handle:
        assert len({row["row"] for row in csv.DictReader(handle)}) == 99


def test_many_cases_are_linked_as_files(tmp_path) -> None:
    study = write_study(tmp_path / "s", cases=400)
    made = build_report([study], examples=False)
    text = made.page()
    links = set(re.findall(r'<a href="([^"]+)"[^>]*>(?:<strong>)?\d', text))
    assert links == {f"cases/{name}.csv" for name in METHODS}
    lines = made.files["cases/fedavg.csv"]().decode().splitlines()
    assert len(lines) == 1 + 4 * 3 * 400


def test_runs_of_different_tasks_are_refused(tmp_path, say) -> None:
    one, other = write_study(tmp_path / "a"), write_study(tmp_path / "b")
    for config in other.rglob("config.toml"):
        config.write_text(config.read_text().replace('"made-up"', '"something-else"'))
    study = other / "study.json"  # another study would be a chapter of its own
    study.write_text(study.read_text().replace('"name": "b"', '"name": "a"'))
    code, _, err = say("report", one, other, "--out", tmp_path / "out")
    assert code == 1
    assert "the task differs from that of" in err
    assert not (tmp_path / "out").exists()


def test_without_the_extra_the_command_to_install_it_is_told(tmp_path, say, monkeypatch) -> None:
    import sys

    study = write_study(tmp_path / "s")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    code, _, err = say("report", study, "--out", tmp_path / "out", "--no-examples")
    assert code == 2
    assert "pip install 'autofedavg[report]'" in err
    assert say("report", study)[0] == 0


def test_a_folder_that_cannot_be_written(tmp_path, say) -> None:
    study = write_study(tmp_path / "s")
    (tmp_path / "file").write_text("")
    code, _, err = say("report", study, "--out", tmp_path / "file", "--no-examples")
    assert code == 1
    assert err == f"error: {tmp_path / 'file'}: this is a file; name another folder with --out\n"


def test_rows_of_one_label_are_told_apart(tmp_path) -> None:
    methods = {
        "fedavg": METHODS["fedavg"],
        "one": METHODS["n-dirichlet"],
        "other": {**METHODS["n-dirichlet"], "t0": 5},
    }
    study = write_study(tmp_path / "s", methods, labels={"one": "Ours", "other": "Ours"})
    made = build_report([study], examples=False)
    labels = [label for label, _ in made.tables["scores"][0].rows]
    assert labels == ["FEDAVG", "Ours (one)", "Ours (other)"]
    alpha = made.files["figures/alpha.csv"]().decode()
    assert {row["row"] for row in csv.DictReader(io.StringIO(alpha))} == set(labels[1:])


def test_an_earlier_reports_files_do_not_stay(tmp_path, say) -> None:
    study = write_study(tmp_path / "s")
    out = tmp_path / "out"
    assert say("report", study, "--out", out, "--no-examples")[0] == 0
    (out / "mine.txt").write_text("kept")
    assert (out / "cases" / "l-softmax.csv").exists()
    assert say("report", study / "fedavg", "--out", out, "--no-examples")[0] == 0
    assert not (out / "cases" / "l-softmax.csv").exists()
    assert not (out / "figures" / "simplex-n-dirichlet.svg").exists()
    assert (out / "cases" / "fedavg.csv").exists()
    assert (out / "mine.txt").exists()


def test_pictures_of_cases_are_removed_when_they_are_left_out(tiny_home, tmp_path, say) -> None:
    assert say("report", tiny_home, "--out", tmp_path)[0] == 0
    assert list((tmp_path / "figures").glob("examples-*"))
    assert say("report", tiny_home, "--out", tmp_path, "--no-examples")[0] == 0
    assert not list((tmp_path / "figures").glob("examples-*"))


def test_rows_whose_names_end_in_numbers_keep_their_own_cases(tmp_path) -> None:
    methods = {"fedavg": METHODS["fedavg"], "fedavg-1": METHODS["fedavg"]}
    text = build_report([write_study(tmp_path / "s", methods)], examples=False).page()
    found = re.findall(r' id="([^"]+)"', text)
    assert len(found) == len(set(found))


def test_absent_sites_are_told(tmp_path, say) -> None:
    study = write_study(tmp_path / "s")
    path = study / "n-dirichlet" / "seed-0" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2]["answered"] = ["A", "B"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, out, _ = say("report", study)
    assert "N-DIRICHLET: in 1 of 5 rounds not every site answered" in out


def test_n_and_the_tested_cases_are_told_apart(tmp_path, say) -> None:
    _, out, _ = say("report", write_study(tmp_path / "s"))
    assert "n counts all cases of a site; tested are 6 of A, 6 of B, 6 of C." in out


def test_a_failed_repeat_does_not_cut_the_curves_of_the_others(tmp_path) -> None:
    study = write_study(tmp_path / "s", seeds=(0, 1))
    run = study / "n-dirichlet" / "seed-1"
    first, *_ = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text(first)
    (run / "status.json").write_text('{"schema": 1, "state": "failed", "error": "x"}')
    alpha = build_report([study], examples=False).files["figures/alpha.csv"]().decode()
    rounds = [r for r in csv.DictReader(io.StringIO(alpha)) if r["row"] == "N-DIRICHLET"]
    assert {row["t"] for row in rounds} == {"1", "2", "3", "4", "5"}


def test_a_finished_run_without_scores_is_not_counted(tmp_path, say) -> None:
    study = write_study(tmp_path / "s")
    (study / "n-dirichlet" / "seed-0" / "scores.csv").unlink()
    written_anew(study)
    code, out, err = say("report", study, "--out", tmp_path / "out", "--no-examples")
    assert code == 0, err
    assert "N-DIRICHLET, seed 0: finished, but without test scores; not counted." in out
    assert "N-DIRICHLET - A" not in out


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"alpha": [0.5, 0.5]}, "round 5 has 2 weights, not 3"),
        ({"alpha": [float("nan"), 0.5, 0.5]}, "round 5 has a number that is not finite"),
        ({"test": {"mean": float("inf")}}, "round 5 has a number that is not finite"),
        ({"learning_loss": {"A": [1.0, float("nan")]}}, "round 5 has a number that is not finite"),
        ({"learning_loss": [1.0]}, "a line is damaged ('learning_loss' is not what"),
        ({"schema": 99}, "written by a newer version (schema 99)"),
        (None, "a line is damaged (not an object)"),
    ],
)
def test_rounds_that_no_run_writes_are_refused_by_folder(tmp_path, say, damage, told) -> None:
    study = write_study(tmp_path / "s")
    path = study / "n-dirichlet" / "seed-0" / "rounds.jsonl"
    *lines, last = path.read_text().splitlines(keepends=True)
    changed = {**json.loads(last), **damage} if damage else []
    path.write_text("".join(lines) + json.dumps(changed) + "\n")
    code, _, err = say("report", study, "--out", tmp_path / "out", "--no-examples")
    assert code == 1
    assert told in err
    assert str(path.parent) in err


@pytest.mark.parametrize("name", ["a\nb", "bell \x07", "end\\", "line\u2028sep", "\x1b[31mred"])
def test_characters_that_cannot_be_drawn_are_replaced(tmp_path, say, name) -> None:
    study = write_study(tmp_path / "s", sites=(name, "B", "C"), labels={"fedavg": name})
    code, _, err = say("report", study, "--out", tmp_path / "out", "--no-examples")
    assert code == 0, err


def test_rows_of_different_seeds_are_told(tmp_path) -> None:
    study = write_study(tmp_path / "s", seeds=(0, 1), missing=[("fedavg", 0), ("n-dirichlet", 1)])
    text = build_report([study], examples=False).page()
    assert "Rows were not run with the same seeds" in text


def test_a_page_of_one_row_says_that_there_is_no_second(tiny_home, tmp_path, say) -> None:
    code, _, err = say("report", tiny_home / "fedavg", "--out", tmp_path)
    assert code == 0, err
    text = (tmp_path / "index.html").read_text()
    assert "no pictures: there is no second row" in text
    assert "autofedavg resume" not in text
    assert "Scores of every case" in text


@pytest.mark.parametrize("option", [("--method", "n-dirichlet"), ("--no-examples",)])
def test_options_of_the_page_are_refused_without_one(tiny_home, say, option) -> None:
    code, out, err = say("report", tiny_home, *option)
    assert (code, out) == (2, "")
    assert f"{option[0]}: this is about the page, and no page is asked for" in err
    assert "--out" in err
