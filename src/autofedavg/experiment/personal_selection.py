"""Which personal models of a run are kept and tested: each site's best, or its last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofedavg.algorithm import Round
from autofedavg.core.bank import Layout, Model
from autofedavg.core.local_rules import LocalRule
from autofedavg.core.scores import MeanRow, ScoreRow
from autofedavg.experiment.checkpoint_names import site_name
from autofedavg.experiment.selection import Best
from autofedavg.federation.disclosure import score_row
from autofedavg.federation.messages import model_of
from autofedavg.federation.port import Federation
from autofedavg.methods.base import Method

Keep = Callable[[str, int, Model, dict[str, Any]], None]


@dataclass(frozen=True)
class PersonalSelection:
    """Personal models stay at the sites; in a simulation the folder has those to be tested, too.

    Attributes:
        federation: the clients.
        layout: the network's layout.
        best: the models selected so far.
        keep: writes a model to the folder, by name, round and facts.
    """

    federation: Federation
    layout: Layout
    best: Best
    keep: Keep

    def keep_better(self, t: int, scores: Mapping[str, float]) -> None:
        """Keeps the models that are better than all before at their own sites."""
        personal, known = self.federation.personal, self.best.personal
        lost = known.keys() - personal.held  # by a site that has started again
        better = {k: s for k, s in scores.items() if k not in known or s > known[k][0] or k in lost}
        for site, score in better.items():
            known[site] = (score, t)
            personal.held[site] = personal.predictors[site]
        found = self.federation.kept({site: personal.held[site] for site in better})
        for site, kept in found.items():
            facts = {"score": scores[site], "site": site}
            self.keep(site_name("best", "personal", site), t, model_of(kept), facts)

    def keep_last(self, state: Round) -> None:
        """Keeps the models after the last round, of a method that has any."""
        if state.personal is None or not isinstance(state.w, Model):
            return
        for site, kept in self.federation.kept(self.federation.personal.states).items():
            model = state.personal.predictor(self.layout, state.w, kept)
            self.keep(site_name("final", "personal", site), state.t, model, {"site": site})

    def last_rows(self) -> Sequence[ScoreRow | MeanRow]:
        """The test scores that came with those of the last global model."""
        return [
            score_row(f"personal-{site}", "test", row)
            for site, rows in self.federation.personal_rows.items()
            for row in rows
        ]


def personal_rule(method: Method, layout: Layout) -> LocalRule | None:
    """The rule that makes personal models, where the method has one."""
    rule = method.local(layout).rule
    return rule if rule.keeps else None
