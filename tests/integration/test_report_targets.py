"""What it takes to reach a score: rounds, bytes and seconds, in a table and as a figure."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import vl_convert

from autofedavg.report.draw import VERSION
from autofedavg.report.figures.bytes_sent import bytes_figure
from autofedavg.report.read import read_results
from autofedavg.report.spent import spent_by
from autofedavg.report.targets import targets_table
from folders import METHODS, write_study, written_anew

ROWS = {name: METHODS[name] for name in ("fedavg", "n-dirichlet", "l-softmax")}
MB = {"FEDAVG": 0.006, "N-DIRICHLET": 0.01212, "L-SOFTMAX": 0.01212}  # a round, by folders.py
SECONDS = (1.0, 1.6)  # of the first round's calls, without and with learning; then 2.1 a round


def score(row, seed, t):
    """FedAvg gains ten points a round, N-Dirichlet twenty; L-Softmax stays low in seed 1."""
    step = {"fedavg": 0.1, "n-dirichlet": 0.2, "l-softmax": 0.1 if seed == 0 else 0.01}[row]
    return round(step * t, 6)


def write_scores(home, split, scores=score) -> None:
    for path in home.glob("*/**/rounds.jsonl"):
        row, seed = path.relative_to(home).parts[0], int(path.parent.name.removeprefix("seed-"))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line[split] = {"mean": scores(row, seed, line["t"]), "sites": {}}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def home(tmp_path):
    return write_study(tmp_path / "study", ROWS, seeds=(0, 1))


def texts(table):
    return {label: [cell.text for cell in cells] for label, cells in table.rows}


def test_a_given_target_through_the_command(home, say) -> None:
    write_scores(home, "test")
    code, out, _ = say("report", home, "--target", "40", "--target", "57", "--json")
    assert code == 0
    (table,) = [table for table in json.loads(out) if table["name"] == "targets"]
    rows = {row["row"]: row["columns"] for row in table["rows"]}
    fedavg, dirichlet, softmax = (rows[name] for name in MB)
    assert list(fedavg) == [f"{unit} to {at} %" for at in ("40.00", "57.00")
                            for unit in ("rounds", "MB", "seconds")]  # fmt: skip
    assert fedavg["rounds to 40.00 %"]["value"] == 4
    assert fedavg["MB to 40.00 %"]["value"] == pytest.approx(4 * MB["FEDAVG"])
    assert fedavg["seconds to 40.00 %"]["value"] == pytest.approx(SECONDS[0] + 3 * 2.1)
    assert fedavg["rounds to 57.00 %"] == {"value": None, "sd": None, "test": None,
                                           "text": "not reached in 5 rounds"}  # fmt: skip
    assert dirichlet["rounds to 57.00 %"]["value"] == 3
    assert dirichlet["MB to 57.00 %"]["value"] == pytest.approx(3 * MB["N-DIRICHLET"])
    assert dirichlet["seconds to 57.00 %"]["value"] == pytest.approx(SECONDS[1] + 2 * 2.1)
    assert softmax["rounds to 40.00 %"]["value"] is None
    assert softmax["rounds to 40.00 %"]["text"] == "1 of 2 seeds: 4"
    assert "Targets were given." in table["notes"][0]
    assert "no model, round or setting is chosen by them" in table["notes"][1]
    assert "not reached" in say("report", home, "--target", "99")[1]
    assert "reach a score" not in say("report", home)[1]


@pytest.mark.parametrize("score", ["0", "-1", "100.5", "nan", "inf"])
def test_a_target_that_no_score_can_reach_is_refused(home, say, score) -> None:
    code, _, err = say("report", home, "--target", score)
    assert code == 2
    assert "not a score above 0 and up to 100 percent" in err


def test_targets_by_rule_are_shares_of_the_baselines_last_score(home) -> None:
    write_scores(home, "test")
    table = targets_table(read_results([home]))
    assert table.heads[::3] == tuple(f"rounds to {x:.2f} %" for x in (45.0, 47.5, 49.5))
    assert "90, 95, 99 % of the score of FEDAVG after its last round, 50.00 %" in table.notes[0]
    assert texts(table)["FEDAVG"][::3] == ["5", "5", "5"]
    assert texts(table)["N-DIRICHLET"][::3] == ["3", "3", "3"]


def test_a_score_that_is_the_target_reaches_it(home) -> None:
    """100 * 0.57 is below 57 in binary fractions."""
    write_scores(home, "test", lambda row, seed, t: 0.57 if t > 1 else 0.1)
    table = targets_table(replace(read_results([home]), targets=(57.0,)))
    assert texts(table)["FEDAVG"][0] == "2"


def test_a_score_that_is_a_share_of_the_baselines_reaches_it(home) -> None:
    """90 % of 64.4 is above 57.96 in binary fractions."""
    write_scores(home, "test", lambda row, seed, t: {4: 0.5796, 5: 0.644}.get(t, 0.1))
    assert texts(targets_table(read_results([home])))["FEDAVG"][0] == "4"


def test_a_target_that_no_seed_reached_names_the_rounds_that_all_had(home) -> None:
    """Seed 1 was not tested after round 3."""
    write_scores(home, "test", lambda row, seed, t: 0.1 if seed == 0 or t <= 3 else None)
    table = targets_table(replace(read_results([home]), targets=(50.0,)))
    assert texts(table)["FEDAVG"][0] == "not reached in 3 rounds"


def test_mean_and_range_over_seeds(home) -> None:
    write_scores(home, "test", lambda row, seed, t: 0.1 * t * (1 + seed))
    table = targets_table(read_results([home]))  # last scores 50 and 100: targets of 75
    assert texts(table)["FEDAVG"][0] == "1 of 2 seeds: 4"
    write_scores(home, "test", lambda row, seed, t: min(0.5, 0.1 * t * (1 + seed)))
    table = targets_table(read_results([home]))
    assert texts(table)["FEDAVG"][0] == "4 (3 to 5)"
    assert dict(table.rows)["FEDAVG"][0].value == 4.0


def test_validation_scores_where_not_all_rows_were_tested(home) -> None:
    """One split for all rows: what is compared must be the same."""
    write_scores(home, "validation")
    write_scores(home, "test", lambda row, seed, t: 0.9 if row != "fedavg" or t == 5 else None)
    table = targets_table(read_results([home]))
    assert "validation score after each round" in table.notes[0]
    assert not any("Test scores measure" in note for note in table.notes)
    assert "50.00 %" in table.notes[0]


def test_folds_of_a_seed_count_as_one(tmp_path) -> None:
    """The mean over folds reaches the target; a fold alone would sooner."""
    home = write_study(tmp_path / "study", {"fedavg": METHODS["fedavg"]})
    for fold in (0, 1):
        target = home / "fedavg" / f"fold-{fold}" / "seed-0"
        shutil.copytree(home / "fedavg" / "seed-0", target)
        config = target / "config.toml"
        config.write_text(config.read_text().replace("[task]", f"[task]\nfold = {fold}"))
        scores = target / "scores.csv"
        scores.write_text(scores.read_text().replace("case-", f"fold-{fold}-case-"))
        path = target / "rounds.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["test"] = {"mean": 0.1 * line["t"] + 0.2 * fold, "sites": {}}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(home / "fedavg" / "seed-0")
    (home / "study.json").unlink()
    written_anew(home)
    table = targets_table(replace(read_results([home], "fedavg"), targets=(50.0,)))
    assert texts(table)["FEDAVG"][0] == "4"
    assert dict(table.rows)["FEDAVG"][1].value == pytest.approx(4 * MB["FEDAVG"])


def test_without_a_baseline_there_are_no_targets_by_rule(tmp_path) -> None:
    home = write_study(tmp_path / "study", {"n-dirichlet": METHODS["n-dirichlet"]})
    assert targets_table(read_results([home])) is None


def test_a_pause_between_two_starts_is_not_counted(home) -> None:
    run = home / "fedavg" / "seed-0"
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for line in lines[2:]:
        line["time"] += 3600.0
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    about = json.loads((run / "environment.json").read_text())
    about["resumed"] = [{"after_round": 2}]
    (run / "environment.json").write_text(json.dumps(about))
    spent = spent_by(read_results([home]).row("fedavg").repeats[0])
    assert spent[5].seconds == pytest.approx(1.0 + 2.1 + 1.0 + 2.1 + 2.1)


def test_nothing_is_known_from_a_round_without_costs_on(home) -> None:
    run = home / "fedavg" / "seed-0"
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    del lines[3]["calls"]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(spent_by(read_results([home]).row("fedavg").repeats[0])) == [1, 2, 3]


# --- the figure -----------------------------------------------------------------------------------


def test_scores_stand_at_the_bytes_that_were_sent_for_them(home) -> None:
    write_scores(home, "validation")
    write_scores(home, "test")
    figure = bytes_figure(read_results([home]))
    panels = [panel["layer"][-1]["encoding"]["y"]["field"] for panel in figure.spec["vconcat"]]
    assert panels == ["validation", "test"]
    for item in figure.spec["data"]["values"]:
        assert item["MB"] == pytest.approx(item["t"] * MB[item["row"]])
        assert ("validation" in item) != ("test" in item)
    assert {item["split"] for item in figure.data} == {"validation", "test"}
    assert len(figure.data) == 2 * 3 * 2 * 5
    assert "evaluating is not counted" in figure.caption
    assert "logarithmic" not in figure.caption
    assert "FEDAVG 50.0 for 0 MB" in figure.about
    svg = vl_convert.vegalite_to_svg(figure.printed(), vl_version=VERSION)
    assert "test score, %" in svg
    assert "MB sent, all sites, both ways" in svg


def test_rows_that_cost_far_more_make_the_scale_logarithmic(tmp_path) -> None:
    sites = [f"s{k}" for k in range(8)]  # a learning round sends 1 + 7 / 2 times as much
    figure = bytes_figure(read_results([write_study(tmp_path / "study", ROWS, sites=sites)]))
    (panel,) = figure.spec["vconcat"]
    assert panel["layer"][-1]["encoding"]["x"]["scale"]["type"] == "log"
    assert "Bytes on a logarithmic scale." in figure.caption
    assert re.search(r"\d", vl_convert.vegalite_to_svg(figure.printed(), vl_version=VERSION))


def test_without_known_bytes_there_is_no_figure(home) -> None:
    for path in home.glob("*/seed-*/rounds.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            del line["calls"]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = read_results([home])
    assert bytes_figure(results) is None
    assert targets_table(results) is None
