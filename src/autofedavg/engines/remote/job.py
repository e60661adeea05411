"""One row with one seed as it is sent to a real engine: settings, never code, data or paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofedavg import __version__
from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import global_seed
from autofedavg.experiment.config import check_name, parse_run
from autofedavg.experiment.folder import run_path
from autofedavg.experiment.rows import RunConfig
from autofedavg.experiment.validation import Values

SCHEMA = 1
WAIT = 600.0  # seconds: sites may have to prepare their data
_PLAIN: dict[str, Callable[[Any], Any]] = {  # a job's attributes in its text, and their types
    "study": str,
    "seed": int,
    "sites": lambda names: tuple(str(name) for name in names),
    "network": str,
    "wait": float,
    "threads": lambda n: None if n is None else int(n),
    "supervised": bool,
}


@dataclass(frozen=True)
class Job:
    """A run for a real engine.

    Attributes:
        study: the study's name, a folder at the server.
        row: the row, resolved; its paths are empty, because each site has its own.
        seed: of the run.
        sites: the names by which the engine knows the sites.
        network: a digest of the network's names and shapes.
        wait: seconds the server waits for the sites to join.
        threads: of every site, unless the site's own file sets them; None for all cores.
        supervised: whether a supervisor restarts the job if it ends early.
    """

    study: str
    row: RunConfig
    seed: int
    sites: tuple[str, ...]
    network: str
    wait: float = WAIT
    threads: int | None = None
    supervised: bool = False

    @classmethod
    def of(cls, study: str, row: RunConfig, seed: int, sites: Sequence[str], **how: Any) -> Job:
        """The job of a resolved row; `how` may set `wait`, `threads` and `supervised`."""
        with global_seed(0):
            network = row.task.network()
        row.check_network(network)
        digest = Layout.of(network).describe()
        return cls(study, row, seed, tuple(sorted(sites)), digest, **how)

    @property
    def enough(self) -> int:
        """How many sites a resumed run needs."""
        return self.row.exchange.least(self.row.general.quorum, len(self.sites))

    def folder(self, runs: Path) -> Path:
        """The run's folder at the server."""
        fold = getattr(self.row.task, "fold", None) if self.row.folds else None
        return run_path(runs / self.study, self.row.name, self.seed, fold)

    def text(self) -> str:
        """The job as JSON."""
        content: dict[str, Any] = {"schema": SCHEMA, "version": __version__}
        content |= {name: getattr(self, name) for name in _PLAIN}
        content |= {"folds": self.row.folds, "row": without_paths(self.row)}
        return json.dumps(content, indent=1)

    @classmethod
    def read(cls, text: str, where: str) -> Job:
        """Reads a job from its text; errors name `where`.

        Raises:
            ConfigError: it is not a job, or one of another version.
        """
        try:
            content: dict[str, Any] = json.loads(text)
            version = str(content["version"])
            if content["schema"] != SCHEMA or version != __version__:
                raise ConfigError(
                    f"the job was made by autofedavg {version}, and here is {__version__}",
                    where=where,
                    remedy="install the same version everywhere",
                )
            check_name(content["study"], f"{where}: study")
            row = parse_run(content["row"], where)
            if row.values() != without_paths(row):
                raise ConfigError(
                    "the job names a path, and only sites may set paths",
                    where=where,
                    remedy="make it with `autofedavg export`",
                )
            row.folds = tuple(int(fold) for fold in content["folds"])
            return cls(row=row, **{name: kind(content[name]) for name, kind in _PLAIN.items()})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"not a valid job ({error})",
                where=where,
                remedy="make it with `autofedavg export`",
            ) from error


def without_paths(row: RunConfig) -> Values:
    """A row's values without the task's paths, which are each site's own."""
    values = row.values()
    return {**values, "task": {**values["task"], **dict.fromkeys(row.task.paths, "")}}
