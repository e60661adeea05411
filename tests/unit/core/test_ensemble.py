"""Several models as one predictor, and the method that trains them."""

import pytest
import torch
from torch import nn

from autofedavg.core.bank import Bank, Layout
from autofedavg.core.ensemble import Ensemble
from autofedavg.core.seeds import Purpose, Seeds, global_seed
from autofedavg.federation.messages import Message
from autofedavg.federation.port import Federation
from autofedavg.methods.ensemble import EnsembleMethod
from autofedavg.methods.local_only import LocalOnly
from toy import METRIC, DirectFleet, bank_of, make_client, norm_net, rounds_of, toy_problem


def voxels() -> nn.Module:
    return nn.Conv3d(1, 2, 3, padding=1)


@pytest.mark.parametrize(
    ("network", "x"),
    [(norm_net, torch.randn(5, 4)), (voxels, torch.randn(2, 1, 4, 4, 4))],
)
def test_the_output_is_the_logarithm_of_the_mean_softmax(network, x):
    bank, layout = bank_of(network, 3)
    members = [layout.state_dict(bank[site]) for site in bank.sites]
    together = Ensemble(network(), members).eval()
    alone = []
    for member in members:
        built = network()
        built.load_state_dict(member)
        alone.append(torch.softmax(built.eval()(x), dim=1))
    with torch.no_grad():
        torch.testing.assert_close(together(x).exp(), torch.stack(alone).mean(0))
        torch.testing.assert_close(together(x).softmax(1), torch.stack(alone).mean(0))


def test_unrolled_it_is_the_same_predictor():
    bank, layout = bank_of(norm_net, 3)
    together = Ensemble(norm_net(), [layout.state_dict(bank[s]) for s in bank.sites]).eval()
    x = torch.randn(5, 4)
    with torch.no_grad():
        assert torch.equal(together.unrolled().eval()(x), together(x))


def test_its_members_stay_what_they_were():
    bank, layout = bank_of(norm_net, 2)
    before = bank.values.clone()
    network = norm_net()
    own = Layout.of(network).read(network).values
    Ensemble(network, [layout.state_dict(bank[s]) for s in bank.sites]).eval()(torch.randn(3, 4))
    assert torch.equal(bank.values, before)
    assert torch.equal(Layout.of(network).read(network).values, own)


def test_clients_start_from_weights_of_their_own_that_never_travel():
    problem = toy_problem(2)
    transport = DirectFleet(problem)
    rounds_of(EnsembleMethod(), transport, 2)
    first, second = transport.sent("local_train", "A")
    assert first.arrays == {}
    assert set(second.arrays) == {"values"}


def test_own_weights_depend_on_seed_and_site_alone():
    problem = toy_problem(2, norm_net)

    def drawn(site, seed, t=1):
        client = make_client(problem, site, seeds=Seeds(seed))
        client.trainer.flat.fill_(3.0)
        message = Message({}, {"t": t, "T": 1, "fresh": True, "rate": 1e-30})
        values = client.answer("local_train", message).arrays["values"]
        return values[: client.trainer.layout.trainable]

    with global_seed(Seeds(1).number("A", Purpose.INIT)):
        built = norm_net()
    trainable = torch.cat([p.detach().reshape(-1) for p in built.parameters()])
    assert torch.allclose(drawn("A", 1), trainable, rtol=0, atol=1e-20)
    assert torch.allclose(drawn("A", 1, t=5), trainable, rtol=0, atol=1e-20)
    assert not torch.allclose(drawn("B", 1), trainable)
    assert not torch.allclose(drawn("A", 2), trainable)


def test_from_shared_weights_it_trains_as_local_only_does():
    problem = toy_problem(3, norm_net)
    alone = rounds_of(LocalOnly(), DirectFleet(problem), 3)
    together = rounds_of(EnsembleMethod(initial="shared"), DirectFleet(problem), 3)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.w.values, other.w.values)
        assert other.together
        assert not one.together


def test_it_is_scored_by_every_client_and_all_models_are_counted():
    problem = toy_problem(3, norm_net)
    bank, layout = bank_of(norm_net, 3)
    federation = Federation(DirectFleet(problem))
    scores = federation.evaluate(bank, "validation")
    network = Ensemble(norm_net(), [layout.state_dict(bank[s]) for s in bank.sites]).eval()
    with torch.no_grad():
        expected = [
            (name, *score)
            for name, site in sorted(problem.sites.items())
            for score in site.score(network, "validation")
        ]
    assert [tuple(row) for row in scores.rows] == expected
    down = federation.take_account()["evaluate"].down
    assert down > 3 * 3 * layout.nbytes
    one = Bank(bank.sites, bank.values[:1], bank.counters[:1])["A"]
    assert federation.evaluate(one, "validation").mean(METRIC) != scores.mean(METRIC)
    assert federation.take_account()["evaluate"].down < down / 2


def test_members_go_where_the_ensemble_goes() -> None:
    torch.manual_seed(0)
    members = [nn.Linear(4, 3).state_dict() for _ in range(2)]
    x = torch.randn(5, 4)
    ensemble = Ensemble(nn.Linear(4, 3), members)
    here = ensemble(x)
    assert ensemble.to(torch.device("meta"))(x.to("meta")).device.type == "meta"
    twice = Ensemble(nn.Linear(4, 3), members).double()
    assert torch.allclose(twice(x.double()).float(), here, atol=1e-5)
    assert all(tensor.dtype == torch.float32 for member in members for tensor in member.values())
