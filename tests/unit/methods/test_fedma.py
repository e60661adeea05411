"""FedMA at the server: layers taken apart, matched, averaged by class and cut back."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from autofedavg.algorithm import Round
from autofedavg.core.bank import Bank, Layout, Model
from autofedavg.core.errors import ConfigError, FederationError
from autofedavg.core.forms import Form
from autofedavg.federation.messages import Message
from autofedavg.federation.port import Federation
from autofedavg.methods.fedma.chain import Chain
from autofedavg.methods.fedma.matching import Belief, match
from autofedavg.methods.fedma.method import FedMA, class_weights
from autofedavg.tasks.cifar.vgg9 import vgg9
from toy import DirectFleet, cnn, forge, mlp, norm_net, rounds_of, seeded, toy_problem

HIDDEN = ("0.0", "1", "6")  # the layers of `cnn` that are matched; "8" is the classifier


def permuted(state: dict, seed: int) -> dict:
    """The same function with hidden units in another order."""
    random = np.random.RandomState(seed)
    state = {key: value.clone() for key, value in state.items()}
    for name, following in zip(HIDDEN, (*HIDDEN[1:], "8"), strict=True):
        order = torch.from_numpy(random.permutation(len(state[f"{name}.bias"])))
        for kind in ("weight", "bias"):
            state[f"{name}.{kind}"] = state[f"{name}.{kind}"][order]
        weight = state[f"{following}.weight"]
        blocks = weight.reshape(len(weight), len(order), -1)[:, order]
        state[f"{following}.weight"] = blocks.reshape(weight.shape)
    return state


def matched_through(chain: Chain, bank: Bank, belief: Belief) -> tuple[Bank, dict]:
    memory = {}
    for layer in range(chain.P - 1):
        units = [chain.units(bank[site], layer).numpy() for site in bank.sites]
        found = match(units, belief, 3, np.random.RandomState(layer))
        assigned = torch.stack([torch.from_numpy(a) for a in found.assignments])
        memory[str(layer)] = assigned
        bank = chain.with_matched(bank, layer, torch.from_numpy(found.units), assigned)
    return bank, memory


def test_permuted_copies_of_a_network_come_back_but_for_the_shrinking():
    network = seeded(cnn, 1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(30)  # far apart against the prior's variance
    layout = Layout.of(network)
    K = 4
    states = {f"S{k}": permuted(network.state_dict(), k) for k in range(K)}
    bank = Bank.gather({site: layout.model(state) for site, state in states.items()})
    chain = Chain(layout)
    bank, memory = matched_through(chain, bank, Belief(bias=0.0))
    assert bank.form == Form((3, 4, 5, 3), 3)
    w = chain.close(bank, torch.full((K, 3), 1 / K, dtype=torch.float64))
    assert w.form == Form((3, 4, 5, 3), 0)
    back = chain.cut_back(w, bank.sites, memory)
    assert back.form is None
    for site, state in states.items():
        found = layout.state_dict(back[site])
        for name, tensor in state.items():
            shrink = K / (K + 1) if name.rpartition(".")[0] in HIDDEN else 1.0
            torch.testing.assert_close(found[name], tensor * shrink, rtol=1e-5, atol=1e-5)


def test_clients_without_a_unit_take_zeros_from_it():
    torch.manual_seed(0)
    layout = Layout.of(cnn())
    bank = Bank.gather({site: layout.read(cnn()) for site in "AB"})
    chain = Chain(layout)
    units = torch.randn(5, 10, dtype=torch.float64)
    assigned = torch.tensor([[0, 1, 2], [4, 3, 1]])
    grown = chain.with_matched(bank, 0, units, assigned)
    assert grown.form == Form((5, 4, 5, 3), 1)
    formed = layout.formed(grown.form)
    for site, places in zip("AB", assigned, strict=True):
        before, after = layout.state_dict(bank[site]), formed.state_dict(grown[site])
        torch.testing.assert_close(after["0.0.weight"].flatten(1).double(), units[:, :-1])
        torch.testing.assert_close(after["0.0.bias"].double(), units[:, -1])
        assert torch.equal(after["1.weight"][:, places], before["1.weight"])
        others = [i for i in range(5) if i not in places.tolist()]
        assert not after["1.weight"][:, others].any()
        assert torch.equal(after["6.weight"], before["6.weight"])


def test_the_flatten_moves_whole_channels():
    torch.manual_seed(0)
    layout = Layout.of(cnn())
    bank = Bank.gather({"A": layout.read(cnn())})
    grown = Chain(layout).with_matched(
        bank, 1, torch.zeros(6, 28, dtype=torch.float64), torch.tensor([[5, 0, 2, 3]])
    )
    before = layout.state_dict(bank["A"])["6.weight"]
    after = layout.formed(grown.form).state_dict(grown["A"])["6.weight"]
    assert after.shape == (5, 24)
    assert torch.equal(after[:, 20:24], before[:, 0:4])
    assert torch.equal(after[:, 8:16], before[:, 8:16])
    assert not after[:, 4:8].any()


def test_the_classifier_is_averaged_class_by_class():
    torch.manual_seed(0)
    layout = Layout.of(mlp())
    bank = Bank.gather({site: layout.read(mlp()) for site in "AB"})
    share = torch.tensor([[1.0, 0.25, 0.5], [0.0, 0.75, 0.5]])
    w = Chain(layout).close(bank, share)
    a, b, found = (layout.state_dict(m) for m in (bank["A"], bank["B"], replace(w, form=None)))
    for kind in ("2.weight", "2.bias"):
        torch.testing.assert_close(found[kind][0], a[kind][0])
        torch.testing.assert_close(found[kind][1], 0.25 * a[kind][1] + 0.75 * b[kind][1])


def test_shares_are_those_of_the_sites_own_class_counts():
    problem = toy_problem(3)
    federation = Federation(DirectFleet(problem))
    counts = torch.tensor([problem.sites[k].class_counts() for k in "ABC"], dtype=torch.float64)
    torch.testing.assert_close(class_weights(federation, 1, 3), counts / counts.sum(0))
    assert set(federation.take_account()) == {"class_counts"}


def test_class_counts_that_are_none_are_refused_at_the_port():
    transport = DirectFleet(toy_problem(2))
    transport.intercept = forge("B", "class_counts", Message({}, {"classes": [1, -2, 3]}))
    with pytest.raises(FederationError, match=r"its class counts are \[1, -2, 3\]"):
        class_weights(Federation(transport), 2, 3)


def test_a_class_that_nobody_has_is_averaged_evenly():
    problem = toy_problem(2)
    for site in problem.sites.values():
        site.class_counts = lambda: [2, 0, 1]
    weights = class_weights(Federation(DirectFleet(problem)), 1, 3)
    assert weights.tolist() == [[0.5] * 3, [0.5] * 3]


@pytest.mark.parametrize("told", [None, [1, 2]])
def test_without_class_counts_the_sizes_weigh(told):
    problem = toy_problem(2)
    problem.sites["B"].class_counts = lambda: told
    weights = class_weights(Federation(DirectFleet(problem)), 1, 3)
    torch.testing.assert_close(weights[:, 0], torch.tensor([0.4, 0.6], dtype=torch.float64))
    assert weights.shape == (2, 3)


# --- rounds ---------------------------------------------------------------------------------------


def test_a_pass_takes_a_round_per_layer_and_ends_in_a_global_model():
    transport = DirectFleet(toy_problem(3))
    done = rounds_of(FedMA(), transport, 4)
    assert [isinstance(state.w, Model) for state in done] == [False, True, False, True]
    assert [state.w_k.form and state.w_k.form.frozen for state in done] == [None, 1, None, 1]
    assert [state.w.form.frozen for state in done] == [1, 0, 1, 0]
    assert done[1].w.form.widths[1] == 3
    assert done[1].w.form.widths == done[0].w.form.widths
    said = [message.facts for message in transport.sent("local_train", "A")]
    assert [facts.get("fresh", False) for facts in said] == [True, False, False, False]
    assert [facts.get("passes", 1) for facts in said] == [1, 3, 1, 3]
    assert said[1]["rate"] == 0.1
    assert said[1]["weight_decay"] == 1e-4


def test_matched_layers_are_alike_and_stay_as_they_are():
    problem = toy_problem(3)
    layout = Layout.of(mlp())
    first, second = rounds_of(FedMA(), DirectFleet(problem), 2)
    formed = layout.formed(first.w.form)
    frozen = first.w.values[:, formed.trainable :]
    assert all(torch.equal(row, frozen[0]) for row in frozen)
    assert torch.equal(second.w_k.values[:, formed.trainable :], frozen)
    grown = layout.formed(second.w.form).state_dict(second.w)
    assert torch.equal(grown["0.weight"], formed.state_dict(first.w["A"])["0.weight"])


def test_the_next_pass_starts_from_the_model_cut_back():
    problem = toy_problem(3)
    layout = Layout.of(mlp())
    transport = DirectFleet(problem)
    done = rounds_of(FedMA(), transport, 3)
    sent = transport.sent("local_train", "B")[2]
    assert "form" not in sent.facts
    found = layout.state_dict(Model(sent.arrays["values"], torch.empty(0, dtype=torch.int64)))
    whole = layout.formed(done[1].w.form).state_dict(done[1].w)
    mine = done[1].memory["0"][1]
    assert torch.equal(found["0.weight"], whole["0.weight"][mine])
    assert torch.equal(found["0.bias"], whole["0.bias"][mine])
    assert torch.equal(found["2.weight"], whole["2.weight"][:, mine])
    assert torch.equal(found["2.bias"], whole["2.bias"])


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("T", "such"), [(100, "99 or 108"), (5, "9")])
def test_rounds_that_leave_a_pass_unfinished_are_refused(T, such):
    FedMA().check_network(vgg9(), 99)
    wrong = rf"^rounds: fedma takes 9 rounds .* rounds is {T}; .* multiple of 9, such as {such}$"
    with pytest.raises(ConfigError, match=wrong):
        FedMA().check_network(vgg9(), T)


def test_networks_it_cannot_match_are_refused():
    with pytest.raises(ConfigError, match="BatchNorm1d; use a chain of Conv2d and Linear"):
        FedMA().check_network(norm_net(), 2)
    with pytest.raises(ConfigError, match="no plain chain"):
        FedMA().check_network(nn.TransformerEncoderLayer(4, 1), 2)


def test_it_needs_two_sites_and_all_of_them():
    with pytest.raises(ConfigError, match="matches clients with each other, and there is 1"):
        FedMA().check(1)
    FedMA().check(2)
    assert FedMA().needs_all
    problem = toy_problem(3)
    federation = Federation(DirectFleet(problem), quorum=2)
    w, layout = problem.initial(federation.seeds)
    start = FedMA().begin(federation, Round(0, w))
    with pytest.raises(ConfigError, match="fedma needs every client, and quorum is 2"):
        next(iter(FedMA().rounds(federation, layout, 2, start)))
