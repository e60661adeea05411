"""Small generated problems: K sites, no MONAI, about a millisecond a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from string import ascii_uppercase

import torch
from torch import Tensor, nn

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.constraints import Constraint
from autofedavg.core.privacy import NONE, Privacy
from autofedavg.core.problem import CaseScore, Problem
from autofedavg.core.seeds import Purpose, Seeds, global_seed
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.federation.client import Client
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, NoReply
from autofedavg.federation.port import Federation
from autofedavg.federation.private_steps import simulated_privacy
from autofedavg.federation.proxy import Proxy
from autofedavg.federation.settings import Exchange

CPU = torch.device("cpu")
METRIC = "score"
TRAINING = Training(iterations=3, batch_size=4, optimiser="sgd", learning_rate=0.1, momentum=0.0)


def float64(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sampled(gamma: Constraint, beta: Tensor, seed: int) -> Tensor:
    """One sample of alpha."""
    return gamma.sample(beta, torch.Generator().manual_seed(seed))


def by_pytorch(gamma: Constraint, beta: Tensor, seed: int) -> Tensor:
    """The same sample from PyTorch's own distributions, to be differentiated by autograd."""
    if gamma.name == "softmax":
        return torch.softmax(beta, dim=0)
    with global_seed(seed):
        return torch.distributions.Dirichlet(beta.movedim(0, -1)).rsample().movedim(-1, 0)


# What a step on beta is told, as the port carries it.
HOW = {"gamma": {"name": "softmax"}, "layers": None, "rate": 1.0, "smoothing": 0.0}
HOW |= {"mode": "eval", "data": "validation"}
BETA = float64([0.0, 0.0, 0.0])


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network with the initial weights of this seed; global randomness is left alone."""
    with global_seed(seed):
        return build()


# --- classification: points around site-dependent centres -------------------------------------


def mlp(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def cnn() -> nn.Module:
    """A plain chain for 8x8 images of three classes."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(16, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    )


def norm_net(dtype: torch.dtype = torch.float32) -> nn.Module:
    """BatchNorm and dropout: buffers, counters, and randomness inside the network."""
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3)]
    return nn.Sequential(*layers).to(dtype)


def cross_entropy(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return nn.functional.cross_entropy(network(x), y)


@dataclass
class ToySite:
    """One site's points; with `full`, every batch is the whole split."""

    name: str
    splits: Mapping[str, tuple[Tensor, Tensor]]
    full: bool = False

    def cases(self):
        return {split: len(x) for split, (x, _) in self.splits.items()}

    def settle(self, device):
        self.device = device

    def class_counts(self):
        return torch.bincount(self.splits["train"][1], minlength=3).tolist()

    def train_batches(self, seeds, t, training):
        generator = seeds.generator(self.name, Purpose.TRAIN_BATCHES, t)
        for _ in range(training.iterations):
            yield self._batch("train", training.batch_size, generator)

    def weight_batch(self, seeds, t, s, split, batch_size):
        generator = seeds.generator(self.name, Purpose.AGGREGATE_BATCHES, t, s)
        return self._batch(split, batch_size, generator)

    def patients(self, split):
        return len(self.splits[split][0])

    def patient_batch(self, split, patient, random, augment):
        x, y = self.splits[split]
        return x[patient : patient + 1], y[patient : patient + 1]

    def shares_patients(self, split, other):
        return split == other

    def score(self, network, split):
        x, y = self.splits[split]
        right = torch.softmax(network(x), dim=1)[torch.arange(len(y)), y]
        return [CaseScore(f"{split}-{i}", METRIC, float(p)) for i, p in enumerate(right)]

    def _batch(self, split, size, generator):
        x, y = self.splits[split]
        if self.full:
            return x, y
        picked = torch.randint(len(x), (size,), generator=generator)
        return x[picked], y[picked]


def toy_site(name: str, k: int, *, dtype=torch.float32, full: bool = False) -> ToySite:
    """The k-th kind of site: more training cases and another shift with every k."""
    generator = torch.Generator().manual_seed(1000 + k)
    centres = torch.eye(3, 4, dtype=dtype) * 2
    splits = {}
    for split, n in {"train": 8 + 4 * k, "validation": 6, "test": 5, "holdout": 4}.items():
        y = torch.randint(3, (n,), generator=generator)
        noise = torch.randn(n, 4, generator=generator, dtype=dtype)
        splits[split] = (centres[y] + noise + 0.5 * k, y)
    return ToySite(name, splits, full)


def toy_problem(
    K: int = 3, network: Callable[..., nn.Module] = mlp, *, dtype=torch.float32, full: bool = False
) -> Problem:
    names = ascii_uppercase[:K]
    sites = {name: toy_site(name, k, dtype=dtype, full=full) for k, name in enumerate(names)}
    proxy = toy_site("server", K, dtype=dtype, full=full)
    return Problem(lambda: network(dtype), cross_entropy, sites, METRIC, proxy=proxy)


# --- points: a network that is one float64 vector, and the loss half the squared distance -------


class Point(nn.Module):
    def __init__(self, start: tuple[float, ...]) -> None:
        super().__init__()
        self.w = nn.Parameter(float64(start))


def half_squared_distance(network: nn.Module, target: Tensor) -> Tensor:
    return 0.5 * (network.w - target).square().sum()


@dataclass
class PointSite:
    """Trains towards one point and learns the weights on another."""

    train: tuple[float, ...]
    validation: tuple[float, ...]
    n: int = 1

    def cases(self):
        return {"train": self.n, "validation": 1, "test": 1}

    def settle(self, device):
        pass

    def train_batches(self, seeds, t, training):
        return iter([float64(self.train)] * training.iterations)

    def weight_batch(self, seeds, t, s, split, batch_size):
        return float64(self.validation)

    def score(self, network, split):
        distance = half_squared_distance(network, float64(self.validation))
        return [CaseScore("0", METRIC, -float(distance))]


def point_problem(start: tuple[float, ...], sites: Mapping[str, PointSite]) -> Problem:
    return Problem(lambda: Point(start), half_squared_distance, sites, METRIC)


# --- transport ----------------------------------------------------------------------------------


def make_client(
    problem: Problem,
    name: str,
    training: Training = TRAINING,
    seeds: Seeds | None = None,
    privacy: Privacy = NONE,
) -> Client:
    trainer = LocalTrainer(seeded(problem.network, 0), problem.loss, training, CPU)
    data, seeds = problem.sites[name], seeds or Seeds(7)
    private = simulated_privacy(name, data, seeds, privacy, training)
    return Client(name, data, trainer, seeds, ClientState(), private)


@dataclass
class DirectFleet:
    """Clients in this process, without an engine.

    `intercept(verb, site, message)` may return `NoReply`, or a forged `Message` of this client;
    `asked` holds every request that was sent.
    """

    problem: Problem
    training: Training = TRAINING
    seeds: Seeds = field(default_factory=lambda: Seeds(7))
    intercept: Callable[[str, str, Message], Message | NoReply | None] = (
        lambda verb, site, message: None
    )
    privacy: Privacy = NONE

    def __post_init__(self):
        self.asked: list[tuple[str, str, Message]] = []
        self.clients = {
            name: make_client(self.problem, name, self.training, self.seeds, self.privacy)
            for name in self.problem.sites
        }

    def roster(self):
        return self.problem.roster()

    def ask(self, verb, messages, within):
        answers = {}
        for name, message in messages.items():
            self.asked.append((verb, name, message))
            forged = self.intercept(verb, name, message)
            answers[name] = self.clients[name].answer(verb, message) if forged is None else forged
        return answers

    def sent(self, verb: str, site: str | None = None) -> list[Message]:
        return [message for v, name, message in self.asked if v == verb and site in (None, name)]


def lose(*names: str, verb: str, t: int | None = None, s: int | None = None):
    """An `intercept` that loses these sites' answers to one verb (in one round, at one step)."""

    def intercept(asked, site, message):
        at = (t in (None, message.facts.get("t"))) and (s in (None, message.facts.get("s")))
        return NoReply("gone") if asked == verb and site in names and at else None

    return intercept


def forge(name: str, verb: str, answer: Message):
    """An `intercept` that puts words into one site's mouth."""
    return lambda asked, site, message: answer if (asked, site) == (verb, name) else None


# --- whole runs ---------------------------------------------------------------------------------


def rounds_of(
    method, transport, T: int, start=None, *, quorum=None, problem=None, exchange=None
) -> list[Round]:
    """All rounds of a method; models are copied, since a round's bank is good for that round."""
    given = problem or transport.problem
    proxy = Proxy.of(given, TRAINING, Seeds(7), CPU)
    settings = exchange or Exchange()
    privacy = getattr(transport, "privacy", NONE)
    federation = Federation(
        transport, quorum=quorum, exchange=settings, metric=METRIC, proxy=proxy, privacy=privacy
    )
    w0, layout = given.initial(Seeds(7))
    start = start or method.begin(federation, Round(0, w0))
    kept = []
    for r in method.rounds(federation, layout, T, start):
        w_k = _copied(r.w_k)
        w = r.w.clone() if isinstance(r.w, Model) else _copied(r.w)
        kept.append(replace(r, w=w, w_k=w_k))
    return kept


def _copied(bank: Bank) -> Bank:
    return replace(bank, values=bank.values.clone(), counters=bank.counters.clone())


def same_round(one: Round, other: Round) -> bool:
    """Bit-identical models, beta and alpha, and equal losses."""
    pairs = [(one.w.values, other.w.values), (one.w.counters, other.w.counters)]
    pairs += [(one.w_k.values, other.w_k.values)]
    same = all(torch.equal(a, b) for a, b in pairs)
    for a, b in ((one.beta, other.beta), (one.alpha, other.alpha)):
        same = same and ((a is None and b is None) or torch.equal(a, b))
    return same and one.losses == other.losses and one.t == other.t


# --- banks --------------------------------------------------------------------------------------


def bank_of(network: Callable[[], nn.Module], K: int, first: int = 0) -> tuple[Bank, Layout]:
    """K differently initialised models of one network; buffers differ too."""
    models = {}
    for k in range(K):
        built = seeded(network, first + k)
        generator = torch.Generator().manual_seed(first + k)
        for buffer in built.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand(buffer.shape, generator=generator, dtype=buffer.dtype))
            else:
                buffer.fill_(k + 1)
        layout = Layout.of(built)
        models["ABCDEFGH"[k]] = layout.read(built)
    return Bank.gather(models), layout
