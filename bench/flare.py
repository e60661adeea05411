"""Exchanges on NVIDIA FLARE: server and three sites as processes on loopback, over mutual TLS."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from autofedavg.engines.flare.export import CONTROLLER, export
from autofedavg.engines.flare.loopback import HOST, Loopback
from bench import flare_clock
from bench.jobs import tiny_job
from bench.table import Row, Section
from bench.timing import Load, Sample

GOAL = 50.0  # milliseconds


def measure(rounds: int, steps: int) -> Section:
    """The section: every exchange of a short run, the sites' own work included."""
    load = Load()
    with tempfile.TemporaryDirectory() as folder:
        times = _exchanges(Path(folder), rounds, steps)
    rows = [Row("update_beta, a message to 3 sites and back", times["update_beta"], "ms", GOAL)]
    rows += [
        Row(f"{verb}, {kind} to 3 sites and back", times[verb], "ms")
        for verb, kind in (
            ("validate_local", "a message"),
            ("share_models", "a task"),
            ("local_train", "a task"),
        )
    ]
    title = "7. Exchanges on NVIDIA FLARE, mutual TLS, with the sites' own work (tiny U-Net)"
    return Section(title, rows, load.of_others())


def _exchanges(home: Path, rounds: int, steps: int) -> dict[str, Sample]:
    job = tiny_job(rounds, steps)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    (home / "runs").mkdir()
    with Loopback(job.sites, {}, home / "runs", home / "scratch") as flare:
        exported = export(job, home / "job")
        for path in (
            flare.kits / HOST / "local" / "resources.json",
            exported / "app" / "config" / "config_fed_server.json",
        ):
            path.write_text(path.read_text().replace(CONTROLLER, flare_clock.PATH))
        flare.run_folder(exported, lambda: None)
    found: dict[str, list[float]] = {}
    for line in (home / "runs" / flare_clock.TIMES).read_text().splitlines():
        verb, seconds = json.loads(line)
        found.setdefault(verb, []).append(1000 * seconds)
    # The first exchange of a kind also pays for what is made on first use.
    return {verb: Sample(tuple(times[1:] or times)) for verb, times in found.items()}
