"""A run that another process computes: its rounds as they come, and why it failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autofedavg.core.errors import AutoFedAvgError, RunError, error_in
from autofedavg.experiment.folder import Rounds, read_json
from autofedavg.experiment.selection import Seen, Watcher


class Following:
    """What a run folder says from now on; it need not be there yet. `watch` gets new rounds."""

    def __init__(self, folder: Path, T: int, sites: Sequence[str], watch: Watcher) -> None:
        self._folder, self._T, self._sites, self._watch = folder, T, tuple(sites), watch
        self._lines = Rounds(folder / "rounds.jsonl")
        self.told = len(self._lines.look())
        self._stamp = self._stamped()

    def look(self) -> None:
        """Reports the rounds since the last look."""
        for line in self._lines.look()[self.told :]:
            self.told += 1
            mean = line["validation"]["mean"]
            self._watch(Seen(line["t"], self._T, mean, line["alpha"], self._sites))

    def failure(self, remedy: str) -> AutoFedAvgError | None:
        """Why the run failed, of the same kind as there; None where it has not said so."""
        said = self._stamped() != self._stamp
        status = read_json(self._folder / "status.json") if said else {}
        if status.get("state") != "failed":
            return None
        where, text = str(self._folder), status.get("error", "the run failed")
        facts = {"kind": status.get("kind"), "error": text, "where": where, "remedy": remedy}
        return error_in(facts) or RunError(text, where=where, remedy=remedy)

    def _stamped(self) -> int:
        """When the run's status was written."""
        status = self._folder / "status.json"
        return status.stat().st_mtime_ns if status.exists() else 0
