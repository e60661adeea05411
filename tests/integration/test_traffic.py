"""A run moves the bytes that `check` has promised, in every encoding and way of learning."""

import json
from itertools import product
from typing import Any, NamedTuple

import pytest
from tests_tiny import TINY

from autofedavg import Machine, read_study, run_study
from autofedavg.experiment.forecast import forecast, forecast_text
from autofedavg.federation.messages import WITH_MODELS
from autofedavg.report.costs import bytes_per_round, extra_traffic
from autofedavg.report.figures.bytes_sent import bytes_figure
from autofedavg.report.read import read_results
from autofedavg.report.repeats import Results, Row
from autofedavg.report.spent import spent_by
from lookalikes import cifar10_binary

ROUNDS = 3
METHODS = {
    "fedavg": "name = 'fedavg'",
    "clients": "name = 'auto-fedavg', S = 2, t0 = 2",
    "server": "name = 'auto-fedavg', S = 2, t0 = 2, learning = 'server'",
    "fedce": "name = 'fedce'",
    "ensemble": "name = 'ensemble', initial = 'shared'",
    "fresh": "name = 'ensemble'",
    "local": "name = 'local-only'",
}
BLIND = "name = 'auto-fedavg', learning = 'blind', t0 = 1, sketch = 64"
HOW = ["float32", "bfloat16", "difference"]


class Counted(NamedTuple):
    """A row's forecast, the bytes of its calls that carry models, and the row of the report."""

    seen: dict[str, Any]
    moved: int
    row: Row


def row(name: str, method: str, down: str, up: str, test_every: int = 0) -> str:
    return (
        f"[[run]]\nname = '{name}'\ntest_every = {test_every}\nmethod = {{ {method} }}\n"
        f"exchange = {{ down = '{down}', up = '{up}' }}\n"
    )


def rows() -> dict[str, str]:
    """Every method in every encoding; FedAvg also in mixed ones, and with tests in the rounds."""
    found = {f"{name}-{how}": (METHODS[name], how, how) for name, how in product(METHODS, HOW)}
    found |= {f"fedavg-{a}-{b}": (METHODS["fedavg"], a, b) for a, b in product(HOW, HOW) if a != b}
    found |= {f"blind-{how}": (BLIND, how, "float32") for how in HOW}
    texts = {name: row(name, *what) for name, what in found.items()}
    for name, every in product(("fedavg", "blind"), (1, 2)):
        for how in HOW:
            key = f"{name}-{how}-tested-{every}"
            texts[key] = row(key, *found[f"{name}-{how}"], every)
    return texts


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traffic")
    head = TINY.partition("[[run]]")[0].replace('baseline = "fedavg"', "")
    for before, after in (
        ("[4, 8]", "[16, 32]"),
        ("iterations = 2", "iterations = 1"),
        ("rounds = 3", f"rounds = {ROUNDS}\ntest_local = 'none'"),
    ):
        head = head.replace(before, after)
    return counted_in(folder, head + "".join(rows().values()))


def counted_in(folder, text):
    (folder / "study.toml").write_text(text)
    study = read_study(folder / "study.toml")
    home = run_study(study, folder / "runs", Machine(workers=1, threads=1))
    results = read_results([home])
    return {
        seen["name"]: Counted(
            seen, moved(home / seen["name"] / "seed-0"), results.row(seen["name"])
        )
        for seen in forecast(study)["rows"]
    }


def moved(run) -> int:
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    costs = [cost for line in lines for call, cost in line["calls"].items() if call in WITH_MODELS]
    return sum(cost["down"] + cost["up"] for cost in costs)


@pytest.mark.parametrize("name", rows())
def test_a_run_moves_the_bytes_that_check_promises(counted, name):
    """Plain values, which are not counted before a run, are a few hundred bytes a message."""
    seen, found, _ = counted[name]
    assert found == pytest.approx(seen["traffic"]["total"], rel=0.02)
    assert found > seen["traffic"]["total"]


def test_rows_of_one_study_travel_each_in_its_own_encoding(counted):
    """Half the bytes, and a quarter; from the second model on."""
    whole = counted["clients-float32"].seen["model_bytes"]
    sites = counted["clients-float32"].seen["sites"]
    first = sites * whole
    exact, halves, steps = (counted[f"clients-{how}"].moved - first for how in HOW)
    assert halves == pytest.approx(0.5 * exact, rel=0.05)
    # As a difference the model that was validated is not sent again to train.
    again = sites * (ROUNDS - 1) * whole
    assert steps == pytest.approx(0.26 * (exact - again), rel=0.05)


def test_a_task_without_validation_is_not_promised_any(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    cifar10_binary(root)
    head = f"""
[study]
name = "pictures"

[base]
rounds = 2
select = "last"
test_local = "none"

[base.task]
name = "cifar10"
root = "{root}"
clients = 3

[base.training]
iterations = 1
batch_size = 4
optimiser = "sgd"

"""
    text = head + "".join(
        row(f"{how}-{every}", METHODS["fedavg"], how, how, every)
        for how in ("float32", "difference")
        for every in (0, 1)
    )
    for seen, found, _ in counted_in(tmp_path, text).values():
        assert found == pytest.approx(seen["traffic"]["total"], rel=0.001)
        assert (seen["traffic"]["validation_a_round"] > 0) == (seen["name"] == "float32-1")


def test_check_says_that_the_first_model_travels_whole(counted):
    for how in HOW:
        seen = counted[f"fedavg-{how}"].seen
        text = forecast_text({"study": "", "title": "", "seeds": [0], "folds": [], "rows": [seen]})
        assert ("for the first model, which travels whole" in text) == (how != "float32")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["fedavg", "clients", "blind"])
def test_the_report_charges_training_with_the_model_that_came_to_be_scored(counted, name, how):
    """Whoever evaluates more often does not send fewer bytes for training."""
    seen, found, row = counted[f"{name}-{how}"]
    traffic, sites = seen["traffic"], seen["sites"]
    down = traffic["fedavg_a_round"] / sites - bytes_up(seen)
    kept = how == "difference" or (name, how) == ("blind", "float32")
    last = sites * down if kept else 0  # the last model is scored only
    training = ROUNDS * traffic["fedavg_a_round"] + traffic["first"] - last
    learning = ROUNDS * traffic["extra"] * traffic["fedavg_a_round"]
    spent = 1e6 * spent_by(row.repeats[0])[ROUNDS].megabytes
    assert spent == pytest.approx(training + learning, rel=0.03)
    by_purpose = bytes_per_round(row)
    assert 1e6 * ROUNDS * by_purpose["training"] == pytest.approx(training, rel=0.03)
    assert sum(by_purpose.values()) * 1e6 * ROUNDS == pytest.approx(found, rel=0.05)
    if name == "clients":
        assert extra_traffic(row)[0] == pytest.approx(learning / training, rel=0.05)


def test_rows_of_one_method_stand_apart_in_score_against_bytes(counted):
    rows = tuple(counted[f"fedavg-{how}"].row for how in HOW)
    figure = bytes_figure(Results("", rows, "fedavg-float32", {}))
    assert figure is not None
    drawn = figure.spec["data"]["values"]
    ends = {item["row"]: item["MB"] for item in drawn if item["t"] == ROUNDS}
    sent = [ends[row.label] for row in rows]
    assert sent == sorted(sent, reverse=True)
    assert len(set(sent)) == 3
    assert all(f"{row.label} " in figure.about for row in rows)


def bytes_up(seen: dict[str, Any]) -> float:
    """Of one model: what FedAvg's float32 row moves, over two; a half; about a quarter."""
    share = {"float32": 1, "bfloat16": 0.5, "difference": 0.258}[seen["traffic"]["up"]]
    return share * seen["model_bytes"]
