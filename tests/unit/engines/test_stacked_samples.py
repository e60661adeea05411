"""The stacked path's closed form takes the steps that core takes by autograd."""

import pytest
import torch

from autofedavg.core.bank import Bank, Layers
from autofedavg.core.constraints import Dirichlet, Softmax
from autofedavg.core.mixture import Mixture
from autofedavg.engines.simulator.stacked.samples import Samples
from toy import float64

D, CUT = 40, 12
GAMMAS = {
    "softmax": Softmax(),
    "floor": Dirichlet(),
    "softplus": Dirichlet(keep_above_one="softplus"),
}
EXACT = ("softmax", "floor")  # the same operations in the same order (decision 50)


def chance(n):
    return torch.Generator().manual_seed(n)


@pytest.mark.parametrize("smooth", [0.0, 0.3])
@pytest.mark.parametrize("layers", [None, Layers(("a", "b"), ((0, CUT, 0), (CUT, D, 1)))], ids=str)
@pytest.mark.parametrize("K", [2, 3, 17])
@pytest.mark.parametrize("kind", list(GAMMAS))
def test_both_agree(kind, K, layers, smooth):
    gamma, random = GAMMAS[kind], chance(5)
    values = torch.randn(K, D, generator=random)
    bank = Bank(tuple(f"{k:02}" for k in range(K)), values, torch.zeros(K, 0, dtype=torch.int64))
    shape = (K, layers.P) if layers else (K,)
    beta = 1.5 + 5 * torch.rand(shape, generator=random, dtype=torch.float64)
    beta[1] = 1 + GAMMAS["floor"].floor  # where the floor begins to hold it
    gradients = torch.randn(4, D, generator=random)
    slopes = torch.stack([bank.project(gradient, layers) for gradient in gradients])
    samples = Samples(beta, gamma, [chance(n) for n in range(4)])
    stepped = samples.step(slopes, 0.5, smooth)
    for n, gradient in enumerate(gradients):
        mixture = Mixture(bank, beta, gamma, layers, chance(n))
        assert torch.equal(mixture.w.values, bank.combine(samples.alpha[n], layers).values)
        wanted = mixture.step(gradient, 0.5, smooth)
        assert torch.equal(stepped[n], wanted) or kind not in EXACT
        torch.testing.assert_close(stepped[n], wanted, rtol=1e-13, atol=1e-13)


def test_nothing_is_drawn_from_a_beta_that_is_not_finite():
    with pytest.raises(ValueError, match="beta is not finite"):
        Samples(float64([2.0, float("nan")]), Dirichlet(), [chance(0)])
