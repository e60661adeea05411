"""Runs one row with one seed: rounds, validation, checkpoints, and the test at the end.

It is handed a federation and imports no engine. All that is measured goes to the run folder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from torch import Tensor

from autofedavg.algorithm import Round
from autofedavg.averaging import Bank, Layout, Model
from autofedavg.errors import AutoFedAvgError, RunError
from autofedavg.evaluation import ScoreRow
from autofedavg.experiment.store import (
    Checkpoint,
    RunFolder,
    disk_errors,
    model_tensors,
    no_counters,
)
from autofedavg.federation import Federation
from autofedavg.method import Method
from autofedavg.notes import Scores

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """What a progress display is told after each round."""

    t: int
    T: int
    validation: float | None
    alpha: list[Any] | None
    sites: tuple[str, ...]


Watcher = Callable[[Seen], None]


@dataclass
class Best:
    """The best models so far: their scores and rounds; the models themselves are on disk."""

    score: float | None = None
    t: int = 0
    local: dict[str, tuple[float, int]] = field(default_factory=dict)


def run(
    method: Method,
    T: int,
    federation: Federation,
    w0: Model,
    layout: Layout,
    metric: str,
    folder: RunFolder,
    watch: Watcher | None = None,
) -> None:
    """Runs, or goes on with, one row; the folder says in the end how it went.

    Args:
        method: what is run.
        T: the last round.
        federation: the clients.
        w0: the initial model.
        layout: the network's layout.
        metric: the score that selects models.
        folder: where everything is written; its checkpoints decide where to start.
        watch: told of every round.

    Raises:
        AutoFedAvgError: the run failed; status.json says so and the last checkpoint is whole.
    """
    try:
        with disk_errors(folder.path):
            folder.set_status("running")
            start, best = _restore(folder, federation, w0, layout)
            start = method.begin(federation, start) if start.t == 0 else start
            for state in method.rounds(federation, layout, T, start):
                _record(state, federation, metric, folder, best, layout, T, watch)
            federation.training_over = True
            _test(federation, folder, best, layout)
            folder.set_status("finished")
    except KeyboardInterrupt:
        folder.set_status("interrupted")
        raise
    except AutoFedAvgError as error:
        _try_to_say(folder, str(error))
        raise
    except Exception as error:
        _try_to_say(folder, f"{type(error).__name__}: {error}")
        raise


def _record(
    state: Round,
    federation: Federation,
    metric: str,
    folder: RunFolder,
    best: Best,
    layout: Layout,
    T: int,
    watch: Watcher | None,
) -> None:
    """Validates a round, keeps the best models, and writes line and checkpoint."""
    local = federation.validate_local(state.t, state.w_k, metric) if state.w_k else {}
    scores: Scores | None = None
    if isinstance(state.w, Model):
        scores = federation.evaluate(state.w, "validation")
    mean = scores.mean(metric) if scores else None
    _keep_best(state, local, mean, folder, best, layout)
    account = federation.take_account()
    folder.append_round(
        {
            "t": state.t,
            "alpha": _listed(state.alpha),
            "beta": _listed(state.beta),
            "learned": state.learned,
            "loss": state.losses,
            "validation": {"mean": mean, "sites": scores.by_site(metric) if scores else {}},
            "validation_local": local,
            "calls": {call: asdict(cost) for call, cost in account.items()},
            "bytes_down": sum(cost.down for cost in account.values()),
            "bytes_up": sum(cost.up for cost in account.values()),
            "answered": list(state.w_k.sites) if state.w_k else [],
            "time": time.time(),
        }
    )
    facts = {"best": asdict(best), "network": layout.describe()}
    folder.save_round(state.t, _state_tensors(state), facts)
    if watch:
        watch(Seen(state.t, T, mean, _listed(state.alpha), federation.names))


def _keep_best(
    state: Round,
    local: dict[str, float],
    mean: float | None,
    folder: RunFolder,
    best: Best,
    layout: Layout,
) -> None:
    """Writes the models that are better than all before, as the paper selects them."""
    if (
        mean is not None
        and isinstance(state.w, Model)
        and (best.score is None or mean > best.score)
    ):
        best.score, best.t = mean, state.t
        _save_model(folder, "best-global", state.w, layout, {"t": state.t, "score": mean})
    for site, score in local.items():
        known = best.local.get(site)
        if state.w_k is not None and site in state.w_k.sites and (not known or score > known[0]):
            best.local[site] = (score, state.t)
            facts = {"t": state.t, "score": score, "site": site}
            _save_model(folder, best_local(site), state.w_k[site], layout, facts)


def _test(federation: Federation, folder: RunFolder, best: Best, layout: Layout) -> None:
    """Scores the selected models on every site's test cases."""
    models = {"global": "best-global"} if best.score is not None else {}
    models |= {f"local-{site}": best_local(site) for site in sorted(best.local)}
    rows = []
    for name, checkpoint in models.items():
        model = layout.model(folder.load(checkpoint).tensors)
        rows += [
            ScoreRow(name, s.site, "test", *s[1:]) for s in federation.evaluate(model, "test").rows
        ]
    folder.write_scores(rows)


def _restore(
    folder: RunFolder, federation: Federation, w0: Model, layout: Layout
) -> tuple[Round, Best]:
    """Where to start: round 0, or the newest whole checkpoint."""
    saved = folder.load_round()
    if saved is None:
        folder.keep_rounds(0)
        return Round(0, w0), Best()
    if saved.facts["network"] != layout.describe():
        raise RunError(
            "its checkpoint holds another network than the one to be trained",
            where=str(folder.path),
            remedy="go on with the version the run was begun with, or begin anew elsewhere",
        )
    t = int(saved.facts["t"])
    folder.keep_rounds(t)
    log.info("going on after round %d", t)
    known = saved.facts["best"]
    local = {site: (float(score), int(at)) for site, (score, at) in known["local"].items()}
    return _state(t, saved, federation), Best(known["score"], known["t"], local)


def _state_tensors(state: Round) -> dict[str, Tensor]:
    tensors = model_tensors("w", state.w.values, state.w.counters)
    for name in ("beta", "alpha"):
        value = getattr(state, name)
        if value is not None:
            tensors[name] = value
    return tensors


def _state(t: int, saved: Checkpoint, federation: Federation) -> Round:
    values = saved.tensors["w.values"]
    one = values.dim() == 1
    counters = saved.tensors.get("w.counters", no_counters(None if one else len(values)))
    w = Model(values, counters) if one else Bank(federation.names, values, counters)
    return Round(t, w, saved.tensors.get("beta"), saved.tensors.get("alpha"))


def _save_model(
    folder: RunFolder, name: str, model: Model, layout: Layout, facts: dict[str, Any]
) -> None:
    named = layout.state_dict(model)
    folder.save(name, {key: tensor.clone() for key, tensor in named.items()}, facts)


def best_local(site: str) -> str:
    """The checkpoint of a site's best local model; a site's name may hold any character."""
    return f"best-local-{quote(site, safe='')}"


def _listed(values: Tensor | None) -> list[Any] | None:
    return None if values is None else list(values.tolist())


def _try_to_say(folder: RunFolder, error: str) -> None:
    """Writes the failure into status.json; a full disk must not hide the first error."""
    try:
        folder.set_status("failed", error)
    except (OSError, RunError):
        log.error("could not write status.json: %s", error)
