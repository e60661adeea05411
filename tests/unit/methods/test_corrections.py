"""FedNova, SCAFFOLD, the median and server momentum: the answers of their papers, by hand."""

import pytest
import torch

from aggregations import aggregation, next_round
from autofedavg.core.local_rules import PLAIN, Prox, reach
from autofedavg.core.trainer import Training
from autofedavg.federation.port import Federation
from autofedavg.methods.fedavg import FedAvg
from autofedavg.methods.fedavgm import FedAvgM
from autofedavg.methods.fednova import FedNova
from autofedavg.methods.median import Median
from autofedavg.methods.scaffold import Scaffold
from toy import DirectFleet, rounds_of, toy_problem

SGD = Training(epochs=1, optimiser="sgd", momentum=0.9, learning_rate=0.1)


def test_fednova_divides_by_the_path() -> None:
    """p = (1/2, 1/2), A = (1, 3), Delta = (1, 0): +1, where FedAvg has +1/2."""
    at = aggregation([[1.0], [0.0]], reach=[1.0, 3.0])
    assert FedNova().aggregate(at).values.tolist() == [1.0]
    assert FedAvg().aggregate(at).values.tolist() == [0.5]


def test_fednova_of_equal_paths_is_fedavg_bit_for_bit() -> None:
    at = aggregation(
        [[0.1, 0.7], [0.3, -0.2], [0.5, 0.9]], [0.3, 0.1], [0.2, 0.3, 0.5], reach=[7.0] * 3
    )
    assert torch.equal(FedNova().aggregate(at).values, FedAvg().aggregate(at).values)


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("mu", [0.0, 0.4])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_reach_is_what_the_optimiser_does_to_one_number(steps, mu, decay, momentum) -> None:
    training = SGD.model_copy(update={"momentum": momentum, "weight_decay": decay})
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([w], 0.1, momentum=momentum, weight_decay=decay)
    for _ in range(steps):
        w.grad = 1 + mu * w.detach()
        optimiser.step()
    rule = Prox(mu=mu) if mu else PLAIN
    assert reach(training, rule, steps, 0.1) == pytest.approx(-w.item() / 0.1, abs=1e-12)


def test_reach_of_momentum_and_of_adam() -> None:
    assert reach(SGD, PLAIN, 2, 0.1) == pytest.approx(2.9)
    tau = 11
    closed = (tau - 0.9 * (1 - 0.9**tau) / 0.1) / 0.1
    assert reach(SGD, PLAIN, tau, 0.1) == pytest.approx(closed)
    assert reach(Training(epochs=1), PLAIN, 7, 0.1) == 7.0


def test_the_median_leaves_one_bad_site_out() -> None:
    at = aggregation([[0.0], [0.0], [100.0]])
    assert Median().aggregate(at).values.tolist() == [0.0]
    assert FedAvg().aggregate(at).values.tolist() == pytest.approx([100 / 3])


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    at = aggregation([[0.0], [1.0], [4.0], [100.0]])
    assert Median().aggregate(at).values.tolist() == [2.5]
    two = aggregation([[0.0], [1.0]], p=[0.9, 0.1])
    assert Median().aggregate(two).values.tolist() == [0.5]


def test_momentum_adds_up_and_none_is_fedavg_bit_for_bit() -> None:
    plain = FedAvgM(momentum=0.0)
    at = aggregation([[0.1, 0.7], [0.3, -0.2]], [0.3, 0.1], [0.3, 0.7])
    assert torch.equal(plain.aggregate(at).values, FedAvg().aggregate(at).values)
    method = FedAvgM(momentum=0.5, server_rate=2.0)
    first = aggregation([[1.0], [1.0]])
    second = next_round(method, first, [[1.0], [1.0]])
    assert second.w.values.tolist() == [2.0]
    assert method.aggregate(second).values.tolist() == [2 + 2 * 1.5]


def test_scaffolds_first_round_and_its_only_site_are_fedavgs_bit_for_bit() -> None:
    three, one = toy_problem(3), toy_problem(1)
    ours = rounds_of(Scaffold(), DirectFleet(three), 2)
    theirs = rounds_of(FedAvg(), DirectFleet(three), 2)
    assert torch.equal(ours[0].w.values, theirs[0].w.values)
    assert not torch.equal(ours[1].w.values, theirs[1].w.values)
    alone, plain = (rounds_of(m, DirectFleet(one), 3)[-1] for m in (Scaffold(), FedAvg()))
    assert torch.equal(alone.w.values, plain.w.values)


def test_scaffolds_corrections_cancel_and_are_the_sites_gradients() -> None:
    """After one plain step, c_k is the gradient at w; sum_k p_k (c - c_k) = 0."""
    training = Training(iterations=1, optimiser="sgd", momentum=0.0, learning_rate=0.1)
    method, transport = Scaffold(), DirectFleet(toy_problem(3), training)
    (done,) = rounds_of(method, transport, 1)
    w0, layout = toy_problem(3).initial(transport.seeds)
    c_k = done.memory["c_k"]
    moved = (w0.values - done.w_k.values)[:, : layout.trainable] / 0.1
    torch.testing.assert_close(c_k, moved, rtol=0, atol=1e-5)
    federation = Federation(transport)
    shift = method.along(federation, layout, done.memory)["shift"]
    p = method.fixed_weights(federation, 2)
    total = sum(p[k] * shift[name] for k, name in enumerate(federation.names))
    torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-6)
