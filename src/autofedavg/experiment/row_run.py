"""Starts or resumes one run, which is one row with one seed, in its folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofedavg.core.bank import Layout, Model
from autofedavg.experiment.environment import environment
from autofedavg.experiment.files import make_folder, opened_here
from autofedavg.experiment.folder_writer import RunFolder, disk_errors
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.run import RunLoop
from autofedavg.experiment.selection import Watcher
from autofedavg.federation.port import Federation

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """One run, with all that it needs.

    Attributes:
        device: what the server computes on.
        about: makes environment.json; called only where the run starts.
        cautions: warnings for the log.
    """

    config: RunConfig
    seed: int
    federation: Federation
    w0: Model
    layout: Layout
    device: str
    about: Callable[[], Mapping[str, Any]]
    cautions: Sequence[str] = ()


def run_row(path: Path, work: Work, watch: Watcher | None = None) -> None:
    """Starts a row in this run folder, or resumes it; calls `watch` after every round."""
    config, folder = work.config, RunFolder(path)
    with ExitStack() as held:
        with disk_errors(path):
            make_folder(path)
            held.enter_context(folder.lock())  # before there is anything in it
        known = (path / "config.toml").exists()
        if not known:
            RunFolder.create(path, config.to_toml(), work.about(), config.origin_of())
        with disk_errors(path):
            held.enter_context(_log_to(path / "log.txt"))
        if known:
            folder.note_resumption(environment(work.device))
        log.info("%s, seed %d, rounds %d", config.name, work.seed, config.T)
        for caution in (*work.cautions, config.method.unsuited(config.training, config.T)):
            if caution:
                log.warning("%s", caution)
        metric = config.task.metric
        run = (config.method, config.general, work.federation, work.layout, metric, folder)
        loop = RunLoop(*run, config.privacy, work.device)
        loop.run(work.w0, watch)
        log.info("finished")


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    stream = os.fdopen(opened_here(path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package = logging.getLogger("autofedavg")
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
        handler.close()
        stream.close()
