"""Your own network, loss and data loaders, federated."""

from __future__ import annotations

import hashlib
import json
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from autofedavg.core.errors import ConfigError, RunError
from autofedavg.core.evaluation import Summary, summarise
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds, global_seed
from autofedavg.core.trainer import Loss, Training
from autofedavg.experiment.folder import LOADERS, read_json, read_toml
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.models import load_network
from autofedavg.experiment.rows import to_toml
from autofedavg.experiment.run import check_run, run
from autofedavg.experiment.selection import KINDS, Seen, Select, Selection, TestLocal
from autofedavg.federation.settings import Exchange
from autofedavg.methods import METHODS
from autofedavg.methods.base import Method
from autofedavg.studies.machine import Machine, about_run, clients, machine_of
from autofedavg.tasks.loaders import METRIC, LoaderData, LoaderSite, Score


@dataclass(frozen=True)
class Result:
    """What `federate` returns.

    Attributes:
        network: the network with the tested global model in it, in the form it grew to or as an
            `Ensemble` where the method makes one; None for local-only.
        alpha: the last aggregation weights by site; lists per layer for layer-wise weights.
        rounds: one record a round, as in rounds.jsonl.
        summary: the columns of the paper's tables.
    """

    network: nn.Module | None
    alpha: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]
    summary: Summary


def federate(
    network: Callable[[], nn.Module],
    loss: Loss,
    sites: Mapping[str, LoaderSite],
    score: Score,
    *,
    method: Method | str = "auto-fedavg",
    rounds: int = 10,
    training: Training | None = None,
    seed: int = 0,
    select: Select = "best",
    test_local: TestLocal = "auto",
    quorum: int = 0,
    exchange: Exchange | None = None,
    out: Path | str | None = None,
    machine: Machine | None = None,
    watch: Callable[[Seen], None] | None = None,
) -> Result:
    """Runs a method on your network, loss and data loaders.

    Args:
        network: builds the network.
        loss: (network, batch) -> scalar loss.
        sites: each site's loaders, by name.
        score: (network, batch) -> one score per case, higher is better.
        method: a method or its name; all its settings are the study's.
        rounds: T.
        training: how clients train; one pass over the loader with Adam by default.
        seed: of the run.
        select: which models are tested: "best" on the validation loaders, or those after the "last"
            round; then a site needs no validation loader.
        test_local: where each site's own model is tested after the last round: "full", at all K
            sites, K x K tests; "own", at its own site; "none"; "auto" is full up to 32 sites.
        quorum: clients that must answer a call; 0 for all.
        exchange: time limits, retries, bad answers, and how models travel.
        out: a run folder to write; goes on with it if it is there. None keeps nothing.
        machine: where to compute.
        watch: told of every round.
    """
    chosen: Method = METHODS[method]() if isinstance(method, str) else method
    chosen.check(len(sites))
    how = training or Training(epochs=1, learning_rate=1e-3)
    carried = exchange or Exchange()
    if not 0 <= quorum <= len(sites) or (chosen.needs_all and 0 < quorum < len(sites)):
        raise ConfigError(
            f"quorum is {quorum}, and there are {len(sites)} sites",
            where="federate",
            remedy="use 0 for all",
        )
    if chosen.learns_on == "holdout" and any(site.holdout is None for site in sites.values()):
        raise ConfigError(
            "learn_on is 'holdout', but a site has no holdout loader",
            where="federate",
            remedy="add holdout= to every LoaderSite",
        )
    data = {name: LoaderData(name, site, score) for name, site in sites.items()}
    # A loader with a sampler, or without its last batch, gives other cases than its data set has.
    problem = Problem(network, loss, data, METRIC, counted=False)
    check_run(chosen, rounds, select, problem)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(out or scratch))
        described = _described(folder.path.name, chosen, rounds, select, how, sorted(sites))
        described |= {"test_local": test_local, "quorum": quorum}
        described |= {"exchange": carried.model_dump()}
        config = to_toml(described)
        known = (folder.path / "config.toml").exists()
        if known and _begun(folder.path) != tomllib.loads(config):
            raise RunError(
                "this run folder holds a run with other settings",
                where=str(folder.path),
                remedy="write elsewhere",
            )
        if known and (begun := read_json(folder.path / "environment.json")["seed"]) != seed:
            raise RunError(
                f"this run folder holds seed {begun}, not {seed}",
                where=str(folder.path),
                remedy="write elsewhere",
            )
        asked = machine or Machine()
        used = machine_of(folder.path, asked) if known else asked.resolved()
        with clients(problem, how, Seeds(seed), used, quorum, carried) as federation:
            w0, layout = problem.initial(Seeds(seed))
            if not known:
                layers = chosen.layer_names(layout)
                about = about_run(used, federation, seed, _data(problem), METRIC, layers=layers)
                RunFolder.create(folder.path, config, about)
            with folder.lock():
                kept = Selection(
                    rounds, federation, layout, METRIC, folder, select, test_local=test_local
                )
                run(chosen, kept, w0, watch)
        lines = folder.rounds()
        tested = f"{KINDS[select]}-global"
        trained = None
        if folder.has(tested):
            with global_seed(0):
                built = network()
            trained = load_network(folder, tested, built)
        alpha = lines[-1]["alpha"] or []
        weights = dict(zip(sorted(sites), alpha, strict=False))
        return Result(trained, weights, lines, summarise(folder.scores(), METRIC))


def _begun(path: Path) -> dict[str, Any]:
    """The settings of a run that is there; versions before had no others for these three."""
    since = {"test_local": "auto", "quorum": 0, "exchange": Exchange().model_dump()}
    return {**since, **read_toml(path / "config.toml")}


def _described(
    name: str,
    method: Method,
    rounds: int,
    select: Select,
    training: Training,
    sites: Sequence[str],
) -> dict[str, Any]:
    """The run's settings in the shape of a study's row, so that `report` can read the folder."""
    return {
        "name": name,
        "label": name,
        "rounds": rounds,
        "select": select,
        "task": {"name": LOADERS, "sites": list(sites)},
        "training": training.model_dump(),
        "method": method.model_dump(),
    }


def _data(problem: Problem) -> dict[str, Any]:
    cases = {site.name: dict(site.cases) for site in problem.roster()}
    digest = hashlib.sha256(json.dumps(cases, sort_keys=True).encode()).hexdigest()
    tested = all("test" in parts for parts in cases.values())
    named = "data loaders given in Python" + ("" if tested else "; no test loader, so the test is ")
    named += "" if tested else "the validation cases that also chose the model"
    return {"data": named, "cases": cases, "split_sha256": digest}
