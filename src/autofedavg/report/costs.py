"""What a round costs: bytes against the paper's formula, and where the seconds go."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autofedavg.experiment.folder import LOADERS
from autofedavg.report.carried import Costs, charged
from autofedavg.report.repeats import Repeat, Results, Row
from autofedavg.report.tables import Cell, Table, table_of

STEPS = (
    *("update_beta", "differentiate", "mixture_losses", "model_losses"),
    *("share_keys", "masked_gradient"),
)
# What the requests of a round are for. Models travel within the calls that need them first.
BYTES = {
    "training": ("local_train",),
    "learning weights": ("share_models", *STEPS),
    "evaluating": ("evaluate", "validate_local"),
}
SECONDS = {
    "training": ("local_train",),
    "learning weights": STEPS,
    "moving models": ("share_models",),
    "evaluating": ("evaluate", "validate_local"),
}
REST = "server and disk"
MEGA = 1e6
WAYS = ("down", "up")


def bytes_per_round(row: Row) -> dict[str, float]:
    """Kind -> mean MB of a round, both ways, over all rounds of all repeats."""
    return _mean_of(
        {kind: _bytes(calls, asked) / MEGA for kind, asked in BYTES.items()}
        for calls in _calls(row)
    )


def seconds_per_round(row: Row) -> dict[str, float]:
    """Kind -> mean seconds of a round; the rest is what the calls leave of the round's time."""
    return _mean_of(split for repeat in row.repeats for _, split in _timed(repeat))


def extra_traffic(row: Row) -> tuple[float, float] | None:
    """Bytes of learning the weights over those of training: measured, and (K-1)/(2 t0).

    The formula counts models; it is given here for the rounds that were run: with t0 not
    dividing them, LearnAggWeight was called a little less often. Learned at the server it is S/t0,
    and blindly m/(D t0), for m numbers of a sketch and D of the network.
    """
    if not any("t0" in repeat.method for repeat in row.repeats):
        return None
    training = learning = expected = rounds = 0.0
    for repeat in row.repeats:
        for line, calls in charged(repeat):
            training += _bytes(calls, BYTES["training"])
            learning += _bytes(calls, BYTES["learning weights"])
            if line.get("learned"):
                expected += _models_a_call(repeat.method, line) / 2
            rounds += 1
    return (learning / training, expected / rounds) if training else None


def traffic_table(results: Results) -> Table | None:
    """MB a round by purpose, in all, and the extra traffic measured and by the formula."""
    rows = []
    for row in results.rows:
        if found := bytes_per_round(row):
            ways = [_mean_of({way: _way(c, way)} for c in _calls(row))[way] for way in WAYS]
            numbers = [*found.values(), sum(found.values()), *ways]
            extra = extra_traffic(row)
            shares = [Cell(100 * share) for share in extra] if extra else [Cell(), Cell()]
            rows.append((row.label, (*map(Cell, numbers), *shares)))
    heads = (*(f"{kind}, MB" for kind in (*BYTES, "total", *WAYS)), "extra, %", "formula, %")
    notes = (
        "Mean over rounds, down and up, all sites; MB are 1,000,000 bytes, as counted in the port.",
        "Extra: bytes of learning the weights over those of training. Formula: (K-1)/(2 t0), for "
        "the calls that were made, S/t0 where the server learns, and m/(D t0) for sketches of m "
        "numbers; it counts models only, so beta's own bytes come on top.",
        *_encodings(results),
    )
    return table_of("traffic", "Traffic a round", heads, rows, notes, decimals=3)


def _encodings(results: Results) -> list[str]:
    """In what form models travelled, where it was not as they are."""
    said = []
    for row in results.rows:
        exchange = row.repeats[0].config.get("exchange", {})
        down, up = (exchange.get(way, "float32") for way in WAYS)
        if (down, up) != ("float32", "float32"):
            said.append(f"{row.label}: models travelled as {down} down and as {up} up.")
    return said


def time_table(results: Results) -> Table | None:
    """Seconds a round by purpose."""
    found = {row.label: seconds_per_round(row) for row in results.rows}
    rows = [
        (label, tuple(map(Cell, [*split.values(), sum(split.values())])))
        for label, split in found.items()
        if split
    ]
    notes = (
        "Mean seconds of a round, without the first of each start. Moving models: sending the "
        "other sites' models before the weights are learned; in training and evaluating the way "
        "of a model is part of the call. " + REST.capitalize() + ": averaging, checkpoints.",
    )
    heads = (*SECONDS, REST, "total")
    return table_of("time", "Seconds a round", heads, rows, notes, decimals=3)


def speed_table(results: Results) -> Table | None:
    """How fast clients train: steps, what one takes, cases a second."""
    rows = []
    for row in results.rows:
        seconds = steps = cases = rounds = 0.0
        for repeat in row.repeats:
            for line, split in _timed(repeat):
                work = _work(repeat, line.get("loss") or line.get("answered") or [])
                seconds, rounds = seconds + split["training"], rounds + 1
                steps, cases = steps + work[0], cases + work[1]
        if steps and seconds:
            a_round, step, rate = steps / rounds, 1e3 * seconds / steps, cases / seconds
            told = (a_round, f"{a_round:.0f}"), (step, f"{step:.3g}"), (rate, f"{rate:.0f}")
            rows.append((row.label, tuple(Cell(value, text=text) for value, text in told)))
    notes = (
        "Steps of all sites, a batch of one site each. What one takes is the time of training, "
        "from asking the sites to the last answer, over all their steps: sites that work at the "
        "same time share it. Without the first round of each start.",
    )
    heads = ("steps a round", "a step, ms", "cases a second")
    return table_of("speed", "Training speed", heads, rows, notes)


def _work(repeat: Repeat, trained: Iterable[str]) -> tuple[float, float]:
    """Steps and cases of the sites that trained in a round; none where settings do not tell."""
    training, known = repeat.config.get("training", {}), repeat.environment["data"]["cases"]
    # FedMA trains its last layer longer, and loaders have batches of their own.
    other = repeat.method["name"] == "fedma" or repeat.config["task"]["name"] == LOADERS
    if other or "batch_size" not in training:
        return 0.0, 0.0
    n_k = [int(known.get(site, {}).get("train", 0)) for site in trained]
    size = int(training["batch_size"])
    if steps := int(training.get("iterations", 0)):
        return float(steps * len(n_k)), float(steps * size * len(n_k))
    epochs = int(training.get("epochs", 0))
    return float(epochs * sum(-(-n // size) for n in n_k)), float(epochs * sum(n_k))


def _models_a_call(method: Mapping[str, Any], line: Mapping[str, Any]) -> float:
    """Models, and gradients as large, that a LearnAggWeight call moves per client."""
    if "blind" in line:
        return float(2 * line["blind"]["numbers"] / line["blind"]["of"])
    if method.get("learning") != "server":
        return float(len(line["alpha"]) - 1)
    judged = 0 if method.get("t0") != "auto" else 3 if method.get("when_idle") == "sizes" else 2
    return float(2 * int(method["S"]) + judged)


def _calls(row: Row) -> Iterator[Costs]:
    """What every round of every repeat asked for, by the kind of call."""
    found = (round for repeat in row.repeats for round in charged(repeat))
    return (calls for line, calls in found if "calls" in line)


def _timed(repeat: Repeat) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """Every round whose length is known, and where it went: the time since the round before."""
    starts = {int(entry["after_round"]) for entry in repeat.environment.get("resumed", [])}
    for before, line in zip(repeat.rounds, repeat.rounds[1:], strict=False):
        if "calls" not in line or before["t"] in starts:
            continue
        split = {
            kind: sum(line["calls"].get(call, {}).get("seconds", 0.0) for call in calls)
            for kind, calls in SECONDS.items()
        }
        split[REST] = max(0.0, line["time"] - before["time"] - sum(split.values()))
        yield line, split


def _bytes(calls: Costs, asked: Iterable[str]) -> float:
    """Bytes of these calls, both ways."""
    return sum(float(sum(calls.get(call, {}).get(way, 0) for way in WAYS)) for call in asked)


def _way(calls: Costs, way: str) -> float:
    """MB of all calls, one way."""
    return float(sum(cost.get(way, 0) for cost in calls.values()) / MEGA)


def _mean_of(splits: Iterable[Mapping[str, float]]) -> dict[str, float]:
    known = list(splits)
    if not known:
        return {}
    return {kind: statistics.fmean(split[kind] for split in known) for kind in known[0]}
