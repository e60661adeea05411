"""Where a run is computed: engine, device, workers and threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autofedavg.core.errors import ConfigError
from autofedavg.core.privacy import NONE, Privacy
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.engines import ENGINES, REMOTE
from autofedavg.engines.remote.job import WAIT
from autofedavg.experiment.environment import environment
from autofedavg.experiment.folder import read_json
from autofedavg.federation.port import Federation
from autofedavg.federation.proxy import Proxy
from autofedavg.federation.settings import Exchange


@dataclass(frozen=True)
class Machine:
    """Where a run is computed.

    Results depend on `threads`, and on a GPU on `workers`, both as far as sums are rounded.

    Attributes:
        engine: a name from `autofedavg list engines`; None for the simulator.
        device: "cpu" or "cuda"; None for the CPU.
        workers: worker processes; None lets the engine choose. On a GPU, where one process does
            all: sites that train side by side, 1 by default (decision 69).
        threads: threads per worker; None lets the engine choose.
        supervise: whether a real engine's job that ends early is restarted.
        wait: seconds a real engine's server waits for the sites to join.
    """

    engine: str | None = None
    device: str | None = None
    workers: int | None = None
    threads: int | None = None
    supervise: bool = False
    wait: float = WAIT

    @property
    def remote(self) -> bool:
        """Whether every site is a separate process that an engine connects."""
        return self.engine in REMOTE

    def resolved(self) -> Machine:
        """With default engine and device; the engine chooses workers and threads.

        Raises:
            ConfigError: an option has no effect on this engine.
        """
        if self.remote and self.workers is not None:
            raise ConfigError(
                f"--workers has no effect with {self.engine}: every site runs in its own process",
                where="workers",
                remedy="leave --workers out",
            )
        if self.supervise and not self.remote:
            raise ConfigError(
                "the simulator has no job to supervise",
                where="supervise",
                remedy=f"leave --supervise out, or use --engine {' or '.join(REMOTE)}",
            )
        return replace(self, engine=self.engine or "simulator", device=self.device or "cpu")


def about_run(
    machine: Machine,
    federation: Federation,
    seed: int,
    data: dict[str, Any],
    metric: str,
    folds: Sequence[int] = (),
    layers: Sequence[str] = (),
) -> dict[str, Any]:
    """environment.json: what a run ran on, and all that a resume must keep."""
    transport: Any = federation.transport  # the simulator, with the workers and threads it chose
    return environment(
        str(machine.device),
        seed=seed,
        engine=machine.engine,
        asked_device=machine.device,
        threads=transport.plan.threads,
        workers=transport.plan.workers,
        data=data,
        metric=metric,
        folds=list(folds),
        layers=list(layers),
    )


@contextmanager
def clients(
    problem: Problem,
    training: Training,
    seeds: Seeds,
    machine: Machine,
    quorum: int = 0,
    exchange: Exchange = Exchange(),  # noqa: B008 - frozen
    secret: Seeds | None = None,
    privacy: Privacy = NONE,
) -> Iterator[Federation]:
    """The federation of a problem's clients on the simulator."""
    machine = machine.resolved()
    if machine.remote:
        raise ConfigError(
            f"data loaders of this process cannot be sent to sites on {machine.engine}",
            where="machine.engine",
            remedy="run a study there, or see docs/how-to/add-learned-weights.md",
        )
    given = {"workers": machine.workers, "threads": machine.threads, "device": machine.device}
    engine = ENGINES[str(machine.engine)]
    with engine(problem, training, seeds, privacy=privacy, **given) as transport:
        yield Federation(
            transport,
            quorum=quorum,
            exchange=exchange,
            seeds=seeds,
            secret=secret,
            counted=problem.counted,
            metric=problem.metric,
            proxy=Proxy.of(problem, training, seeds, transport.device),
            privacy=privacy,
        )


def machine_of(path: Path, asked: Machine) -> Machine:
    """Where to continue a run: as before, except for what is asked.

    The number of threads never changes: another one would change the last bits.
    """
    before = read_json(path / "environment.json")
    threads = before["threads"]
    if asked.threads not in (None, threads):
        raise ConfigError(
            f"the run started with {threads} threads, not {asked.threads}",
            where=str(path),
            remedy="leave --threads out: another number changes the last bits of the result",
        )
    engine, device = asked.engine or before["engine"], asked.device or before["asked_device"]
    return replace(asked, engine=engine, device=device, threads=threads)
