"""`federate`: runs a method on your own network, loss and data loaders."""

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

from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError, RunError
from autofedavg.core.evaluation import Summary, summarise
from autofedavg.core.privacy import NONE, Privacy
from autofedavg.core.problem import SERVER, Logits, Problem, logits_of
from autofedavg.core.seeds import Seeds, global_seed
from autofedavg.core.trainer import Loss, Training
from autofedavg.experiment.folder import LOADERS, read_json, read_toml
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.experiment.models import load_network
from autofedavg.experiment.private_rows import budgets, refuse_private
from autofedavg.experiment.rows import Rounds
from autofedavg.experiment.run import RunLoop, check_run
from autofedavg.experiment.selection import KINDS, Seen, Select, TestLocal
from autofedavg.experiment.toml_text import to_toml
from autofedavg.experiment.validation import validate
from autofedavg.federation.settings import Exchange
from autofedavg.methods import METHODS
from autofedavg.methods.base import Method
from autofedavg.studies.machine import Machine, about_run, clients, machine_of
from autofedavg.tasks.loaders import METRIC, Loader, LoaderData, LoaderSite, Score, loader_data


@dataclass(frozen=True)
class Result:
    """What `federate` returns.

    Attributes:
        network: the network with the tested global model, an `Ensemble` where the method makes
            one; None for local-only. FedMA may have changed the layers' widths.
        alpha: the last aggregation weights by site; lists per layer for layer-wise weights.
        rounds: one record per round, as in rounds.jsonl.
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
    proxy: Loader | None = None,
    logits: Logits = logits_of,
    privacy: Privacy = NONE,
) -> Result:
    """Runs a method on your network, loss and data loaders.

    Args:
        network: builds the network.
        loss: (network, batch) -> scalar loss.
        sites: each site's loaders, by name.
        score: (network, batch) -> one score per case, higher is better.
        method: a method, or its name for the default settings.
        rounds: T.
        training: how clients train; one pass over the loader with Adam by default.
        seed: of the run.
        select: which models are tested: "best" on the validation loaders, or "last", which needs
            no validation loaders.
        test_local: where each site's own model is tested after the last round: "full" at all
            sites (K x K tests), "own" at its own site, "none"; "auto" is full up to 32 sites.
        quorum: clients that must reply to a call; 0 for all.
        exchange: time limits, retries, invalid replies, how models are encoded, and whether sites
            disclose the scores of cases or means.
        out: the run folder; an unfinished run in it is resumed. None keeps nothing.
        machine: where to compute.
        watch: called after every round.
        proxy: training batches at the server, for methods that need them; no case of a site.
        logits: (network, batch) -> class logits (batch, classes, ...), for methods that compare
            predictions on them; the network's outputs for a batch's first part by default.
        privacy: differential privacy by patient; every LoaderSite must name its `patients`. In a
            simulation the noise comes from the seed, so it shows what privacy costs.
    """
    chosen: Method = METHODS[method]() if isinstance(method, str) else method
    chosen.check(len(sites))
    training = training or Training(epochs=1, learning_rate=1e-3)
    exchange = exchange or Exchange()
    chosen.check_exchange(exchange, quorum, len(sites))
    if not 0 <= quorum <= len(sites) or (chosen.needs_all and 0 < quorum < len(sites)):
        raise ConfigError(
            f"quorum is {quorum}, and there are {len(sites)} sites",
            where="federate",
            remedy="use 0 for all sites",
        )
    if chosen.learns_on == "holdout" and any(site.holdout is None for site in sites.values()):
        raise ConfigError(
            "learn_on is 'holdout', but a site has no holdout loader",
            where="federate",
            remedy="add holdout= to every LoaderSite",
        )
    given = {"rounds": rounds, "quorum": quorum, "select": select, "test_local": test_local}
    general: Rounds = validate(Rounds, given, "federate", "")
    data = {name: loader_data(name, site, score) for name, site in sites.items()}
    # A loader with a sampler, or with drop_last, does not use every case of its data set.
    own = LoaderData(SERVER, LoaderSite(proxy, proxy), score) if proxy is not None else None
    problem = Problem(network, loss, data, METRIC, counted=False, logits=logits, proxy=own)
    check_run(chosen, rounds, select, problem)
    with global_seed(0):
        built = network()
    refuse_private(privacy, chosen, built, rounds)
    budgets(privacy, chosen, training, rounds, Layout.of(built), problem.sites)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(out or scratch))
        # In the shape of a study's row, so that `report` can read the folder.
        described = {
            "name": folder.path.name,
            "label": folder.path.name,
            "rounds": rounds,
            "select": select,
            "task": {
                "name": LOADERS,
                "sites": sorted(sites),
                **({"proxy": own.cases()["train"]} if own else {}),
            },
            "training": training.model_dump(),
            "method": chosen.model_dump(),
            "test_local": test_local,
            "quorum": quorum,
            "exchange": exchange.model_dump(),
            **({"privacy": privacy.model_dump()} if privacy.on else {}),
        }
        config = to_toml(described)
        known = (folder.path / "config.toml").exists()
        if known:
            _refuse_another_run(folder.path, tomllib.loads(config), seed)
        asked = machine or Machine()
        used = machine_of(folder.path, asked) if known else asked.resolved()
        with clients(
            problem, training, Seeds(seed), used, quorum, exchange, privacy=privacy
        ) as federation:
            w0, layout = problem.initial(Seeds(seed))
            if not known:
                layers = chosen.layer_names(layout)
                about = about_run(used, federation, seed, _data(problem), METRIC, layers=layers)
                RunFolder.create(folder.path, config, about)
            with folder.lock():
                loop = RunLoop(chosen, general, federation, layout, METRIC, folder, privacy=privacy)
                loop.run(w0, watch)
        lines = folder.rounds()
        tested = f"{KINDS[select]}-global"
        trained = None
        if folder.has(tested):
            with global_seed(0):
                built = network()
            trained = load_network(folder, tested, built)
        weights = dict(zip(sorted(sites), lines[-1]["alpha"] or [], strict=False))
        return Result(trained, weights, lines, summarise(folder.scores(), METRIC))


def _refuse_another_run(path: Path, settings: dict[str, Any], seed: int) -> None:
    """Refuses to continue a run that began with other settings or another seed."""
    # Early versions did not record these defaults.
    known = {"test_local": "auto", "quorum": 0, **read_toml(path / "config.toml")}
    known["exchange"] = {**Exchange().model_dump(), **known.get("exchange", {})}
    before = read_json(path / "environment.json")["seed"]
    other = f"holds seed {before}, not {seed}" if before != seed else ""
    if known != settings:
        other = "holds a run with other settings"
    if other:
        raise RunError(f"this run folder {other}", where=str(path), remedy="choose another folder")


def _data(problem: Problem) -> dict[str, Any]:
    cases = {site.name: dict(site.cases) for site in problem.roster()}
    digest = hashlib.sha256(json.dumps(cases, sort_keys=True).encode()).hexdigest()
    named = "data loaders given in Python"
    if not all("test" in parts for parts in cases.values()):
        named += "; no test loader, so the test is the validation cases that also chose the model"
    return {"data": named, "cases": cases, "split_sha256": digest}
