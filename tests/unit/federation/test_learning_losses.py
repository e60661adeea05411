"""The losses that clients tell with their steps on beta: noted, by site and message."""

import pytest
import torch

from autofedavg.algorithm import Round
from autofedavg.core.seeds import Seeds
from autofedavg.federation.port import Federation
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.fedavg import FedAvg
from toy import DirectFleet, PointSite, lose, point_problem, toy_problem

# Trained to its first point, learned on the second.
SITES = {"A": PointSite((0.0, 0.0), (1.0, 0.0)), "B": PointSite((4.0, 0.0), (3.0, 0.0))}


def losses_of(method, transport, T=1, **how):
    """The federation's losses after every round."""
    federation = Federation(transport, **how)
    w0, layout = transport.problem.initial(Seeds(7))
    rounds = method.rounds(federation, layout, T, method.begin(federation, Round(0, w0)))
    return [(r, federation.take_learning_losses()) for r in rounds], federation


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_the_first_is_that_of_the_evenly_averaged_model(learning):
    """Half the squared distance between the mean of w_A and w_B and each site's point."""
    transport = DirectFleet(point_problem((2.0, 1.0), SITES))
    method = AutoFedAvg(constraint="softmax", S=4, learning=learning)
    ((done, losses),), federation = losses_of(method, transport)
    middle = done.w_k.values.mean(dim=0)
    for site, told in losses.items():
        wanted = 0.5 * (middle - torch.tensor(SITES[site].validation)).square().sum()
        assert told[0] == pytest.approx(float(wanted), abs=1e-12)
        assert len(told) == 4
    assert list(losses) == ["A", "B"]
    assert federation.take_learning_losses() == {}


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_they_are_what_the_clients_told(learning):
    problem = toy_problem(3)
    transport = DirectFleet(problem)
    said = {name: [] for name in problem.sites}

    def spied(name, answer):
        def told(verb, message):
            found = answer(verb, message)
            if verb in ("update_beta", "differentiate"):
                said[name].append(found.facts["loss"])
            return found

        return told

    for name, client in transport.clients.items():
        client.answer = spied(name, client.answer)
    rounds, _ = losses_of(AutoFedAvg(t0=2, S=5, learning=learning), transport, T=4)
    assert [bool(losses) for _, losses in rounds] == [False, True, False, True]
    for site, told in said.items():
        assert rounds[1][1][site] + rounds[3][1][site] == told
        assert len(set(told)) == 10


def test_with_several_steps_a_message_there_is_one_a_message():
    ((_, losses),), _ = losses_of(AutoFedAvg(S=6, steps_per_message=3), DirectFleet(toy_problem(3)))
    assert {site: len(told) for site, told in losses.items()} == {"A": 2, "B": 2, "C": 2}


def test_a_site_that_misses_a_step_tells_none_there():
    transport = DirectFleet(toy_problem(3), intercept=lose("B", verb="update_beta", s=2))
    ((_, losses),), _ = losses_of(AutoFedAvg(S=3), transport, quorum=2)
    assert [told is None for told in losses["B"]] == [False, True, False]
    assert None not in losses["A"] + losses["C"]


def test_a_site_that_had_lost_the_models_tells_its_loss_when_it_has_them_again():
    transport = DirectFleet(toy_problem(3))

    def forgets(verb, site, message):
        if (verb, site, message.facts.get("s")) == ("update_beta", "B", 2) and len(forgot) < 1:
            forgot.append(site)
            transport.clients["B"].client_state.__init__()

    forgot = []
    transport.intercept = forgets
    ((_, losses),), _ = losses_of(AutoFedAvg(S=3), transport)
    ((_, wanted),), _ = losses_of(AutoFedAvg(S=3), DirectFleet(toy_problem(3)))
    assert forgot == ["B"]
    assert losses == wanted


def test_without_learning_there_are_none():
    rounds, _ = losses_of(FedAvg(), DirectFleet(toy_problem(3)), T=2)
    assert [losses for _, losses in rounds] == [{}, {}]
