"""Runs one row with one seed: rounds, validation, checkpoints, and the test at the end.

It is handed a federation and imports no engine. All that is measured goes to the run folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.errors import AutoFedAvgError, ConfigError, RunError
from autofedavg.core.privacy import NONE, Privacy
from autofedavg.core.problem import Problem
from autofedavg.core.scores import MeanRow, ScoreRow
from autofedavg.core.seeds import global_seed
from autofedavg.core.site import Site
from autofedavg.experiment.checkpoint_names import at_round, site_name
from autofedavg.experiment.folder_writer import RunFolder, disk_errors
from autofedavg.experiment.kept_models import keep
from autofedavg.experiment.models import load_model, load_state, save_model, save_state
from autofedavg.experiment.oracle import Oracle, ceiling
from autofedavg.experiment.personal_selection import PersonalSelection, personal_rule
from autofedavg.experiment.privacy_account import PrivacyAccount
from autofedavg.experiment.round_line import listed, round_line
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
from autofedavg.federation.disclosure import score_row
from autofedavg.federation.messages import Scores
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
        privacy: the noise on what sites send, for the account of it.
        device: what the server computes on.
        best: the models selected so far.
    """

    method: Method
    general: Rounds
    federation: Federation
    layout: Layout
    metric: str
    folder: RunFolder
    privacy: Privacy = NONE
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
                self._account = PrivacyAccount(self.privacy, self.folder.rounds())
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
            self._personal.keep_better(state.t, own)
        elif state.t == self.general.rounds:
            self._keep_last(state)
        measured = {
            "validation": validation,
            "validation_local": local,
            **({"validation_personal": dict(own)} if own else {}),
            **tested,
            **self._account.record(federation.take_spent()),
        }
        self.folder.append_round(round_line(state, federation, measured))
        known = asdict(best)
        models = known.pop("models")
        facts = {"models": models, "best": known, "network": self.layout.describe()}
        if federation.personal.states:
            facts["personal"] = asdict(federation.personal)
        save_state(self.folder, state, facts, federation.copies())
        T, alpha = self.general.rounds, listed(state.alpha)
        return Seen(state.t, T, validation["mean"], alpha, federation.names)

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

    def _keep_last(self, state: Round) -> None:
        """Writes the models after the last round."""
        if predicts(state):
            self._keep("final-global", state.t, state.w, {})
        if state.w_k is not None:
            for site in state.w_k.sites:
                name = site_name("final", "local", site)
                self._keep(name, state.t, state.w_k[site], {"site": site})
        self._personal.keep_last(state)

    def _keep(self, name: str, t: int, w: Model | Bank, facts: dict[str, Any]) -> None:
        """Writes a model next to the one it replaces, which holds until the round's checkpoint."""
        self.best.models[name] = at_round(name, t)
        save_model(self.folder, self.best.models[name], w, self.layout, {"t": t, **facts})

    def _test(self, watch: Watcher | None) -> None:
        """Scores the selected models, and the last global one, and writes scores.csv."""
        T, K = self.general.rounds, self.federation.K
        shown = self.method.shows_models and self.general.test
        where = where_tested(self.general.test_local, K) if shown else "none"
        if where != "full" and shown:
            tests = local_tests(self.general.test_local, K)
            log.info("sites' own models: %d tests (%s) instead of %d", tests, where, K * K)
        total = 1 + {"full": K, "own": 1, "none": 0}[where]
        rows: list[ScoreRow | MeanRow] = []
        for done, (name, w) in enumerate(self._models_to_test(where)):
            log.info("testing %s", name)
            if watch:
                watch(Seen(T, T, None, None, self.federation.names, (done, total)))
            last = name == "global" and self.general.select == "last"
            rule = personal_rule(self.method, self.layout) if last else None
            scores = self.federation.evaluate(w, "test", self.metric, t=T, personal=rule)
            for row in scores.rows:
                model = f"{name}-{row.site}" if isinstance(w, Mapping) else name
                rows.append(score_row(model, "test", row))
            rows += self._personal.last_rows() if rule else []
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
        if not self.general.test:
            return
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
    def _personal(self) -> PersonalSelection:
        return PersonalSelection(self.federation, self.layout, self.best, self._keep)

    def _load(self, stem: str) -> Model | Bank:
        return load_model(self.folder, stem, self.layout)
