"""TensorBoard: one folder of events per run, in the study's folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofedavg.monitor.trackers.points import LAST
from autofedavg.monitor.trackers.tracked_run import TrackedRun

FINISHED = "finished"  # written after the test scores: where it is, they are


class TensorBoardLog:
    """The events of one run.

    Args:
        source: the run.
        first: the first round that the run computes again: its points are purged.
    """

    def __init__(self, source: TrackedRun, first: int) -> None:
        self._source, self._folder = source, event_folder(source)
        known, complete = _logged(self._folder)
        self.last = min(known, first - 1)
        self.complete = complete and self.last == known
        self._open: Any = None

    def write(self, t: int, time: float, points: Mapping[str, float]) -> None:
        self._add(t, time, points)
        self.last = t

    def finish(self, t: int, time: float, points: Mapping[str, float]) -> None:
        self._add(t, time, {**points, FINISHED: 1.0})

    def close(self, state: str = "") -> None:
        if self._open is not None:
            self._open.close()

    def _add(self, t: int, time: float, points: Mapping[str, float]) -> None:
        for name, value in points.items():
            self._writer.add_scalar(name, value, t, walltime=time)
        self._writer.flush()

    @property
    def _writer(self) -> Any:
        """Opened when there is something to write: it makes a new file."""
        if self._open is None:
            from torch.utils.tensorboard import SummaryWriter

            # Part of a round may be there, of a process that was killed while writing it.
            self._open = SummaryWriter(str(self._folder), purge_step=self.last + 1)
            if self.last == 0:
                for name in ("config.toml", "environment.json"):
                    text = (self._source.folder / name).read_text(encoding="utf-8")
                    code = "\n".join(f"    {line}" for line in text.splitlines())  # in Markdown
                    self._open.add_text(name, code, 0, walltime=self._source.first["time"])
        return self._open


def event_folder(source: TrackedRun) -> Path:
    """Where the events of a run are: `tensorboard --logdir <study>/tensorboard` shows all."""
    inside = source.home != source.folder
    return source.home / "tensorboard" / source.name if inside else source.folder / "tensorboard"


def _logged(folder: Path) -> tuple[int, bool]:
    """The last round that is there whole, and whether all test scores are."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not folder.exists():
        return 0, False
    talk = logging.getLogger("tensorboard")
    level = talk.level
    talk.setLevel(logging.ERROR)  # it logs every resumption
    try:
        there = EventAccumulator(str(folder), size_guidance={"scalars": 1})
        there.Reload()
        tags = there.Tags()["scalars"]
        last = there.Scalars(LAST)[-1].step if LAST in tags else 0
    finally:
        talk.setLevel(level)
    complete = FINISHED in tags
    # A part of the scores is purged with the last round, and both are written again.
    torn = not complete and any(tag.startswith("test/") for tag in tags)
    return int(last) - torn, complete
