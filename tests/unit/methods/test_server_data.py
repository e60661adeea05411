"""FedDF, FedBE and FLTrust: known answers, refusals, and what the server's data may do."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from aggregations import aggregation
from autofedavg.core.bank import Bank
from autofedavg.core.errors import ConfigError, TrainingError
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.experiment.run import check_run
from autofedavg.federation.local_training import Trained
from autofedavg.federation.port import Federation
from autofedavg.federation.proxy import Proxy
from autofedavg.methods.averaging import Aggregation
from autofedavg.methods.base import size_weights
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.fedbe import FedBE
from autofedavg.methods.feddf import FedDF
from autofedavg.methods.fltrust import FLTrust
from autofedavg.methods.shared.distillation import Distillation
from toy import CPU, METRIC, TRAINING, DirectFleet, bank_of, lose, norm_net, rounds_of, toy_problem
from toy import toy_site as site_of

METHODS = [FedDF(steps=8), FedBE(steps=8, samples=3), FLTrust()]
SOFTMAX = partial(torch.softmax, dim=1)
ADAM = partial(torch.optim.Adam, lr=1e-3)


class Own:
    """A proxy whose training always moves a model by the same numbers."""

    def __init__(self, move):
        self.move = torch.tensor(move, dtype=torch.float64)

    def train(self, t, T, w):
        return replace(w, values=w.values + self.move)


def trusted(deltas, own, w=None):
    at = aggregation(deltas, w)
    at.federation.proxy = Own(own)
    return FLTrust().aggregate(at), at


def toy_round(bank: Bank, network=norm_net) -> Aggregation:
    """A round at the server whose clients have replied with these models."""
    problem = toy_problem(len(bank.sites), network)
    proxy = Proxy.of(problem, TRAINING, Seeds(7), CPU)
    federation = Federation(DirectFleet(problem), seeds=Seeds(7), metric=METRIC, proxy=proxy)
    w, layout = problem.initial(Seeds(7))
    p = size_weights(federation)
    trained = Trained(bank, dict.fromkeys(bank.sites, 1.0))
    return Aggregation(federation, layout, 1, 10, w, trained, p, {}, p)


def test_fltrust_of_the_servers_own_update_is_that_update() -> None:
    model, at = trusted([[3.0, 4.0], [3.0, 4.0]], [3.0, 4.0], [1.0, -1.0])
    assert model.values.tolist() == pytest.approx([4.0, 3.0])
    assert at.alpha.tolist() == pytest.approx([0.5, 0.5])


def test_fltrust_ignores_the_opposite_and_scales_the_rest() -> None:
    model, at = trusted([[-3.0, -4.0], [30.0, 40.0]], [3.0, 4.0])
    assert model.values.tolist() == pytest.approx([3.0, 4.0])
    assert at.alpha.tolist() == pytest.approx([0.0, 1.0])


def test_fltrust_weighs_by_the_cosine() -> None:
    """Cosines 1 and 0.6: shares 1/1.6 and 0.6/1.6 of updates of the server's length 5."""
    model, at = trusted([[5.0, 0.0], [0.6, 0.8]], [5.0, 0.0])
    assert at.alpha.tolist() == pytest.approx([1 / 1.6, 0.6 / 1.6])
    assert model.values.tolist() == pytest.approx([5 / 1.6 + 3 * 0.6 / 1.6, 4 * 0.6 / 1.6])


@pytest.mark.parametrize(
    ("deltas", "own"),
    [([[-1.0], [-2.0]], [1.0]), ([[0.0], [0.0]], [1.0]), ([[1.0], [2.0]], [0.0])],
)
def test_fltrust_stays_where_nobody_can_be_trusted(deltas, own) -> None:
    model, at = trusted(deltas, own, [0.5])
    assert model.values.tolist() == [0.5]
    assert at.alpha is None


@pytest.mark.parametrize("method", [FedDF(steps=0), FedBE(steps=0)])
def test_no_step_gives_fedavgs_bits(method) -> None:
    ours, theirs = (rounds_of(m, DirectFleet(toy_problem(3)), 2)[-1] for m in (method, FedAvg()))
    assert torch.equal(ours.w.values, theirs.w.values)
    assert torch.equal(ours.alpha, theirs.alpha)
    assert method.equals_fedavg(3, None, TRAINING)
    assert not type(method)().equals_fedavg(3, None, TRAINING)


def test_identical_clients_have_nothing_to_teach() -> None:
    bank, _ = bank_of(norm_net, 1)
    at = toy_round(Bank(("A", "B"), bank.values.repeat(2, 1), bank.counters.repeat(2, 1)))
    how = Distillation(3, ADAM, torch.Tensor.detach, SOFTMAX)
    _, losses = how.student(at, [at.w_k["A"], at.w_k["B"]])
    assert losses[0] == pytest.approx(0.0, abs=1e-6)


def test_the_student_comes_closer_to_its_teachers_and_keeps_the_averaged_statistics() -> None:
    bank, layout = bank_of(norm_net, 3)
    at = toy_round(bank)
    teachers = [bank[name] for name in bank.sites]
    adam = partial(torch.optim.Adam, lr=0.01)
    how = Distillation(200, adam, torch.Tensor.detach, SOFTMAX, cosine=True)
    student, losses = how.student(at, teachers)
    assert sum(losses[-40:]) < 0.5 * sum(losses[:40])
    end = layout.trainable
    assert torch.equal(student.values[end:], at.mean.values[end:])
    assert torch.equal(student.counters, at.mean.counters)
    assert not torch.equal(student.values[:end], at.mean.values[:end])


def test_students_are_averaged_as_asked() -> None:
    """The mean after steps 2 and 4 is that of the students which stop there."""
    at = toy_round(bank_of(norm_net, 3)[0])
    sgd, teachers = partial(torch.optim.SGD, lr=0.1), [at.w_k["C"]]

    def student(steps, averaged=()):
        how = Distillation(steps, sgd, torch.Tensor.detach, SOFTMAX, averaged=averaged)
        return how.student(at, teachers)[0].values

    torch.testing.assert_close(student(4, (2, 4)), (student(2) + student(4)) / 2)


def test_fedbe_without_noise_draws_the_mean_direction() -> None:
    """Delta = (3, 4) and (0, 1): lengths 5 and 1, mean direction (0.3, 0.9), times 3."""
    at = aggregation([[3.0, 4.0], [0.0, 1.0]], [1.0, 1.0])
    first, second = FedBE(samples=2, noise=0.0).drawn(at)
    assert first.values.tolist() == pytest.approx([1.9, 3.7])
    assert torch.equal(first.values, second.values)


def test_fedbe_draws_have_the_spread_of_the_directions() -> None:
    at = aggregation([[3.0, 4.0], [0.0, 1.0]], [1.0, 1.0])
    drawn = torch.stack([w.values for w in FedBE(samples=4000, noise=0.5).drawn(at)])
    spread = 0.5 * 3 * torch.tensor([0.3, 0.1], dtype=torch.float64)
    torch.testing.assert_close(drawn.std(0), spread, rtol=0.05, atol=0)
    torch.testing.assert_close(drawn.mean(0), torch.tensor([1.9, 3.7]).double(), rtol=0, atol=0.03)


def test_fedbe_of_clients_that_stay_draws_w() -> None:
    at = aggregation([[0.0, 0.0], [0.0, 0.0]], [1.0, 2.0])
    assert [w.values.tolist() for w in FedBE(samples=2).drawn(at)] == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_an_absent_site_takes_no_part(method) -> None:
    transport = DirectFleet(toy_problem(3), intercept=lose("B", verb="local_train"))
    done = rounds_of(method, transport, 2, quorum=2)[-1]
    assert done.w_k.sites == ("A", "C")
    assert torch.isfinite(done.w.values).all()
    assert done.alpha is None or done.alpha[1] == 0


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_run_without_data_at_the_server_is_refused_before_any_work(method) -> None:
    problem = replace(toy_problem(3), proxy=None)
    with pytest.raises(ConfigError, match=r"method: the method needs data at the server.*proxy"):
        check_run(method, 3, "best", problem)
    check_run(method, 3, "best", toy_problem(3))
    with pytest.raises(TrainingError, match="no data at the server"):
        rounds_of(method, DirectFleet(problem), 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": -1},
        {"rate": 0.0},
        {"temperature": 0.0},
        {"noise": -1.0},
        {"average_every": 0},
        {"steps": 10, "average_every": 8},
        {"steps": 10, "average_after": 10},
    ],
)
def test_settings_that_cannot_work_are_refused(bad) -> None:
    with pytest.raises(ValidationError):
        FedBE(**bad)


def binary() -> nn.Module:
    return nn.Linear(4, 1)


def logits_by_name(network, batch):
    return network(batch["image"])


def proxy_with(network, **given) -> tuple[Proxy, object]:
    problem = Problem(network, None, {}, METRIC, proxy=site_of("server", 0), **given)
    return Proxy.of(problem, TRAINING, Seeds(7), CPU), problem.initial(Seeds(7))[0]


def test_one_output_is_a_sigmoid() -> None:
    proxy, w = proxy_with(binary)
    x = torch.randn(5, 4)
    found = torch.softmax(proxy.logits(w, (x, None)), dim=1)
    network = binary()
    network.load_state_dict({"weight": w.values[:4].view(1, 4), "bias": w.values[4:]})
    torch.testing.assert_close(found[:, 1:], torch.sigmoid(network(x)))


def test_batches_and_outputs_that_are_not_understood_are_refused() -> None:
    proxy, w = proxy_with(binary)
    with pytest.raises(ConfigError, match=r"begins with dict, .* logits\(network, batch\)"):
        proxy.logits(w, {"image": torch.randn(5, 4)})
    named, _ = proxy_with(binary, logits=logits_by_name)
    assert named.logits(w, {"image": torch.randn(5, 4)}).shape == (5, 2)
    flat, _ = proxy_with(binary, logits=lambda network, batch: network(batch[0])[:, 0])
    with pytest.raises(ConfigError, match=r"no class logits .*\(5,\)"):
        flat.logits(w, (torch.randn(5, 4), None))


def test_voxels_count_as_cases_do() -> None:
    """KL of (1/2, 1/2) from softmax(0, z), the mean over all voxels of a volume."""
    proxy, w = proxy_with(lambda: nn.Conv3d(1, 2, 1))
    images = torch.randn(2, 1, 3, 4, 5)
    logits = proxy.logits(w, (images, None))
    target = torch.full_like(logits, 0.5)
    _, value = proxy.divergence(w, (images, None), target)
    by_hand = (0.5 * (0.5 / torch.softmax(logits, 1)).log()).sum(1).mean()
    torch.testing.assert_close(value, by_hand)
