"""One row of a study, resolved: every value with its origin, and as TOML for the run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import model_validator
from torch import nn

from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError
from autofedavg.core.privacy import NONE, Privacy
from autofedavg.core.problem import LocalData
from autofedavg.core.settings import Settings, origins, setting
from autofedavg.core.trainer import Training
from autofedavg.experiment.plain_values import plain
from autofedavg.experiment.private_rows import Budget, budgets, refuse_private
from autofedavg.experiment.selection import MOST_FULL, TestLocal, where_tested
from autofedavg.experiment.toml_text import to_toml
from autofedavg.experiment.validation import PARTS, Values
from autofedavg.federation.settings import Exchange, Reach
from autofedavg.methods.base import Method
from autofedavg.tasks.base import Progress, Task


class Rounds(Settings):
    """What a row sets besides its task, its training and its method."""

    rounds: int = setting(300, origin="paper Sec. 4.2.1", help="T, communication rounds", ge=1)
    quorum: int = setting(
        0,
        origin="ours",
        help="clients that must answer a call; 0 means all, as in Algorithm 1",
        ge=0,
    )
    select: Literal["best", "last"] = setting(
        "best",
        origin="paper Sec. 4.2.1 (best); Sec. 4.1 tests after the last round",
        help="models that are tested: best on validation cases, or those after round T",
    )
    test: bool = setting(
        True,
        origin="ours: decision 70",
        help="test the selected models after training; trials of `autofedavg tune` do not",
    )
    test_every: int = setting(
        0,
        origin="ours: decision 36",
        help="rounds between scores of the global model on the test cases, which decide nothing; "
        "0 for none",
        ge=0,
    )
    test_local: TestLocal = setting(
        "auto",
        origin=f"paper Sec. 4.2 (full); ours above {MOST_FULL} sites: decision 49",
        help="where each site's own model is tested: full, at all K sites, K x K tests; own, at "
        f"its own site; none; auto is full up to {MOST_FULL} sites and own above",
    )
    keep_models: tuple[int, ...] = setting(
        (),
        origin="ours: decision 66",
        help="rounds whose K site models and global model stay in the run folder, for "
        "`autofedavg ceiling`",
    )
    ceiling: tuple[int, ...] = setting(
        (),
        origin="ours: decision 66",
        help="rounds whose models are kept, and for which the sites help to find what other "
        "weights could have gained, after the final test",
    )

    @model_validator(mode="after")
    def _kept_rounds_exist(self) -> Rounds:
        for name, rounds in (("keep_models", self.keep_models), ("ceiling", self.ceiling)):
            if wrong := [t for t in rounds if not 1 <= t <= self.rounds]:
                raise ValueError(f"{name} names round {wrong[0]}, of rounds 1 to {self.rounds}")
            if len(set(rounds)) < len(rounds):
                raise ValueError(f"{name} names a round twice")
        return self

    @model_validator(mode="after")
    def _tests_or_not(self) -> Rounds:
        asked = [name for name in ("test_every", "ceiling") if getattr(self, name)]
        asked += ["test_local"] * (self.test_local in ("full", "own"))
        if asked and not self.test:
            raise ValueError(f"{asked[0]} is set, and test is false: leave one of them out")
        return self

    @property
    def kept(self) -> frozenset[int]:
        """The rounds whose models stay in the run folder."""
        return frozenset({*self.keep_models, *self.ceiling})


@dataclass(eq=False)
class RunConfig:
    """One resolved row of a study.

    Attributes:
        name: the row's name, also its folder's.
        label: the row's name in tables.
        general: rounds and quorum.
        task, training, method, exchange, privacy: their settings.
        folds: those of the cross-validation that this run is one of.
    """

    name: str
    label: str
    general: Rounds
    task: Task
    training: Training
    method: Method
    exchange: Exchange = Exchange()  # noqa: RUF009 - frozen
    privacy: Privacy = NONE
    folds: tuple[int, ...] = ()

    def check(self, names: Sequence[str] | None = None) -> None:
        """Refuses settings that do not fit the sites.

        Args:
            names: of the sites; looked up in the data when None.

        Raises:
            ConfigError: the method or the quorum does not fit.
        """
        sites = len(self.task.site_names() if names is None else names)
        quorums = {"quorum": self.general.quorum}
        quorums |= {f"exchange.quorums.{call}": n for call, n in self.exchange.quorums.items()}
        quorums["exchange.test_quorum"] = self.exchange.test_quorum
        learns_on = self.method.learns_on
        self.method.check(sites)
        if self.general.test_every > self.T:
            raise ConfigError(
                f"test_every = {self.general.test_every} tests nothing on the way in {self.T} "
                "rounds",
                where=f"run {self.name}",
                remedy="set fewer, or leave it out",
            )
        if learns_on and not self.task.has(learns_on):
            raise ConfigError(
                f"the method learns on {learns_on} cases, but task.holdout sets no case aside",
                where=f"run {self.name}",
                remedy="set task.holdout, for every row that is to be compared",
            )
        if self.method.needs_proxy and not self.task.has("proxy"):
            known = "proxy" in type(self.task).model_fields
            raise ConfigError(
                "the method needs data at the server, and "
                + ("task.proxy is 0" if known else "this task has none"),
                where=f"run {self.name}",
                remedy="set task.proxy, for every row that is to be compared"
                if known
                else "use a task with the setting proxy, such as synthetic or cifar10",
            )
        self.method.check_exchange(self.exchange, self.general.quorum, sites)
        if not self.method.shows_models and self.general.test_local in ("full", "own"):
            raise ConfigError(
                f"test_local is {self.general.test_local!r}, and the method shows no site's own "
                "model",
                where=f"run {self.name}",
                remedy="set test_local = 'none' for this row",
            )
        self._check_ceiling(sites)
        for name, n in quorums.items():
            if n > sites:
                raise ConfigError(
                    f"{name} is {n}, and there are {sites} sites",
                    where=f"run {self.name}",
                    remedy="use 0 for all",
                )
            if self.method.needs_all and 0 < n < sites:
                raise ConfigError(
                    f"the method needs every client, and {name} is {n}",
                    where=f"run {self.name}",
                    remedy=f"set {name} = 0",
                )

    def _check_ceiling(self, sites: int) -> None:
        """Refuses to keep or weigh models that nobody may see or compare."""
        wrong, what = "", "ceiling"
        if self.general.kept and not self.method.one_network:
            wrong, what = "this method's sites have no common network", "keep_models or ceiling"
        elif self.general.kept and not self.method.shows_models:
            wrong, what = "the method shows no site's own model", "keep_models or ceiling"
        elif self.general.ceiling and sites < 2:
            wrong = "there is one site: there are no weights to choose"
        elif self.general.ceiling and self.exchange.disclose == "means":
            wrong = "exchange.disclose is 'means': halves are compared case by case"
        elif self.general.ceiling and self.privacy.on:
            wrong = "[privacy] has no noise for its gradients of test cases"
        if wrong:
            raise ConfigError(
                f"{what} is set, and {wrong}",
                where=f"run {self.name}",
                remedy=f"leave {what} out of this row",
            )

    def models_reach(self, sites: int) -> Reach:
        """Who receives a site's own models in this run, alone or in several mixtures."""
        beyond = self.tested_everywhere(sites) or bool(self.general.ceiling)
        return "sites" if beyond else self.method.models_reach

    def tested_everywhere(self, sites: int) -> bool:
        """Whether every site's best own model is sent to all others after training."""
        shown = sites > 1 and self.method.shows_models and self.general.test
        return shown and where_tested(self.general.test_local, sites) == "full"

    def cautions(self, sites: int) -> list[str]:
        """Warnings for a run between institutions."""
        found = self.method.cautions(sites)
        if self.tested_everywhere(sites):
            found.append(
                "after training, every site's best own model is tested at all sites, which receive "
                "it; test_local = 'own' sends it to no other site (decision 64)"
            )
        return found

    @property
    def T(self) -> int:
        return self.general.rounds

    @property
    def _parts(self) -> tuple[str, ...]:
        """The tables of the row; one without differential privacy has no table of it."""
        return tuple(part for part in PARTS if part != "privacy" or self.privacy.on)

    def check_network(self, network: nn.Module) -> None:
        """Refuses a network that the method, or differential privacy, cannot work with."""
        self.method.check_network(network, self.T)
        with self._named():
            refuse_private(self.privacy, self.method, network, self.T)

    def budgets(self, layout: Layout, sites: Mapping[str, LocalData]) -> dict[str, Budget]:
        """What sites will spend of their patients' privacy; refuses more than is allowed."""
        with self._named():
            return budgets(self.privacy, self.method, self.training, self.T, layout, sites)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of settings say which row they are of."""
        try:
            yield
        except ConfigError as error:
            where = f"run {self.name}, {error.where}"
            raise ConfigError(error.what, where=where, remedy=error.remedy) from error

    def origins(self) -> list[tuple[str, Any, str, str]]:
        """(path, value, origin, help) of every setting."""
        parts = [(f"{part}.", getattr(self, part)) for part in self._parts]
        holders = [("", self.general), *parts]
        return [found for prefix, holder in holders for found in origins(holder, prefix)]

    def resolved(self, progress: Progress | None = None) -> RunConfig:
        """The row with what its task leaves to the data worked out."""
        return replace(self, task=self.task.resolved(progress))

    def on_fold(self, fold: int, folds: Sequence[int]) -> RunConfig:
        """The row with this fold tested, one of several."""
        given = self.task.model_dump(exclude_unset=True)
        task = type(self.task).model_validate({**given, "fold": fold})
        return replace(self, task=task, folds=tuple(folds))

    def values(self, *, given_only: bool = False) -> Values:
        """Every value, defaults written out; or only what the study itself gave."""
        values = {"name": self.name, "label": self.label, **plain(self.general, given_only)}
        values |= {part: plain(getattr(self, part), given_only) for part in self._parts}
        if not values["exchange"]:
            del values["exchange"]
        return values

    def origin_of(self) -> dict[str, str]:
        """The origin of every setting, by its dotted path."""
        return {path: origin for path, _, origin, _ in self.origins()}

    def to_toml(self) -> str:
        """The resolved row as TOML, each value with its origin as a comment."""
        return to_toml(self.values(), self.origin_of())
