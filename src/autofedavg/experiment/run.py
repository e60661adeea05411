"""Runs one row with one seed: rounds, validation, checkpoints, and the test at the end.

It is handed a federation and imports no engine. All that is measured goes to the run folder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Model
from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import global_seed
from autofedavg.core.site import Site
from autofedavg.experiment.checkpoint_names import at_round, local_name
from autofedavg.experiment.final_test import final_test
from autofedavg.experiment.folder_writer import RunFolder, disk_errors
from autofedavg.experiment.models import (
    save_model,
    save_state,
)
from autofedavg.experiment.selection import (
    Best,
    Paused,
    Seen,
    Select,
    Selection,
    Watcher,
    have_validation,
    predicts,
)
from autofedavg.federation.messages import Scores
from autofedavg.federation.port import Federation
from autofedavg.methods.base import Method

log = logging.getLogger(__name__)


def check_run(
    method: Method, T: int, select: Select, problem: Problem, sites: Sequence[Site] | None = None
) -> None:
    """Refuses, before any work, a run that could not go to its end.

    Args:
        method: what is to be run.
        T: the last round.
        select: which models are tested.
        problem: what is learned.
        sites: who takes part, where the problem itself has no data.

    Raises:
        ConfigError: the method cannot use the network or the data, or nothing can be selected.
    """
    with global_seed(0):
        network = problem.network()
    method.check_network(network, T)
    sites = problem.roster() if sites is None else sites
    if have_validation(sites):
        return
    without = next(site.name for site in sites if not site.cases.get("validation"))
    if select == "best":
        raise ConfigError(
            "select is 'best', but there are no validation cases to choose a model by",
            where=f"site {without}",
            remedy="set select = 'last', or give every site validation cases",
        )
    if method.learns_on == "validation":
        raise ConfigError(
            "the weights are learned on validation cases, and there are none",
            where=f"site {without}",
            remedy="give the site some, or use a method, or a method.learn_on, that needs none",
        )


def run(method: Method, selection: Selection, w0: Model, watch: Watcher | None = None) -> None:
    """Runs or resumes one row; the folder's status.json says how it ended.

    Args:
        method: what is run.
        selection: the clients, the folder, and which models are kept and tested.
        w0: the initial model.
        watch: called after every round.

    Raises:
        AutoFedAvgError: the run failed; status.json says so and the last checkpoint is whole.
    """
    folder, federation, T = selection.folder, selection.federation, selection.T
    try:
        with disk_errors(folder.path):
            folder.set_status("running")
            start, best = selection.restore(w0)
            start = method.begin(federation, start) if start.t == 0 else start
            for state in method.rounds(federation, selection.layout, T, start):
                _record(selection, state, best, watch)
            federation.training_over = True
            final_test(selection, best, watch)
            folder.set_status("finished")
    except (KeyboardInterrupt, Paused):
        folder.set_status("interrupted")
        raise
    except AutoFedAvgError as error:
        _try_to_say(folder, str(error), error)
        raise
    except Exception as error:
        _try_to_say(folder, f"{type(error).__name__}: {error}", error)
        raise


def _record(selection: Selection, state: Round, best: Best, watch: Watcher | None) -> None:
    """Validates a round, keeps the models to be tested, and writes line and checkpoint."""
    federation, metric = selection.federation, selection.metric
    local: dict[str, float] = {}
    scores: Scores | None = None
    if selection.validates:
        local = federation.validate_local(state.t, state.w_k, metric) if state.w_k else {}
        if predicts(state):
            scores = federation.evaluate(state.w, "validation", metric, t=state.t)
    tested = _tested(selection, state, best)
    by_site = scores.by_site(metric) if scores else {}
    # Where a site did not answer, its latest score stands in: no round wins by its absence.
    mean = scores.mean(metric, best.seen) if scores else None
    best.seen |= by_site
    if selection.select == "best":
        _keep_best(selection, state, local, mean, best)
    elif state.t == selection.T:
        _keep_last(selection, state, best)
    account = federation.take_account()
    selection.folder.append_round(
        {
            "t": state.t,
            "alpha": _listed(state.alpha),
            "beta": _listed(state.beta),
            "learned": state.learned,
            "loss": state.losses,
            **_learning(federation),
            "validation": {"mean": mean, "sites": by_site},
            "validation_local": local,
            **tested,
            "calls": {call: asdict(cost) for call, cost in account.items()},
            "bytes_down": sum(cost.down for cost in account.values()),
            "bytes_up": sum(cost.up for cost in account.values()),
            "answered": list(state.w_k.sites) if state.w_k else [],
            "events": federation.take_events(),
            "time": time.time(),
        }
    )
    known = asdict(best)
    facts = {"models": known.pop("models"), "best": known, "network": selection.layout.describe()}
    save_state(selection.folder, state, facts)
    if watch:
        watch(Seen(state.t, selection.T, mean, _listed(state.alpha), federation.names))


def _tested(selection: Selection, state: Round, best: Best) -> dict[str, Any]:
    """The global model's test scores in a round that asks for them; nothing is chosen by them."""
    if not selection.test_every or state.t % selection.test_every or not predicts(state):
        return {}
    scores = selection.federation.evaluate(
        state.w, "test", selection.metric, record=True, t=state.t
    )
    by_site, mean = scores.by_site(selection.metric), scores.mean(selection.metric, best.tested)
    best.tested |= by_site
    return {"test": {"mean": mean, "sites": by_site}}


def _keep_best(
    selection: Selection, state: Round, local: dict[str, float], mean: float | None, best: Best
) -> None:
    """Writes the models that are better than all before, as the paper selects them."""
    if mean is not None and best.beaten_by(mean, len(best.seen)):
        best.score, best.t, best.sites = mean, state.t, len(best.seen)
        _keep(selection, state, best, "best-global", state.w, {"score": mean})
    for site, score in local.items():
        known = best.local.get(site)
        if state.w_k is not None and site in state.w_k and (not known or score > known[0]):
            best.local[site] = (score, state.t)
            facts = {"score": score, "site": site}
            _keep(selection, state, best, local_name("best", site), state.w_k[site], facts)


def _keep_last(selection: Selection, state: Round, best: Best) -> None:
    """Writes the models after the last round."""
    if predicts(state):
        _keep(selection, state, best, "final-global", state.w, {})
    if state.w_k is not None:
        for site in state.w_k.sites:
            name = local_name("final", site)
            _keep(selection, state, best, name, state.w_k[site], {"site": site})


def _keep(
    selection: Selection,
    state: Round,
    best: Best,
    name: str,
    w: Model | Bank,
    facts: dict[str, Any],
) -> None:
    """Writes a model beside the one it is to replace, which holds until the round's checkpoint."""
    best.models[name] = at_round(name, state.t)
    save_model(selection.folder, best.models[name], w, selection.layout, {"t": state.t, **facts})


def _learning(federation: Federation) -> dict[str, Any]:
    """Losses of LearnAggWeight's steps, in a round that called it; of six digits, being many."""
    losses = federation.take_learning_losses()
    if not losses:
        return {}
    return {
        "learning_loss": {
            site: [value if value is None else float(f"{value:.6g}") for value in values]
            for site, values in losses.items()
        }
    }


def _listed(values: Tensor | None) -> list[Any] | None:
    return None if values is None else list(values.tolist())


def _try_to_say(folder: RunFolder, text: str, error: Exception) -> None:
    """Writes the failure into status.json; a full disk must not hide the first error."""
    try:
        folder.set_status("failed", text, type(error).__name__)
    except (OSError, RunError):
        log.error("could not write status.json: %s", text)
