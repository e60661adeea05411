"""Runs one row with one seed: rounds, validation, checkpoints, and the test at the end.

It is handed a federation and imports no engine. All that is measured goes to the run folder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.core.local_rules import LocalRule
from autofedavg.core.problem import Problem
from autofedavg.core.scores import ScoreRow
from autofedavg.core.seeds import global_seed
from autofedavg.core.site import Site
from autofedavg.experiment.checkpoint_names import at_round, site_name
from autofedavg.experiment.folder_writer import RunFolder, disk_errors
from autofedavg.experiment.kept_models import keep
from autofedavg.experiment.models import load_model, load_state, save_model, save_state
from autofedavg.experiment.oracle import Oracle, ceiling
from autofedavg.experiment.rows import Rounds
from autofedavg.experiment.selection import (
    KINDS,
    Best,
    Paused,
    Seen,
    Select,
    Watcher,
    have_validation,
    local_tests,
    predicts,
    restore,
    where_tested,
)
from autofedavg.federation.messages import Scores, model_of
from autofedavg.federation.port import Federation
from autofedavg.methods.base import Method

log = logging.getLogger(__name__)


def check_run(
    method: Method, T: int, select: Select, problem: Problem, sites: Sequence[Site] | None = None
) -> None:
    """Refuses, before any work, a run that could not go to its end.

    `sites` take part where the problem itself has no data.

    Raises:
        ConfigError: the method cannot use the network or the data, or nothing can be selected.
    """
    if method.needs_proxy and problem.proxy is None:
        raise ConfigError(
            "the method needs data at the server, and there is none",
            where="method",
            remedy="set task.proxy (synthetic, cifar10), or give federate(proxy=)",
        )
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


@dataclass
class RunLoop:
    """One run: what is run, on which clients, and the folder that records it.

    Attributes:
        general: rounds, and which models are kept and tested.
        metric: the score that selects models.
        folder: where everything is written; its checkpoints decide where to start.
        device: what the server computes on.
        best: the models selected so far.
    """

    method: Method
    general: Rounds
    federation: Federation
    layout: Layout
    metric: str
    folder: RunFolder
    device: str = "cpu"
    best: Best = field(default_factory=Best, init=False)

    def run(self, w0: Model, watch: Watcher | None = None) -> None:
        """Runs all rounds from the initial model w0, or those after the last checkpoint.

        Args:
            w0: the initial model.
            watch: called after every round, and before every test of a model.

        Raises:
            AutoFedAvgError: the run failed; status.json says so and the last checkpoint is whole.
        """
        try:
            with disk_errors(self.folder.path):
                self.folder.set_status("running")
                start, self.best = restore(self.folder, self.layout, self.federation, w0)
                start = self.method.begin(self.federation, start) if start.t == 0 else start
                oracle = self._oracle()
                T = self.general.rounds
                for state in self.method.rounds(self.federation, self.layout, T, start):
                    seen = self._record(state)
                    if watch:
                        watch(seen)
                self.federation.training_over = True
                self._test(watch)
                if oracle:
                    rounds = sorted(self.general.ceiling)
                    self.folder.write_ceiling(ceiling(oracle, self.folder, rounds, self.device))
                self.folder.set_status("finished")
        except (KeyboardInterrupt, Paused):
            self.folder.set_status("interrupted")
            raise
        except Exception as error:
            ours = isinstance(error, AutoFedAvgError)
            text = str(error) if ours else f"{type(error).__name__}: {error}"
            try:
                self.folder.set_status("failed", text, type(error).__name__)
            except (OSError, RunError):  # a full disk must not hide the first error
                log.error("could not write status.json: %s", text)
            raise

    def _record(self, state: Round) -> Seen:
        """Validates a round, keeps the models to be tested, and writes line and checkpoint."""
        federation, best = self.federation, self.best
        local: dict[str, float] = {}
        scores: Scores | None = None
        if have_validation(federation.sites):
            if state.w_k:
                local = federation.validate_local(state.t, state.w_k, self.metric)
            if predicts(state):
                scores = federation.evaluate(
                    state.w, "validation", self.metric, t=state.t, personal=state.personal
                )
        own = federation.personal.scores if state.personal and scores else {}
        tested = self._tested(state)
        if state.t in self.general.kept:
            keep(self.folder, state, self.layout)
        validation = self._scored(scores, best.seen)
        if self.general.select == "best":
            self._keep_best(state, local, validation["mean"])
            self._keep_personal(state.t, own)
        elif state.t == self.general.rounds:
            self._keep_last(state)
        account = federation.take_account()
        alpha = _listed(state.alpha)
        self.folder.append_round(
            {
                "t": state.t,
                "alpha": alpha,
                "beta": _listed(state.beta),
                "learned": state.learned,
                "loss": state.losses,
                **_learning(federation),
                "validation": validation,
                "validation_local": local,
                **({"validation_personal": dict(own)} if own else {}),
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
        models = known.pop("models")
        facts = {"models": models, "best": known, "network": self.layout.describe()}
        if state.personal:
            facts["personal"] = asdict(federation.personal)
        save_state(self.folder, state, facts, federation.copies())
        return Seen(state.t, self.general.rounds, validation["mean"], alpha, federation.names)

    def _tested(self, state: Round) -> dict[str, Any]:
        """The global model's test scores in a round that asks for them; they choose nothing."""
        every = self.general.test_every
        if not every or state.t % every or not predicts(state):
            return {}
        scores = self.federation.evaluate(state.w, "test", self.metric, record=True, t=state.t)
        return {"test": self._scored(scores, self.best.tested)}

    def _scored(self, scores: Scores | None, seen: dict[str, float]) -> dict[str, Any]:
        """Mean and sites' scores; `seen` are the latest of every site, and are updated.

        The latest score stands in for a site that did not reply: no round wins by its absence.
        """
        if scores is None:
            return {"mean": None, "sites": {}}
        by_site, mean = scores.by_site(self.metric), scores.mean(self.metric, seen)
        seen |= by_site
        return {"mean": mean, "sites": by_site}

    def _keep_best(self, state: Round, local: dict[str, float], mean: float | None) -> None:
        """Writes the models that are better than all before, as the paper selects them."""
        best = self.best
        if mean is not None and best.beaten_by(mean, len(best.seen)):
            best.score, best.t, best.sites = mean, state.t, len(best.seen)
            self._keep("best-global", state.t, state.w, {"score": mean})
        for site, score in local.items():
            known = best.local.get(site)
            if state.w_k is not None and site in state.w_k and (not known or score > known[0]):
                best.local[site] = (score, state.t)
                facts = {"score": score, "site": site}
                self._keep(site_name("best", "local", site), state.t, state.w_k[site], facts)

    def _keep_personal(self, t: int, scores: Mapping[str, float]) -> None:
        """Selects personal models; in a simulation they are written to the folder, too."""
        personal, known = self.federation.personal, self.best.personal
        lost = known.keys() - personal.held  # by a site that has started again
        better = {k: s for k, s in scores.items() if k not in known or s > known[k][0] or k in lost}
        for site, score in better.items():
            known[site] = (score, t)
            personal.held[site] = personal.predictors[site]
        found = self.federation.kept({site: personal.held[site] for site in better})
        for site, kept in found.items():
            facts = {"score": scores[site], "site": site}
            self._keep(site_name("best", "personal", site), t, model_of(kept), facts)

    def _keep_last(self, state: Round) -> None:
        """Writes the models after the last round."""
        if predicts(state):
            self._keep("final-global", state.t, state.w, {})
        if state.w_k is not None:
            for site in state.w_k.sites:
                name = site_name("final", "local", site)
                self._keep(name, state.t, state.w_k[site], {"site": site})
        if state.personal and isinstance(state.w, Model):
            for site, kept in self.federation.kept(self.federation.personal.states).items():
                model = state.personal.predictor(self.layout, state.w, kept)
                self._keep(site_name("final", "personal", site), state.t, model, {"site": site})

    def _keep(self, name: str, t: int, w: Model | Bank, facts: dict[str, Any]) -> None:
        """Writes a model next to the one it replaces, which holds until the round's checkpoint."""
        self.best.models[name] = at_round(name, t)
        save_model(self.folder, self.best.models[name], w, self.layout, {"t": t, **facts})

    def _test(self, watch: Watcher | None) -> None:
        """Scores the selected models, and the last global one, and writes scores.csv."""
        T, K = self.general.rounds, self.federation.K
        where = where_tested(self.general.test_local, K)
        if where != "full":
            tests = local_tests(self.general.test_local, K)
            log.info("sites' own models: %d tests (%s) instead of %d", tests, where, K * K)
        total = 1 + {"full": K, "own": 1, "none": 0}[where]
        rows: list[ScoreRow] = []
        for done, (name, w) in enumerate(self._models_to_test(where)):
            log.info("testing %s", name)
            if watch:
                watch(Seen(T, T, None, None, self.federation.names, (done, total)))
            rule = self._rule if name == "global" and self.general.select == "last" else None
            scores = self.federation.evaluate(w, "test", self.metric, t=T, personal=rule)
            for row in scores.rows:
                model = f"{name}-{row.site}" if isinstance(w, Mapping) else name
                rows.append(ScoreRow(model, row.site, "test", *row[1:]))
            if rule:
                for site, each in self.federation.personal_rows.items():
                    rows += [ScoreRow(f"personal-{site}", site, "test", *row[1:]) for row in each]
        self.folder.write_scores(rows)
        events = self.federation.take_events()
        self.folder.add_events([event for event in events if event["what"] in ("lost", "dropped")])

    def _oracle(self) -> Oracle | None:
        """What finds the ceiling at the end, where it is asked for; refuses sites it cannot use."""
        if not self.general.ceiling:
            return None
        T, where = self.general.rounds, where_tested(self.general.test_local, self.federation.K)
        local = where == "full"
        return Oracle(self.federation, self.layout, T, "test", self.metric, local=local)

    def _models_to_test(
        self, where: str
    ) -> Iterator[tuple[str, Model | Bank | Mapping[str, Model | str]]]:
        """By name: the global model, sites' own as `where` says, personal ones, the last global."""
        kind, kept = KINDS[self.general.select], self.best.models
        names = {site: site_name(kind, "local", site) for site in self.federation.names}
        own = {site: kept[name] for site, name in names.items() if name in kept}
        if f"{kind}-global" in kept:
            yield "global", self._load(kept[f"{kind}-global"])
        if where == "full":
            for site, stem in own.items():
                yield f"local-{site}", self._load(stem)
        elif where == "own" and own:
            loaded = {site: self._load(stem) for site, stem in own.items()}
            yield "local", {site: w for site, w in loaded.items() if isinstance(w, Model)}
        if self.general.select == "best" and self.federation.personal.held:
            yield "personal", dict(self.federation.personal.held)
        if self.general.select == "best" and self.best.t < self.general.rounds:
            saved = self.folder.load_round()
            last = load_state(saved, self.federation.names) if saved else None
            if last and predicts(last):
                yield "global-last", last.w

    @property
    def _rule(self) -> LocalRule | None:
        """The rule that makes personal models, where the method has one."""
        rule = self.method.local(self.layout).rule
        return rule if rule.keeps else None

    def _load(self, stem: str) -> Model | Bank:
        return load_model(self.folder, stem, self.layout)


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
