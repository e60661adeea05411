"""The server's side: one round of Algorithm 1 over models that another engine has trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from autofedavg import __version__
from autofedavg.algorithm import Round, among, auto_fedavg
from autofedavg.core.bank import Bank, Layout
from autofedavg.core.call_schedule import BATCHES
from autofedavg.core.errors import ConfigError, FederationError, did_you_mean, error_facts
from autofedavg.core.evaluation import loss_ends
from autofedavg.core.seeds import Secret, Seeds
from autofedavg.core.site import Facts
from autofedavg.engines.dropin.layouts import difference, layout_from, model_from
from autofedavg.engines.dropin.transport import Channel, DropinTransport
from autofedavg.experiment.validation import validate
from autofedavg.federation.calls import Ask, Calls
from autofedavg.federation.messages import Message, arrays_of
from autofedavg.federation.port import Federation
from autofedavg.federation.replies import BadReply
from autofedavg.federation.settings import Exchange
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.shared.conflicts import refuse_idle

# Sites supply their batches; and the engine's own training shows models, so nothing is blind.
METHOD = frozenset(AutoFedAvg.model_fields) - (
    {"name", "learn_on", "sketch", "batches", "show_weights"}
)
EXCHANGE = frozenset({"deadline", "retries", "bad_answers"})
SETTINGS = METHOD | EXCHANGE | {"quorum", "seed"}
TRAINED_BY_ENGINE = {"local_train": 1}  # the engine decides how many sites must train


@dataclass(frozen=True)
class Learned:
    """The result of a round.

    Attributes:
        state: the global model, as named tensors.
        alpha: every site's weight, or its weights of all layers.
        layers: the names of the layers; empty with one weight per site.
        learned: whether LearnAggWeight ran in this round.
        events: sites that did not reply, were dropped, or were asked again.
        losses: every site's loss in every step of LearnAggWeight; None where it missed one.
        verdict: with t0 = "auto", whether a call paid: `gain`, `error`, `paid` and `next`.
    """

    state: dict[str, Tensor]
    alpha: dict[str, list[float]]
    layers: tuple[str, ...]
    learned: bool
    events: list[dict[str, Any]]
    losses: dict[str, list[float | None]]
    verdict: Facts = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """The round's numbers by name.

        The weights are `alpha/<site>`, or `alpha/<site>/<layer>`. If they were learned, the
        loss is `learning_loss/first` and `learning_loss/last` (`loss_ends`). With t0 = "auto",
        `verdict/gain` is how much the call lowered it on other batches, and `verdict/paid` is 1 if
        that is more than noise.
        """
        found: dict[str, float] = {}
        if ends := loss_ends(self.losses):
            _, found["learning_loss/first"], found["learning_loss/last"] = ends
        if self.verdict:
            found |= {
                "verdict/gain": self.verdict["gain"],
                "verdict/paid": float(self.verdict["paid"]),
            }
        for site, weights in self.alpha.items():
            names = [f"alpha/{site}/{layer}" for layer in self.layers] or [f"alpha/{site}"]
            found |= zip(names, weights, strict=True)
        return found

    def __str__(self) -> str:
        """The weights on one line, for a log."""
        numbers = {
            site: f"{min(weights):.4f} to {max(weights):.4f}"
            if self.layers
            else f"{weights[0]:.4f}"
            for site, weights in self.alpha.items()
        }
        how = "learned" if self.learned else "kept"
        return f"{how}: " + ", ".join(f"{site} {number}" for site, number in numbers.items())


class WeightLearner:
    """Learns the weights of the sites that have trained; keeps beta between the rounds.

    A site that misses a round keeps its beta; a new one starts at beta0.

    Args:
        where: the class whose arguments these are, for errors.
        **settings: those of the method `auto-fedavg` except `learn_on` (sites supply their
            batches), and `deadline`, `retries`, `bad_answers`, `quorum` and `seed` of a study.

    Raises:
        ConfigError: a setting is unknown or wrong.
    """

    def __init__(self, where: str, **settings: Any) -> None:
        for name in settings:
            if name not in SETTINGS:
                raise ConfigError(
                    f"{name} is not a setting of learned weights",
                    where=where,
                    remedy=did_you_mean(name, SETTINGS),
                )
        chosen = {name: value for name, value in settings.items() if name in METHOD}
        self.method: AutoFedAvg = validate(AutoFedAvg, chosen, where, "")
        refuse_idle(dict(self.method))
        given = {name: value for name, value in settings.items() if name in EXCHANGE}
        given["quorums"] = TRAINED_BY_ENGINE
        self.exchange: Exchange = validate(Exchange, given, where, "")
        for name, value in (("objective", "size"), ("when_idle", "sizes"), ("start", "sizes")):
            if getattr(self.method, name) == value:
                raise ConfigError(
                    f"{name} = {value!r} needs every site's number of training cases, and this "
                    "engine's sites do not send it",
                    where=where,
                    remedy=f"leave {name} out, or run a study of this package",
                )
        if not self.method.shows_models:
            raise ConfigError(
                "learning = 'blind' hides models, and the engine's own training sends them",
                where=where,
                remedy="run the method auto-fedavg as a job instead, or use learning = 'server'",
            )
        self.quorum, self.seed = settings.get("quorum", 0), settings.get("seed", 0)
        for name, value in (("quorum", self.quorum), ("seed", self.seed)):
            if not isinstance(value, int) or not 0 <= value < 2**63:
                raise ConfigError(f"{name} is {value!r}", where=where, remedy="use 0, 1, 2, ...")
        self._names: dict[str, str] = {}  # by address
        self._layout: tuple[str, Layout] | None = None  # and who described it first
        self._beta: dict[str, Tensor] = {}
        self._memory: dict[str, Tensor] = {}  # which rounds learn, with t0 = "auto"
        self.secret: Seeds = Secret.new()  # not the seed, which the sites receive

    def round(
        self,
        t: int,
        w: Mapping[str, Tensor],
        trained: Mapping[str, Mapping[str, Tensor]],
        channel: Channel,
        T: int = 0,
    ) -> Learned:
        """Learns the weights, if round t (from 1) is one that learns, and averages.

        Args:
            t: the round.
            w: the model that training began from.
            trained: the trained models, by address.
            channel: sends requests to those addresses.
            T: the last round, which bounds the calls of t0 = "auto"; 0 where nobody knows.

        Raises:
            FederationError: a site did not reply, or its reply cannot be used.
            ConfigError: the global model does not fit the sites' network.
        """
        addresses = self._joined(t, sorted(trained), channel)
        if self._layout is None or not addresses:
            raise FederationError(
                "no site has trained",
                client="all",
                call="training",
                round=t,
                remedy="see the sites' own logs",
            )
        layout = self._layout[1]
        try:
            start = model_from(layout, w)
        except ConfigError as error:
            raise ConfigError(
                error.what.replace("its model", "the global model"),
                where="the server",
                remedy="start from the state_dict() of the network that the sites use",
            ) from error
        replies = {name: _reply(name, t, trained[a], layout) for name, a in addresses.items()}
        plan = self.method.plan(layout, T or t)
        if len(addresses) == 1:  # one weight cannot be learned
            plan = replace(plan, t0=t + 1, judge=None)
        last = plan.S + BATCHES if plan.judge else plan.S
        federation = Federation(
            DropinTransport(channel, addresses, replies, {"seed": self.seed}, last),
            quorum=self.quorum,
            exchange=self.exchange,
            seeds=Seeds(self.seed),
            secret=self.secret,
            remote=True,
        )
        first = plan.gamma.initial(1, plan.layers.P if plan.layers else None)[0]
        beta = torch.stack([self._beta.get(name, first) for name in federation.names])
        before = Round(t - 1, start, beta, memory=self._memory)
        done = next(auto_fedavg(federation, plan, before))
        self._memory = done.memory or self._memory
        if done.beta is None or done.alpha is None or done.w_k is None or isinstance(done.w, Bank):
            raise TypeError("not a round of Auto-FedAvg")
        self._beta |= dict(zip(federation.names, done.beta, strict=True))
        alpha = among(done.alpha, federation, done.w_k).reshape(len(done.w_k.sites), -1)
        return Learned(
            layout.state_dict(done.w),
            dict(zip(done.w_k.sites, alpha.tolist(), strict=True)),
            plan.layers.names if plan.layers else (),
            done.learned,
            federation.take_events(),
            federation.take_learning_losses(),
            federation.take_verdict(),
        )

    def _joined(self, t: int, addresses: list[str], channel: Channel) -> dict[str, str]:
        """The addresses by site name; asks new sites for their name and their network."""
        new = [address for address in addresses if address not in self._names]
        if new:
            direct = DropinTransport(channel, {address: address for address in new})
            calls = Calls(direct, new, self.quorum, self.exchange)
            hello = Message({}, {"version": __version__})
            said = calls.ask(Ask("hello", dict.fromkeys(new, hello), self._read_hello, t))
            for address, (name, layout) in said.items():
                self._check_network(address, layout)
                self._names[address] = name
        found: dict[str, str] = {}
        for address in (a for a in addresses if a in self._names):  # those that have replied
            name = self._names[address]
            if name in found:
                raise FederationError(
                    f"{found[name]} and {address} are both called {name}",
                    client=name,
                    call="hello",
                    round=t,
                    remedy="give every site a name of its own",
                )
            found[name] = address
        return dict(sorted(found.items()))

    def _read_hello(self, address: str, reply: Message) -> tuple[str, Layout]:
        said = reply.facts
        if said.get("version") != __version__:
            raise BadReply(
                f"it has autofedavg {said.get('version')}, and the server has {__version__}",
                "install the same version everywhere",
            )
        name = said.get("site")
        if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
            raise BadReply("it has no valid name", "give it one with site=")
        try:
            return name, layout_from(said.get("layout"))
        except ConfigError as error:
            raise BadReply(error.what) from error

    def _check_network(self, address: str, layout: Layout) -> None:
        if self._layout is None:
            self._layout = (address, layout)
        first, known = self._layout
        if layout != known:
            raise FederationError(
                f"its network is not that of {first}: {difference(layout, known)}",
                client=address,
                call="hello",
                remedy="give every site the same network",
            )


def _reply(name: str, t: int, state: Mapping[str, Tensor], layout: Layout) -> Message:
    """A trained model as the port's reply; only the engine knows its loss."""
    try:
        return Message(arrays_of(model_from(layout, state)), {"loss": 0.0})
    except ConfigError as error:
        misfit = ConfigError(
            error.what,
            where=f"client {name}, training, round {t}",
            remedy="send the whole state_dict() of the network, and nothing else",
        )
        return Message({}, error_facts(misfit))
