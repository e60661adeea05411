"""Which trackers there are, and observers that copy to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from autofedavg.core.errors import ConfigError, did_you_mean, missing_extra
from autofedavg.monitor.trackers.copying import Opener, Tracker
from autofedavg.monitor.trackers.mlflow import MlflowLog
from autofedavg.monitor.trackers.tensorboard import TensorBoardLog

TRACKERS: dict[str, tuple[Opener, str]] = {  # with the package each needs
    "mlflow": (MlflowLog, "mlflow-skinny"),
    "tensorboard": (TensorBoardLog, "tensorboard"),
}


@contextmanager
def tracking(names: Sequence[str]) -> Iterator[list[Tracker]]:
    """Observers that copy every run to the named trackers; they are told when it stops.

    Raises:
        ConfigError: there is no such tracker.
        MissingExtra: its package is not installed.
    """
    trackers = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise ConfigError(
                f"{name!r} is not a known tracker", remedy=did_you_mean(name, TRACKERS)
            )
        opener, package = TRACKERS[name]
        if find_spec(name) is None:
            raise missing_extra(name, package)
        trackers.append(Tracker(name, opener))
    try:
        yield trackers
    except BaseException as error:
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        for tracker in trackers:
            tracker.stopped(state)
        raise
