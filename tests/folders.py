"""Run folders without a training: real files with made-up numbers, of any size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autofedavg.core.scores import ScoreRow
from autofedavg.experiment.folder import run_path
from autofedavg.experiment.folder_writer import RunFolder

METHODS = {
    "local-only": {"name": "local-only"},
    "fedavg": {"name": "fedavg", "weights": "size"},
    "n-dirichlet": {
        "name": "auto-fedavg", "constraint": "dirichlet", "weights": "network", "t0": 1,
        "beta0": 6.0, "learn_on": "validation",
    },
    "l-softmax": {
        "name": "auto-fedavg", "constraint": "softmax", "weights": "layer", "t0": 1,
        "beta0": 0.0, "learn_on": "validation",
    },
}  # fmt: skip


def write_study(
    home: Path,
    methods: dict[str, dict] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    sites: Sequence[str] = ("A", "B", "C"),
    rounds: int = 5,
    cases: int = 6,
    layers: int = 4,
    missing: Sequence[tuple[str, int]] = (),
    title: str = "Made-up hospitals",
    labels: dict[str, str] | None = None,
) -> Path:
    """A study's folder with a finished run for every method and seed but the missing ones."""
    methods = methods or METHODS
    home.mkdir(parents=True, exist_ok=True)
    listed = []
    for name, method in methods.items():
        label = (labels or {}).get(name, name.upper())
        config = {"name": name, "label": label, "rounds": rounds}
        listed.append({"jobs": [[None, seed] for seed in seeds], "config": config})
        for seed in seeds:
            if (name, seed) not in missing:
                path = run_path(home, name, seed)
                write_run(path, config, method, seed, sorted(sites), rounds, cases, layers)
    study = {"name": home.name, "title": title, "baseline": "fedavg", "runs": listed}
    (home / "study.json").write_text(json.dumps(study))
    return home


def write_run(
    path: Path,
    config: dict,
    method: dict,
    seed: int,
    sites: Sequence[str],
    rounds: int,
    cases: int,
    layers: int,
) -> None:
    """One finished run; its numbers depend on its name and seed alone."""
    random = np.random.default_rng([seed, *map(ord, config["name"])])
    K = len(sites)
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
    lines += ['[task]\nname = "made-up"  # study', "[training]\nbatch_size = 4  # paper Sec. 4.2.1"]
    lines += [
        "[method]",
        *(f"{key} = {json.dumps(value)}  # ours" for key, value in method.items()),
    ]
    about = {
        "seed": seed, "metric": "dice", "device": "cpu", "processor": "made up", "cores": 2,
        "versions": {"python": "3.11", "torch": "2.13.0"}, "commit": "0" * 40, "threads": 1,
        "workers": K, "engine": "simulator",
        "data": {
            "data": "made-up data", "split_sha256": "1" * 64,
            "cases": {site: {"train": 10 * (k + 1), "validation": 5, "test": cases}
                      for k, site in enumerate(sites)},
        },
    }  # fmt: skip
    folder = RunFolder.create(path, "\n".join(lines) + "\n", about)
    learns = method["name"] == "auto-fedavg"
    alone = method["name"] == "local-only"
    for t in range(1, rounds + 1):
        folder.append_round(_round(t, random, method, sites, layers, learns, alone))
    rows = []
    models = [*([] if alone else ["global"]), *(f"local-{site}" for site in sites)]
    for model in models:
        for site in sites:
            for number in range(cases):
                value = float(np.clip(random.normal(0.6, 0.1), 0, 1))
                rows.append(ScoreRow(model, site, "test", f"case-{number:03d}", "dice", value))
    folder.write_scores(rows)
    folder.set_status("finished")


def written_anew(home: Path) -> None:
    """Finished runs whose scores a test has changed: as if they had written these themselves."""
    for status in home.rglob("status.json"):
        folder = RunFolder(status.parent)
        if folder.finished:
            folder.set_status("finished")


def model_file(run: Path, name: str = "best-global", ending: str = "json") -> Path:
    """A file of a model that holds in a run folder."""
    return run / "checkpoints" / f"{RunFolder(run).checkpoints.written(name)}.{ending}"


def _round(t, random, method, sites, layers, learns, alone) -> dict:
    K = len(sites)
    beta = alpha = None
    if learns:
        shape = (K, layers) if method["weights"] == "layer" else (K,)
        beta = random.uniform(2, 9, shape)
        power = beta - 1 if method["constraint"] == "dirichlet" else np.exp(beta)
        alpha = power / power.sum(axis=0)
    elif not alone:
        alpha = np.full(K, 1 / K)
    calls = {"local_train": {"calls": 1, "seconds": 1.0, "down": 1000 * K, "up": 1000 * K}}
    if learns:
        calls["share_models"] = {"calls": 1, "seconds": 0.1, "down": 1000 * K * (K - 1), "up": 0}
        calls["update_beta"] = {"calls": 2, "seconds": 0.5, "down": 20 * K, "up": 20 * K}
    calls["evaluate"] = {"calls": 1, "seconds": 0.4, "down": 1000 * K, "up": 10}
    score = {site: float(random.uniform(0.4, 0.7)) for site in sites}
    mean = None if alone else sum(score.values()) / K
    return {
        "t": t,
        "alpha": None if alpha is None else alpha.tolist(),
        "beta": None if beta is None else beta.tolist(),
        "learned": learns,
        "loss": {site: float(random.uniform(0.1, 1)) for site in sites},
        "validation": {"mean": mean, "sites": {} if alone else score},
        "validation_local": score,
        "calls": calls,
        "bytes_down": 0,
        "bytes_up": 0,
        "answered": list(sites),
        "time": 1_700_000_000.0 + 2.5 * t,
    }
