"""One backward pass of one network gives the gradient that autograd finds through K networks.

`update_beta` forms w = sum_k alpha_k w_k without a graph and uses dL/dalpha_k = <grad L(w), w_k>.
The oracle is the K-fold graph itself: `functional_call` on the explicit sum, float64.
"""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from autofedavg.algorithm import update_beta
from autofedavg.core.constraints import Dirichlet, Softmax
from autofedavg.core.trainer import LocalTrainer, Training
from toy import CPU, bank_of, by_pytorch, float64, mlp, norm_net

K = 3
SEED = 17


def conv_net():
    layers = [nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 2)]
    return nn.Sequential(*layers).double()


def conv_norm_net():
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)]
    return nn.Sequential(*layers).double()


def frozen_net():
    """What is frozen is never trained, so all clients have the same."""
    network = conv_norm_net()
    for parameter in network[0].parameters():
        parameter.requires_grad_(False).fill_(0.2)
    return network


def squared_error(network, batch):
    x, y = batch
    return (network(x) - y).square().mean()


def batch():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(5, 1, 6, 6, generator=generator, dtype=torch.float64)
    return x, torch.randn(5, 2, generator=generator, dtype=torch.float64)


def oracle(network, layout, bank, beta, gamma, kind, mode):
    """The gradient in theta by autograd through the explicit mixture of K networks."""
    theta = gamma.free(beta).requires_grad_()
    alpha = by_pytorch(gamma, gamma.beta(theta), SEED)
    layer = layout.layers(kind).names if kind else ()
    mixed = {}
    for name in layout.names:
        owner = name.rpartition(".")[0] if kind == "module" else name
        weights = alpha if kind is None else alpha[:, layer.index(owner)]
        if name not in dict(network.named_parameters()):
            weights = weights.detach()
        mixed[name] = sum(
            weights[k] * layout.state_dict(bank[site])[name] for k, site in enumerate(bank.sites)
        )
    network.train(mode == "train")
    (slope,) = torch.autograd.grad(squared_error_of(network, mixed), theta)
    return slope


def squared_error_of(network, state):
    x, y = batch()
    return (functional_call(network, state, (x,)) - y).square().mean()


def through_the_bank(network, bank, beta, gamma, kind, mode, rate=1.0):
    trainer = LocalTrainer(network, squared_error, Training(), CPU)
    how = {"gamma": gamma.note(), "layers": kind, "rate": rate, "smoothing": 0.0, "mode": mode}
    theta, _ = update_beta(trainer, bank, beta, batch(), how, SEED)
    return (gamma.free(beta) - theta) / rate


GAMMAS = {
    "softmax": (Softmax(), [0.4, -0.3, 0.1]),
    "dirichlet": (Dirichlet(), [2.5, 6.0, 4.0]),
    "softplus": (Dirichlet(keep_above_one="softplus"), [2.5, 6.0, 4.0]),
}
NETWORKS = {
    "convolutions": (conv_net, "eval"),
    "batch norm": (conv_norm_net, "eval"),
    "batch norm, training": (conv_norm_net, "train"),
    "frozen part": (frozen_net, "eval"),
}


@pytest.mark.parametrize("gamma", list(GAMMAS))
@pytest.mark.parametrize("kind", [None, "module", "tensor"], ids=str)
@pytest.mark.parametrize("which", list(NETWORKS))
def test_the_bank_s_gradient_is_the_k_fold_graph_s(which, kind, gamma):
    build, mode = NETWORKS[which]
    constraint, start = GAMMAS[gamma]
    bank, layout = bank_of(build, K)
    beta = float64(start)
    if kind:
        P = layout.layers(kind).P
        beta = beta.unsqueeze(1) + 0.1 * torch.arange(P, dtype=torch.float64)
    expected = oracle(build(), layout, bank, beta, constraint, kind, mode)
    found = through_the_bank(build(), bank, beta, constraint, kind, mode)
    assert found.shape == expected.shape
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_the_gradient_is_the_slope_of_the_loss_itself():
    """A third way, without autograd: finite differences of L(sum_k softmax(beta)_k w_k)."""
    bank, layout = bank_of(conv_net, K)
    beta, step = float64([0.4, -0.3, 0.1]), 1e-5

    def loss(at):
        mixed = layout.state_dict(bank.combine(torch.softmax(at, dim=0)))
        return squared_error_of(conv_net().eval(), mixed).item()

    eye = torch.eye(K, dtype=torch.float64) * step
    slopes = [(loss(beta + e) - loss(beta - e)) / (2 * step) for e in eye]
    found = through_the_bank(conv_net(), bank, beta, Softmax(), None, "eval")
    torch.testing.assert_close(found, float64(slopes), rtol=0, atol=1e-8)


def test_running_statistics_are_averaged_but_held_fixed_in_the_gradient():
    """BatchNorm's averaged statistics move with alpha as well; the method does not follow them."""
    bank, layout = bank_of(lambda: norm_net(torch.float64), 2)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(7, 4, generator=generator, dtype=torch.float64)

    def loss(network, batch):
        return network(batch).square().mean()

    def explicit(follow):
        theta = float64([0.3, -0.2]).requires_grad_()
        alpha = torch.softmax(theta, dim=0)
        states = [layout.state_dict(bank[site]) for site in bank.sites]
        still = alpha if follow else alpha.detach()
        w = {
            name: sum((still if "running" in name else alpha)[k] * states[k][name] for k in (0, 1))
            for name in layout.names
        }
        h = x @ w["0.weight"].T + w["0.bias"]
        h = (h - w["1.running_mean"]) / torch.sqrt(w["1.running_var"] + 1e-5)
        h = torch.relu(h * w["1.weight"] + w["1.bias"])
        (slope,) = torch.autograd.grad((h @ w["4.weight"].T + w["4.bias"]).square().mean(), theta)
        return slope

    trainer = LocalTrainer(norm_net(torch.float64), loss, Training(), CPU)
    how = {
        "gamma": Softmax().note(),
        "layers": None,
        "rate": 1.0,
        "smoothing": 0,
        "mode": "eval",
    }
    beta = float64([0.3, -0.2])
    found = beta - update_beta(trainer, bank, beta, x, how, SEED)[0]
    torch.testing.assert_close(found, explicit(follow=False), rtol=0, atol=1e-10)
    assert not torch.allclose(found, explicit(follow=True), rtol=1e-2)


def test_the_step_is_the_rate_times_the_gradient():
    bank, _ = bank_of(lambda: mlp(torch.float64), K)
    beta = float64([0.4, -0.3, 0.1])
    x = torch.ones(2, 4, dtype=torch.float64)
    trainer = LocalTrainer(mlp(torch.float64), lambda n, b: n(b).sum(), Training(), CPU)

    def stepped(rate):
        how = {"gamma": Softmax().note(), "layers": None, "rate": rate, "smoothing": 0.0}
        return update_beta(trainer, bank, beta, x, how | {"mode": "eval"}, SEED)[0] - beta

    torch.testing.assert_close(stepped(0.5), 0.5 * stepped(1.0), rtol=0, atol=1e-14)


def test_the_loss_that_is_returned_is_that_of_the_mixture():
    bank, layout = bank_of(conv_net, K)
    trainer = LocalTrainer(conv_net(), squared_error, Training(), CPU)
    how = {
        "gamma": Softmax().note(),
        "layers": None,
        "rate": 1.0,
        "smoothing": 0,
        "mode": "eval",
    }
    _, loss = update_beta(trainer, bank, float64([0.0, 0.0, 0.0]), batch(), how, SEED)
    mixed = layout.state_dict(bank.combine(float64([1 / 3] * 3)))
    torch.testing.assert_close(loss, squared_error_of(conv_net(), mixed))
