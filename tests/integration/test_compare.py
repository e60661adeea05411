"""`compare` through its public door: settings, environment and scores of two runs."""

import json
import shutil
from pathlib import Path

import pytest

from folders import written_anew


@pytest.fixture
def copy(tiny_home, tmp_path) -> Path:
    """A copy of the finished tiny study that may be spoiled."""
    return Path(shutil.copytree(tiny_home, tmp_path / "copy"))


def edit(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


def by_name(entries: list[dict], key: str = "name") -> dict:
    return {entry[key]: entry for entry in entries}


def test_scores_and_test_are_those_of_the_report(tiny_home, say) -> None:
    sides = tiny_home / "fedavg" / "seed-0", tiny_home / "n-dirichlet"
    code, out, err = say("compare", *sides, "--json")
    assert (code, err) == (0, "")
    made = json.loads(out)
    table, _, weights = json.loads(say("report", tiny_home, "--json")[1])
    rows = by_name(table["rows"], "row")
    left, right = (rows[name]["columns"] for name in ("FedAvg", "Auto-FedAvg-N-Dirichlet"))
    scores = by_name(made["scores"])
    assert list(scores) == ["I", "II", "III", "global test avg", "local avg", "local gen"]
    for head, cell in left.items():
        mine = scores[head.split(" (")[0]]
        assert 100 * mine["left"] == pytest.approx(cell["value"])
        assert 100 * mine["right"] == pytest.approx(right[head]["value"])
        assert mine["difference"] == mine["right"] - mine["left"]
        test = right[head]["test"]
        assert mine["test"] == (None if test is None else pytest.approx(test))
    assert scores["global test avg"]["test"]["n"] == 4
    learned = by_name(weights["rows"], "row")["Auto-FedAvg-N-Dirichlet"]["columns"]
    assert {pair["name"]: pair["right"] for pair in made["alpha"]} == pytest.approx(
        {site: cell["value"] for site, cell in learned.items()}
    )
    lines = [json.loads(x) for x in (sides[0] / "rounds.jsonl").read_text().splitlines()]
    means = [line["validation"]["mean"] for line in lines]
    assert made["best"]["left"] == [
        {
            "seed": 0, "fold": None, "t": 3, "T": 3,
            "best": means.index(max(means)) + 1, "validation": max(means),
        }
    ]  # fmt: skip
    assert made["comparable"]


def test_settings_come_with_their_origin(tiny_home, say) -> None:
    sides = tiny_home / "fedavg", tiny_home / "n-dirichlet"
    made = json.loads(say("compare", *sides, "--json")[1])
    settings = by_name(made["settings"], "path")
    assert settings["method.name"] == {
        "path": "method.name", "left": "fedavg", "right": "auto-fedavg", "origin": "study",
    }  # fmt: skip
    assert settings["method.t0"]["left"] is None
    assert settings["method.t0"]["origin"].startswith("paper Sec. 4.2.1")
    assert (settings["method.S"]["right"], settings["method.S"]["origin"]) == (2, "study")
    assert all(path.startswith("method.") for path in settings)
    assert made["environment"] == []
    _, out, _ = say("compare", *sides)
    assert "method.t0" in out
    assert "Environment: no difference" in out
    assert "Wilcoxon signed-rank over the same test cases" in out
    assert out.index("Settings: what differs") < out.index("dice on test cases, percent")


def test_a_run_does_not_differ_from_itself(tiny_home, say) -> None:
    same = tiny_home / "fedavg" / "seed-0"
    _, out, _ = say("compare", same, same)
    assert "Settings: no difference" in out
    assert "+0.00" in out
    assert "1 (n=4)" in out
    assert "NOT" not in out


def test_environments_and_repeats_are_told(copy, say) -> None:
    row = copy / "fedavg"
    shutil.copytree(row / "seed-0", row / "seed-1")
    about = json.loads((row / "seed-1" / "environment.json").read_text())
    versions = {**about["versions"], "torch": "9.9"}
    edit(row / "seed-1" / "environment.json", seed=1, versions=versions, commit="a" * 40 + "-dirty")
    lines = (row / "seed-1" / "scores.csv").read_text().splitlines()
    worse = [
        line.rpartition(",")[0] + ",0.0" if line.startswith("global,I,") else line for line in lines
    ]
    (row / "seed-1" / "scores.csv").write_text("\n".join(worse) + "\n")
    written_anew(row)
    made = json.loads(say("compare", copy / "n-dirichlet", row, "--json")[1])
    environment = by_name(made["environment"], "path")
    assert environment["seed"]["left"] == 0
    assert environment["seed"]["right"] == [0, 1]
    assert environment["versions.torch"]["right"][1] == "9.9"
    single = json.loads(say("compare", row / "seed-0", row / "seed-1", "--json")[1])
    first = by_name(single["scores"])["I"]
    assert (first["right"], first["test"]["n"]) == (0.0, 2)
    other = copy / "n-dirichlet"
    shutil.copytree(other / "seed-0", other / "seed-1")
    edit(other / "seed-1" / "environment.json", seed=1)
    both = json.loads(say("compare", other, row, "--json")[1])
    assert both["seeds"] == [0, 1]
    pooled = by_name(both["scores"])["I"]["right"]
    assert pooled == pytest.approx(first["left"] / 2)  # the mean over seeds
    _, out, _ = say("compare", row / "seed-0", row / "seed-1")
    assert "aaaaaaaaaaaa-dirty" in out
    assert "a" * 13 not in out


def test_rows_are_compared_on_the_seeds_that_both_have(copy, say) -> None:
    """A seed that only one of them has moves the mean by what another seed happens to be."""
    again = copy / "n-dirichlet" / "seed-1"
    shutil.copytree(copy / "n-dirichlet" / "seed-0", again)
    edit(again / "environment.json", seed=1)
    path = again / "scores.csv"
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *(line.rpartition(",")[0] + ",1.0" for line in lines)]) + "\n")
    written_anew(again)
    sides = copy / "fedavg", copy / "n-dirichlet"
    made = json.loads(say("compare", *sides, "--json")[1])
    alone = json.loads(say("compare", sides[0], sides[1] / "seed-0", "--json")[1])
    assert made["scores"] == alone["scores"]
    assert made["alpha"] == alone["alpha"]
    assert made["seeds"] == [0]
    assert "Scores and weights are those of seed 0, which both have" in say("compare", *sides)[1]
    assert "which both have" not in say("compare", sides[0], sides[1] / "seed-0")[1]
    seeds = json.loads(say("compare", sides[1] / "seed-0", again, "--json")[1])
    assert seeds["seeds"] == []  # two seeds of one row: each has its own
    assert by_name(seeds["scores"])["global test avg"]["right"] == 1.0


def test_other_data_is_not_refused_and_not_compared(copy, say) -> None:
    folder = copy / "n-dirichlet" / "seed-0"
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace('name = "synthetic"', 'name = "other"'))
    about = json.loads((folder / "environment.json").read_text())
    edit(folder / "environment.json", data={**about["data"], "data": "scans", "split_sha256": "0"})
    sides = copy / "fedavg", folder
    code, out, err = say("compare", *sides)
    assert (code, err) == (0, "")
    reasons = ["the task", "the data", "the split of the data"]
    assert "The scores are NOT comparable, for these differ:\n  the task\n  the data\n" in out
    assert out.index("NOT comparable") < out.index("dice on test cases")
    made = json.loads(say("compare", *sides, "--json")[1])
    assert (made["comparable"], made["apart"]) == (False, reasons)
    assert all(pair["difference"] is None and pair["test"] is None for pair in made["scores"])
    assert all(pair["left"] is not None for pair in made["scores"])
    assert by_name(made["settings"], "path")["task.name"]["right"] == "other"


def test_other_test_cases_are_not_compared(copy, say) -> None:
    path = copy / "fedavg" / "seed-0" / "scores.csv"
    lines = path.read_text().splitlines()
    first = lines[1].split(",")[3]
    path.write_text("\n".join(line for line in lines if f",{first}," not in line) + "\n")
    written_anew(path.parent)
    made = json.loads(say("compare", copy / "fedavg", copy / "n-dirichlet", "--json")[1])
    assert made["apart"] == ["the cases that were tested"]
    assert all(pair["test"] is None for pair in made["scores"])


def test_runs_that_are_not_over_have_no_scores_yet(copy, say) -> None:
    for row in ("fedavg", "n-dirichlet"):
        edit(copy / row / "seed-0" / "status.json", state="interrupted")
    _, out, _ = say("compare", copy / "fedavg", copy / "n-dirichlet")
    assert "FedAvg, seed 0, interrupted" in out
    assert "No test scores yet" in out
    assert "Weights of the last round" in out


def test_names_cannot_steer_the_terminal(copy, say) -> None:
    folder = copy / "fedavg" / "seed-0"
    for name in ("environment.json", "rounds.jsonl"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace('"II"', json.dumps("\x1b[2J[red]II")))
    scores = (folder / "scores.csv").read_text()
    (folder / "scores.csv").write_text(scores.replace(",II,", ",\x1b[2J[red]II,"))
    written_anew(copy)
    _, out, _ = say("compare", folder, copy / "n-dirichlet")
    assert all(letter.isprintable() for line in out.split("\n") for letter in line)
    assert "[2J[red]II" in out


def test_what_cannot_be_compared_is_refused(tiny_home, tmp_path, say) -> None:
    code, out, err = say("compare", tiny_home, tiny_home / "fedavg")
    assert (code, out) == (1, "")
    assert "there are 3 rows in this folder; name one of them: local-only, fedavg" in err
    assert "no such folder" in say("compare", tmp_path / "nothing", tiny_home / "fedavg")[2]
    assert "no run in this folder" in say("compare", tiny_home / "fedavg", tmp_path)[2]
    assert say("compare", tiny_home)[0] == 2
