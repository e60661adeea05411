"""What a round costs: bytes against the paper's formula, and where the seconds go."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from autofedavg.experiment.folder import LOADERS
from autofedavg.report.read import Repeat, Results, Row
from autofedavg.report.tables import Cell, Table

# What the requests of a round are for. Models travel within the calls that need them.
BYTES = {
    "training": ("local_train",),
    "learning weights": ("share_models", "update_beta", "differentiate"),
    "evaluating": ("evaluate", "validate_local"),
}
SECONDS = {
    "training": ("local_train",),
    "learning weights": ("update_beta", "differentiate"),
    "moving models": ("share_models",),
    "evaluating": ("evaluate", "validate_local"),
}
REST = "server and disk"
MEGA = 1e6


def bytes_per_round(row: Row) -> dict[str, float]:
    """Kind -> mean MB of a round, both ways, over all rounds of all repeats."""
    return _mean_of(
        {
            kind: sum(_both(line["calls"].get(call, {})) for call in calls) / MEGA
            for kind, calls in BYTES.items()
        }
        for repeat in row.repeats
        for line in repeat.rounds
        if "calls" in line
    )


def seconds_per_round(row: Row) -> dict[str, float]:
    """Kind -> mean seconds of a round; the rest is what the calls leave of the round's time."""
    return _mean_of(split for repeat in row.repeats for _, split in _timed(repeat))


def extra_traffic(row: Row) -> tuple[float, float] | None:
    """Bytes of learning the weights over those of training: measured, and (K-1)/(2 t0).

    The formula counts models; it is given here for the rounds that were run: with t0 not
    dividing them, LearnAggWeight was called a little less often. Learned at the server it is S/t0.
    """
    if not any("t0" in repeat.config["method"] for repeat in row.repeats):
        return None
    training = learning = expected = rounds = 0.0
    for repeat in row.repeats:
        for line in repeat.rounds:
            calls = line.get("calls", {})
            training += _both(calls.get("local_train", {}))
            learning += sum(_both(calls.get(call, {})) for call in BYTES["learning weights"])
            if line.get("learned"):
                expected += _models_a_call(repeat.config["method"], len(line["alpha"])) / 2
            rounds += 1
    if not training:
        return None
    return learning / training, expected / rounds


def traffic_table(results: Results) -> Table | None:
    """MB a round by purpose, in all, and the extra traffic measured and by the formula."""
    rows = []
    for row in results.rows:
        found = bytes_per_round(row)
        if not found:
            continue
        extra = extra_traffic(row)
        cells = [Cell(found[kind]) for kind in BYTES]
        cells.append(Cell(sum(found.values())))
        cells += [Cell(_mean_way(row, way)) for way in ("down", "up")]
        cells += [Cell(100 * share) for share in extra] if extra else [Cell(), Cell()]
        rows.append((row.label, tuple(cells)))
    if not rows:
        return None
    ways = ("total, MB", "down, MB", "up, MB")
    heads = (*(f"{kind}, MB" for kind in BYTES), *ways, "extra, %", "formula, %")
    notes = (
        "Mean over rounds, down and up, all sites; MB are 1,000,000 bytes, as counted in the port.",
        "Extra: bytes of learning the weights over those of training. Formula: (K-1)/(2 t0), for "
        "the calls that were made, and S/t0 where the server learns; it counts models only, so "
        "beta's own bytes come on top.",
        *_encodings(results),
    )
    return Table("traffic", "Traffic a round", heads, tuple(rows), notes, decimals=3)


def _encodings(results: Results) -> list[str]:
    """In what form models travelled, where it was not as they are."""
    said = []
    for row in results.rows:
        exchange = row.repeats[0].config.get("exchange", {})
        down, up = exchange.get("down", "float32"), exchange.get("up", "float32")
        if (down, up) != ("float32", "float32"):
            said.append(f"{row.label}: models travelled as {down} down and as {up} up.")
    return said


def _mean_way(row: Row, way: str) -> float:
    """Mean MB of a round, one way."""
    return statistics.fmean(
        sum(cost.get(way, 0) for cost in line["calls"].values()) / MEGA
        for repeat in row.repeats
        for line in repeat.rounds
        if "calls" in line
    )


def time_table(results: Results) -> Table | None:
    """Seconds a round by purpose."""
    rows = []
    for row in results.rows:
        found = seconds_per_round(row)
        if found:
            cells = [Cell(found.get(kind)) for kind in (*SECONDS, REST)]
            rows.append((row.label, (*cells, Cell(sum(found.values())))))
    if not rows:
        return None
    notes = (
        "Mean seconds of a round, without the first of each start. Moving models: sending the "
        "other sites' models before the weights are learned; in training and evaluating the way "
        "of a model is part of the call. " + REST.capitalize() + ": averaging, checkpoints.",
    )
    heads = (*SECONDS, REST, "total")
    return Table("time", "Seconds a round", heads, tuple(rows), notes, decimals=3)


def speed_table(results: Results) -> Table | None:
    """How fast clients train: steps, what one takes, cases a second."""
    rows = []
    for row in results.rows:
        seconds = steps = cases = rounds = 0.0
        for repeat in row.repeats:
            for line, split in _timed(repeat):
                work = _work(repeat, line.get("loss", {}))
                seconds, rounds = seconds + split["training"], rounds + 1
                steps, cases = steps + work[0], cases + work[1]
        if steps and seconds:
            a_round, step, rate = steps / rounds, 1e3 * seconds / steps, cases / seconds
            told = (a_round, f"{a_round:.0f}"), (step, f"{step:.3g}"), (rate, f"{rate:.0f}")
            rows.append((row.label, tuple(Cell(value, text=text) for value, text in told)))
    if not rows:
        return None
    notes = (
        "Steps of all sites, a batch of one site each. What one takes is the time of training, "
        "from asking the sites to the last answer, over all their steps: sites that work at the "
        "same time share it. Without the first round of each start.",
    )
    heads = ("steps a round", "a step, ms", "cases a second")
    return Table("speed", "Training speed", heads, tuple(rows), notes)


def _work(repeat: Repeat, trained: Iterable[str]) -> tuple[float, float]:
    """Steps and cases of the sites that trained in a round; none where settings do not tell."""
    training, known = repeat.config.get("training", {}), repeat.environment["data"]["cases"]
    # FedMA trains its last layer longer, and loaders have batches of their own.
    other = repeat.config["method"]["name"] == "fedma" or repeat.config["task"]["name"] == LOADERS
    if other or "batch_size" not in training:
        return 0.0, 0.0
    n_k = [int(known.get(site, {}).get("train", 0)) for site in trained]
    size = int(training["batch_size"])
    if steps := int(training.get("iterations", 0)):
        return float(steps * len(n_k)), float(steps * size * len(n_k))
    epochs = int(training.get("epochs", 0))
    return float(epochs * sum(-(-n // size) for n in n_k)), float(epochs * sum(n_k))


def _models_a_call(method: Mapping[str, Any], K: int) -> int:
    """Models, and gradients as large, that a LearnAggWeight call moves per client."""
    return 2 * int(method["S"]) if method.get("learning") == "server" else K - 1


def _timed(repeat: Repeat) -> Iterable[tuple[dict[str, Any], dict[str, float]]]:
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


def _both(cost: Mapping[str, Any]) -> float:
    return float(cost.get("down", 0) + cost.get("up", 0))


def _mean_of(splits: Iterable[Mapping[str, float]]) -> dict[str, float]:
    known = list(splits)
    if not known:
        return {}
    return {kind: statistics.fmean(split[kind] for split in known) for kind in known[0]}
