"""Verbs that run a study: run, resume, check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from autofedavg.cli.app import AsJson, Sets, watched
from autofedavg.core.errors import ConfigError

StudyFile = Annotated[Path, typer.Argument(help="A study: a TOML file with one run table per row.")]
Only = Annotated[list[str] | None, typer.Option("--only", help="Run this row alone. Repeatable.")]
SeedList = Annotated[str, typer.Option(help="Seeds instead of the study's, e.g. 0,1,2.")]
FoldList = Annotated[str, typer.Option(help="Folds instead of the study's, e.g. 0,1.")]
Engine = Annotated[str, typer.Option(help="Engine: see `autofedavg list engines`.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]
Workers = Annotated[
    int | None,
    typer.Option(help="Worker processes (default: chosen; never changes results).", min=1),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads per worker (default: chosen; may change last bits).", min=1),
]
AtOnce = Annotated[
    int,
    typer.Option(help="Runs at a time, each a process of its own (never changes results).", min=1),
]
Supervise = Annotated[
    bool,
    typer.Option(
        "--supervise", help="On a real engine: start anew, from the last round, what ends early."
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        help="Seconds a real engine's server waits for sites to join.",
        min=1.0,
        max=7 * 86400.0,
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Also copy to tensorboard or mlflow. Repeatable."),
]


def run(
    study: StudyFile,
    only: Only = None,
    seeds: SeedList = "",
    folds: FoldList = "",
    sets: Sets = None,
    out: Annotated[Path, typer.Option(help="Where run folders are written.")] = Path("runs"),
    engine: Engine = "simulator",
    device: Device = "cpu",
    workers: Workers = None,
    threads: Threads = None,
    at_once: AtOnce = 1,
    supervise: Supervise = False,
    wait: Wait = 600.0,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Run a study: every row with every seed."""
    from autofedavg.experiment.config import read_study
    from autofedavg.monitor.progress import watching
    from autofedavg.monitor.trackers.tracker import tracking
    from autofedavg.studies.launch import run_study
    from autofedavg.studies.machine import Machine
    from autofedavg.studies.observer import Observers

    plan = read_study(
        study,
        sets or [],
        _numbers(seeds, "seeds"),
        only or [],
        _numbers(folds, "folds"),
    )
    machine = Machine(engine, device, workers, threads, supervise, wait)
    with tracking(track or []) as trackers, watching() as bars:
        home = run_study(plan, out, machine, Observers(bars, *trackers), at_once)
    _say_where(home, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a study's folder.")],
    engine: Annotated[str, typer.Option(help="Engine; as before when left out.")] = "",
    device: Annotated[str, typer.Option(help="Device; as before when left out.")] = "",
    workers: Workers = None,
    at_once: AtOnce = 1,
    supervise: Supervise = False,
    wait: Wait = 600.0,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Go on from the last checkpoint: the same bits as if never stopped."""
    from autofedavg.monitor.progress import watching
    from autofedavg.monitor.trackers.tracker import tracking
    from autofedavg.studies.launch import resume as go_on
    from autofedavg.studies.machine import Machine
    from autofedavg.studies.observer import Observers

    machine = Machine(engine or None, device or None, workers, None, supervise, wait)
    with tracking(track or []) as trackers, watching() as bars:
        home = go_on(folder, machine, Observers(bars, *trackers), at_once)
    _say_where(home, as_json)


def check(study: StudyFile, sets: Sets = None, as_json: AsJson = False) -> None:
    """Validate a study; print every value with its origin, the traffic and the memory it needs."""
    from autofedavg.experiment.config import read_study
    from autofedavg.experiment.forecast import forecast, forecast_text

    plan = read_study(study, sets or [])
    seen = watched(lambda progress: forecast(plan, progress))
    typer.echo(json.dumps(seen, indent=1) if as_json else forecast_text(seen))


def _numbers(text: str, option: str) -> list[int] | None:
    try:
        return [int(number) for number in text.split(",")] if text else None
    except ValueError:
        raise ConfigError(
            f"--{option} {text!r} is not a list of integers", remedy=f"e.g. --{option} 0,1,2"
        ) from None


def _say_where(home: Path, as_json: bool) -> None:
    typer.echo(json.dumps({"folder": str(home)}) if as_json else f"run folder: {home}")
