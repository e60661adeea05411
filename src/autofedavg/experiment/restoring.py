"""Where a run goes on: from its newest whole checkpoint, or from the beginning."""

from __future__ import annotations

import logging

from autofedavg.algorithm import Round
from autofedavg.core.bank import Model
from autofedavg.core.errors import RunError
from autofedavg.experiment.bounded_reader import naming
from autofedavg.experiment.folder_writer import ANEW, Checkpoint
from autofedavg.experiment.models import load_state
from autofedavg.experiment.selection import Best, Selection

log = logging.getLogger(__name__)


def restore(selection: Selection, w0: Model) -> tuple[Round, Best]:
    """Where to start: round 0, or the newest whole checkpoint."""
    folder = selection.folder
    saved = folder.load_round()
    if saved is None:
        folder.keep_rounds(0)
        return Round(0, w0), Best()
    at = folder.path / "checkpoints" / f"last-{saved.facts.get('t')}.json"
    with naming(at, "this checkpoint cannot be gone on from", ANEW):
        return _gone_on(selection, saved)


def _gone_on(selection: Selection, saved: Checkpoint) -> tuple[Round, Best]:
    folder = selection.folder
    if saved.facts["network"] != selection.layout.describe():
        raise RunError(
            "its checkpoint holds another network than the one to be trained",
            where=str(folder.path),
            remedy="go on with the version the run was begun with, or begin anew elsewhere",
        )
    state = load_state(saved, selection.federation.names)
    models = folder.checkpoints.held(state.t) or {}
    folder.tidy()  # a model of a round that is run again may be of another history
    folder.keep_rounds(state.t)
    log.info("going on after round %d", state.t)
    known = saved.facts["best"]
    local = {site: (float(score), int(at)) for site, (score, at) in known["local"].items()}
    seen, tested = (
        {str(site): float(score) for site, score in known.get(name, {}).items()}
        for name in ("seen", "tested")
    )
    sites = int(known.get("sites", selection.federation.K))  # earlier versions: all of them
    return state, Best(known["score"], known["t"], local, sites, seen, tested, models)
