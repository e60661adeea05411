"""Verbs about studies and their jobs: run, resume, tune, export, allow, check, show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from autofedavg.cli.app import AsJson, Sets, echo, saying_if_interrupted, watched
from autofedavg.core.errors import ConfigError

if TYPE_CHECKING:
    from autofedavg.studies.observer import Observers

NOTHING_STARTED = ": no run was started; the same command starts them"
StudyName = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="A built-in study's name (see `list studies`), or the path of a TOML file. "
        "With a slash or .toml it is a path: write ./demo for a file called demo.",
    ),
]
Only = Annotated[list[str] | None, typer.Option("--only", help="Run only this row. Repeatable.")]
SeedList = Annotated[str, typer.Option(help="Seeds instead of the study's, e.g. 0,1,2.")]
FoldList = Annotated[str, typer.Option(help="Folds instead of the study's, e.g. 0,1.")]
Engine = Annotated[str, typer.Option(help="Engine: see `autofedavg list engines`.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Worker processes (default: automatic; never changes results). On a GPU: sites that "
        "train side by side (default: 1).",
        min=1,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads per worker (default: automatic; may change the last bits).", min=1),
]
AtOnce = Annotated[
    int,
    typer.Option(help="Runs in parallel, in as many processes (never changes results).", min=1),
]
Supervise = Annotated[
    bool,
    typer.Option(
        "--supervise",
        help="With flare or flower: restart a job that ends early, from its last checkpoint.",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        help="With flare or flower: seconds the server waits for sites to join.",
        min=1.0,
        max=7 * 86400.0,
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Also log to tensorboard or mlflow. Repeatable."),
]


def run(
    study: StudyName,
    only: Only = None,
    seeds: SeedList = "",
    folds: FoldList = "",
    sets: Sets = None,
    out: Annotated[Path, typer.Option(help="Folder for the run folders.")] = Path("runs"),
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
    from autofedavg.studies.launch import run_study
    from autofedavg.studies.machine import Machine
    from autofedavg.studies.study_file import read_study

    plan = read_study(
        study, sets or [], numbers(seeds, "seeds"), only or [], numbers(folds, "folds")
    )
    machine = Machine(engine, device, workers, threads, supervise, wait)
    home = out / plan.name
    before = _planned(home)

    def kept() -> str:
        return _go_on(home) if _planned(home) != before else NOTHING_STARTED

    with saying_if_interrupted(kept):
        _observed(lambda observer: run_study(plan, out, machine, observer, at_once), track, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a study's folder.")],
    engine: Annotated[str, typer.Option(help="Engine (default: as before).")] = "",
    device: Annotated[str, typer.Option(help="Device (default: as before).")] = "",
    workers: Workers = None,
    at_once: AtOnce = 1,
    supervise: Supervise = False,
    wait: Wait = 600.0,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Continue from the last checkpoint: bit-identical to a run that was never stopped."""
    from autofedavg.studies.launch import resume as resume_runs
    from autofedavg.studies.machine import Machine

    machine = Machine(engine or None, device or None, workers, None, supervise, wait)
    with saying_if_interrupted(lambda: _go_on(folder)):
        _observed(lambda observer: resume_runs(folder, machine, observer, at_once), track, as_json)


def _go_on(folder: Path) -> str:
    return f": finished rounds are kept; continue with `autofedavg resume {quote(str(folder))}`"


def _planned(home: Path) -> int:
    """When a study folder's list of runs was written; 0 without one."""
    from autofedavg.experiment.folder import STUDY

    try:
        return (home / STUDY).stat().st_mtime_ns
    except OSError:  # no such file, or a folder that cannot be: the run itself says which
        return 0


def _observed(work: Callable[[Observers], Path], track: list[str] | None, as_json: bool) -> None:
    """Runs a study under progress bars and trackers, and prints its folder."""
    from autofedavg.monitor.progress import watching
    from autofedavg.monitor.trackers.tracker import tracking
    from autofedavg.studies.observer import Observers

    with tracking(track or []) as trackers, watching() as bars:
        home = work(Observers(bars, *trackers))
    echo({"folder": str(home)}, f"run folder: {home}", as_json)


def tune(
    study: StudyName,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Tune only this row. Repeatable.")
    ] = None,
    sets: Sets = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the trials' run folders and the tuned study.")
    ] = Path("runs"),
    device: Device = "cpu",
    workers: Workers = None,
    threads: Threads = None,
    at_once: AtOnce = 1,
    as_json: AsJson = False,
) -> None:
    """Try as many settings for every row, choose by validation scores, write the tuned study."""
    from autofedavg.monitor.progress import watching
    from autofedavg.report.formats import to_text
    from autofedavg.report.trials import trials_table
    from autofedavg.studies.machine import Machine
    from autofedavg.studies.tune import tune_study

    machine = Machine("simulator", device, workers, threads)
    with watching() as bars:
        tuned, results = tune_study(
            study, out, machine, bars, at_once, only=tuple(only or ()), overrides=tuple(sets or ())
        )
    table = trials_table(results)
    if table and not as_json:
        typer.echo(to_text(table), nl=False)
    echo({"study": str(tuned)}, f"tuned study: {tuned}", as_json)


def export(
    engine: Annotated[str, typer.Argument(help="flare or flower.")],
    study: StudyName,
    only: Annotated[str, typer.Option("--only", help="The row to export.")],
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist.")],
    seed: Annotated[
        int | None, typer.Option(help="Seed of the run (default: the study's first).", min=0)
    ] = None,
    fold: Annotated[
        int | None, typer.Option(help="Test fold, in a study with folds.", min=0)
    ] = None,
    sites: Annotated[
        str,
        typer.Option(help="Names of the sites, e.g. A,B,C, if their data is not on this machine."),
    ] = "",
    wait: Wait = 600.0,
    threads: Annotated[
        int | None, typer.Option(help="Threads per site (default: the site's own).", min=1)
    ] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Write a job folder, which an administrator submits with the engine's own tools."""
    from autofedavg.studies.export_job import export_job

    names = [name.strip() for name in sites.split(",") if name.strip()]
    made = export_job(
        engine,
        study,
        only,
        out,
        seed=seed,
        fold=fold,
        sites=names or None,
        wait=wait,
        threads=threads,
        overrides=sets or [],
    )
    echo({"folder": str(made)}, f"job: {made}", as_json)


def allow(
    kit: Annotated[Path, typer.Argument(help="FLARE startup kit of a server or a site.")],
    as_json: AsJson = False,
) -> None:
    """Let a FLARE startup kit run this package's part of a job, and no other code."""
    from autofedavg.engines.flare.allow import allow as put

    done = put(kit)
    whom = ", ".join(done.roles) or "nobody had the right"
    lines = [
        f"allowed: {done.name}",
        f"denied: code in jobs, and files of this kit ({whom}; other rules: {done.policy})",
    ]
    lines += ["closed: to messages of other sites"] if done.is_site else []
    content = {"allowed": done.name, "policy": done.policy, "denied": done.roles}
    echo(content, "\n".join(lines), as_json)


def check(study: StudyName, sets: Sets = None, as_json: AsJson = False) -> None:
    """Validate a study; print every value with its origin, the traffic and the memory it needs."""
    from autofedavg.experiment.forecast import forecast, forecast_text
    from autofedavg.studies.study_file import read_study

    plan = read_study(study, sets or [])
    costs = watched(lambda progress: forecast(plan, progress))
    typer.echo(json.dumps(costs, indent=1) if as_json else forecast_text(costs))


def show(study: StudyName) -> None:
    """Print a study's TOML file, to start your own from: `show demo > mine.toml`."""
    from autofedavg.studies.study_file import study_path, study_values

    path = study_path(study)
    listing = study_values(path).get("base", {}).get("task", {}).get("datalist")
    typer.echo(path.read_text(encoding="utf-8"), nl=False)
    if listing:
        typer.echo(f"its data list is {path.parent / listing}: copy it, too", err=True)


def numbers(text: str, option: str) -> list[int] | None:
    """The integers of an option, None where it is not given."""
    try:
        return [int(number) for number in text.split(",")] if text else None
    except ValueError:
        raise ConfigError(
            f"--{option} {text!r} is not a list of integers", remedy=f"e.g. --{option} 0,1,2"
        ) from None
