"""After the last round: the selected models on the test cases of the sites."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from autofedavg.core.bank import Bank, Model
from autofedavg.core.scores import ScoreRow
from autofedavg.experiment.checkpoint_names import local_name
from autofedavg.experiment.models import load_model, load_state
from autofedavg.experiment.selection import (
    KINDS,
    Best,
    Seen,
    Selection,
    Watcher,
    local_tests,
    predicts,
    where_tested,
)

log = logging.getLogger(__name__)


def final_test(selection: Selection, best: Best, watch: Watcher | None) -> None:
    """Scores the selected models, and the last global one, and writes scores.csv.

    The global model is tested at every site; sites' own models where `test_local` says.
    """
    folder, layout, sites = selection.folder, selection.layout, selection.federation.names
    kind, where = KINDS[selection.select], where_tested(selection.test_local, len(sites))
    names = {"global": f"{kind}-global"}
    if where == "full":
        names |= {f"local-{site}": local_name(kind, site) for site in sites}
    else:
        tried = local_tests(selection.test_local, len(sites))
        log.info("sites' own models: %d tests (%s) instead of %d", tried, where, len(sites) ** 2)
    rows: list[ScoreRow] = []
    done, tests = 0, len(names) + (where == "own")

    def score(name: str, w: Model | Bank | Mapping[str, Model]) -> None:
        nonlocal done
        log.info("testing %s", name)
        if watch:
            watch(Seen(selection.T, selection.T, None, None, sites, (done, tests)))
        done += 1
        for row in selection.federation.evaluate(w, "test", selection.metric, t=selection.T).rows:
            model = f"local-{row.site}" if isinstance(w, Mapping) else name
            rows.append(ScoreRow(model, row.site, "test", *row[1:]))

    for name, checkpoint in names.items():
        if checkpoint in best.models:
            score(name, load_model(folder, best.models[checkpoint], layout))
    if where == "own" and (own := _own_models(selection, best, kind)):
        score("local", own)
    if (last := _last_global(selection, best)) is not None:
        score("global-last", last)
    folder.write_scores(rows)
    events = selection.federation.take_events()
    folder.add_events([event for event in events if event["what"] in ("lost", "dropped")])


def _last_global(selection: Selection, best: Best) -> Model | Bank | None:
    """The global model of the last round, where an earlier one was selected."""
    if selection.select != "best" or best.t >= selection.T:
        return None
    saved = selection.folder.load_round()
    state = load_state(saved, selection.federation.names) if saved else None
    return state.w if state and predicts(state) else None


def _own_models(selection: Selection, best: Best, kind: str) -> dict[str, Model]:
    """The models of the sites that have one on disk."""
    names = {site: local_name(kind, site) for site in selection.federation.names}
    kept = {site: best.models[name] for site, name in names.items() if name in best.models}
    loaded = ((s, load_model(selection.folder, n, selection.layout)) for s, n in kept.items())
    return {site: w for site, w in loaded if isinstance(w, Model)}
