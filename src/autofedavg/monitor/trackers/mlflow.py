"""MLflow: one run per run folder, found again by a tag; a local store unless a server is named."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from autofedavg.monitor.trackers.points import LAST, flat
from autofedavg.monitor.trackers.tracked_run import TrackedRun

TAG = "autofedavg.run"
AT_ONCE = 100  # parameters, tags or metrics in one request
LONGEST = 500  # letters of a parameter or tag
STATES = {"failed": "FAILED", "interrupted": "KILLED"}
# The user's own values win.
DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # else it reports usage to MLflow's makers
    "MLFLOW_ALLOW_FILE_STORE": "true",  # the only local store of mlflow-skinny
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # the training waits meanwhile
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


class MlflowLog:
    """One run in MLflow.

    Args:
        source: the run.
        first: the first round that the run computes again. Its logged points stay, since
            MLflow cannot delete them; only their seconds differ.
    """

    def __init__(self, source: TrackedRun, first: int) -> None:
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        where = os.environ.get("MLFLOW_TRACKING_URI") or str(source.home / "mlruns")
        self._client = MlflowClient(tracking_uri=where)
        run = self._run(source)
        self._id = run.info.run_id
        self.complete = run.info.status == "FINISHED"
        history = self._client.get_metric_history(self._id, LAST)
        self.last = max((metric.step for metric in history), default=0)
        self._doubtful = True  # the next round may be there in part
        if not self.complete:
            self._describe(source, run)

    def write(self, t: int, time: float, points: Mapping[str, float]) -> None:
        self._add(t, time, points)
        self.last, self._doubtful = t, False

    def finish(self, t: int, time: float, points: Mapping[str, float]) -> None:
        self._doubtful = True
        self._add(t, time, points)
        self._client.set_terminated(self._id, "FINISHED", end_time=_milliseconds(time))

    def close(self, state: str = "") -> None:
        if state:
            self._client.set_terminated(self._id, STATES.get(state, "FAILED"))

    def _run(self, source: TrackedRun) -> Any:
        """The run of this folder: the line of its first round, with its time, is like no other."""
        content = json.dumps(source.first, sort_keys=True).encode()
        identity = hashlib.sha256(content).hexdigest()
        experiment = self._experiment(source.study)
        known = self._client.search_runs([experiment], f"tags.`{TAG}` = '{identity}'")
        if known:
            return known[0]
        tags = {TAG: identity, "mlflow.runName": source.name}
        start = _milliseconds(source.first["time"])
        return self._client.create_run(experiment, start_time=start, tags=tags)

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        known = self._client.get_experiment_by_name(name)
        if known is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another process was faster
                known = self._client.get_experiment_by_name(name)
                if known is None:
                    raise
        return str(known.experiment_id)

    def _describe(self, source: TrackedRun, run: Any) -> None:
        """Settings as parameters, environment as tags; an existing parameter stays."""
        from mlflow.entities import Param, RunTag

        about = {key: value for key, value in source.environment.items() if key != "resumed"}
        about["data"] = {key: value for key, value in about["data"].items() if key != "cases"}
        about["folder"] = str(source.folder)
        settings = [
            (key, value) for key, value in flat(source.config) if key not in run.data.params
        ]
        self._send("params", [Param(key, value[:LONGEST]) for key, value in settings])
        tags = [RunTag(f"autofedavg.{key}", value[:LONGEST]) for key, value in flat(about)]
        self._send("tags", tags)
        self._client.update_run(self._id, status="RUNNING")

    def _add(self, t: int, time: float, points: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        new = [name for name in points if not (self._doubtful and self._has(name, t))]
        self._send("metrics", [Metric(name, points[name], _milliseconds(time), t) for name in new])

    def _send(self, kind: str, entries: Sequence[Any]) -> None:
        for start in range(0, len(entries), AT_ONCE):
            self._client.log_batch(self._id, **{kind: entries[start : start + AT_ONCE]})

    def _has(self, name: str, t: int) -> bool:
        return any(metric.step == t for metric in self._client.get_metric_history(self._id, name))


def _milliseconds(time: float) -> int:
    return int(1000 * time)
