"""Learned weights for engines of other people's making: the engine-free part."""

import copy
from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofedavg.algorithm import Round, among, auto_fedavg
from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError, FederationError
from autofedavg.core.seeds import Seeds
from autofedavg.core.site import Site
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.engines.dropin.layouts import layout_from, layout_values, model_from
from autofedavg.engines.dropin.learner import WeightLearner
from autofedavg.engines.dropin.responder import Responder
from autofedavg.federation.client import Client
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, NoReply, arrays_of
from autofedavg.federation.paying_calls import Gain
from autofedavg.federation.port import Federation
from autofedavg.federation.serialization import decode, encode

SITES = ("A", "B", "C")


def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    net[0].bias.requires_grad_(False)  # frozen, so that the vector is not in the order of the names
    return net


def loss_of(net, batch):
    return nn.functional.cross_entropy(net(batch[0]), batch[1])


def batch_of(site):
    def batch(t, s):
        generator = torch.Generator().manual_seed(1000 * SITES.index(site) + 50 * t + s)
        x = torch.randn(6, 3, generator=generator)
        return x, (x[:, SITES.index(site)] > 0).long()

    return batch


def trained(site, t, state):
    """A model as a site's own loop might send it."""
    generator = torch.Generator().manual_seed(10 * t + SITES.index(site))

    def changed(tensor):
        if tensor.is_floating_point():
            return tensor + torch.rand(tensor.shape, generator=generator) / 5
        return tensor + 1 + SITES.index(site)

    return {name: changed(state[name]) for name in sorted(state)}


class Carrier:
    """Responders in this process; notes cross as bytes."""

    def __init__(self, responders, spoil=lambda verb, site, answer: answer):
        self.responders, self.spoil, self.sent = responders, spoil, []

    def ask(self, verb, notes, within):
        self.sent += [(verb, site) for site in notes]
        return {site: self.spoil(verb, site, self._one(verb, site, n)) for site, n in notes.items()}

    def _one(self, verb, site, message):
        return decode(encode(self.responders[site].answer(verb, decode(encode(message)))))


def carrier(spoil=lambda verb, site, answer: answer, net=network):
    return Carrier({s: Responder(s, net(), loss_of, batch_of(s)) for s in SITES}, spoil)


class Data:
    """The same batches as the core's clients take them."""

    def __init__(self, site):
        self._batch = batch_of(site)

    def settle(self, device):
        pass

    def weight_batch(self, seeds, t, s, split, size):
        return self._batch(t, s)


class Core:
    """The port's own clients, which keep what they are said to have trained."""

    def __init__(self, layout, seed):
        self.layout = layout
        self.clients = {
            s: Client(
                s,
                Data(s),
                LocalTrainer(network(), loss_of, Training(), torch.device("cpu")),
                Seeds(seed),
                ClientState(),
            )
            for s in SITES
        }

    def roster(self):
        return [Site(s, {}) for s in SITES]

    def ask(self, verb, notes, within):
        if verb != "local_train":
            return {s: self.clients[s].answer(verb, message) for s, message in notes.items()}
        return {s: self._train(s, message) for s, message in notes.items()}

    def _train(self, site, message):
        from autofedavg.federation.messages import model_of

        state = trained(site, message.facts["t"], self.layout.state_dict(model_of(message.arrays)))
        model = self.clients[site].client_state.keep_own(self.layout.model(state))
        return Message(arrays_of(model), {"loss": 0.0})


@pytest.mark.parametrize("constraint", ["dirichlet", "softmax"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"weights": "layer"},
        {"steps_per_message": 3},
        {"learning": "server"},
        {"t0": 2},
        {"t0": "auto"},
        {"t0": "auto", "steps_per_message": 3},
        {"t0": "auto", "learning": "server"},
        {"reinitialise": True},
    ],
    ids=lambda how: next(iter(how), "plain"),
)
def test_the_same_bits_as_the_algorithm_on_our_own_clients(constraint, how):
    learner = WeightLearner("here", S=3, seed=5, constraint=constraint, **how)
    layout = Layout.of(network())
    start = Round(0, layout.read(network()))
    federation = Federation(Core(layout, 5), seeds=Seeds(5), secret=learner.secret)
    plan = learner.method.plan(layout, 20)  # long enough for the calls of the first three rounds
    state, between = network().state_dict(), carrier()
    for done in islice(auto_fedavg(federation, plan, start), 3):
        models = {s: trained(s, done.t, state) for s in SITES}
        learned = learner.round(done.t, state, models, between)
        assert learned.alpha == dict(zip(SITES, done.alpha.reshape(3, -1).tolist(), strict=True))
        expected = layout.state_dict(done.w)
        assert learned.state.keys() == expected.keys() == state.keys()
        assert all(torch.equal(learned.state[k], expected[k]) for k in expected)
        assert learned.learned == done.learned
        state = learned.state
    assert int(state["1.num_batches_tracked"]) == 9  # the maximum over the clients, each round


def test_what_a_site_is_sent_does_not_follow_from_the_seed_it_is_told():
    """Two learners with one seed draw mixtures of their own."""
    state, seen = network().state_dict(), []
    for _ in range(2):
        learner = WeightLearner("here", S=1, seed=5, learning="server")
        models = {s: trained(s, 1, state) for s in SITES}
        seen.append(learner.round(1, state, models, carrier()).losses)
    assert seen[0] != seen[1]


def test_models_travel_once_a_call_and_are_forgotten_after_it():
    learner, between = WeightLearner("here", S=4), carrier()
    state = network().state_dict()
    learner.round(1, state, {s: trained(s, 1, state) for s in SITES}, between)
    verbs = [verb for verb, site in between.sent if site == "A"]
    assert verbs == ["hello"] + ["update_beta"] * 4
    client_states = [responder._client_state for responder in between.responders.values()]
    assert all(client_state._bank is None for client_state in client_states)


def test_a_call_is_judged_by_the_models_that_came_with_its_first_step():
    learner, between = WeightLearner("here", S=2, t0="auto"), carrier()
    state, calls = network().state_dict(), []
    for t in range(1, 6):
        learned = learner.round(t, state, {s: trained(s, t, state) for s in SITES}, between)
        if learned.learned:
            calls.append((t, learned.verdict))
            assert learned.metrics()["verdict/paid"] == learned.verdict["paid"]
            assert learned.metrics()["verdict/gain"] == learned.verdict["gain"]
        else:
            assert learned.verdict == {}
    (first, verdict), *others = calls
    assert first == 1
    assert [t for t, _ in others][:1] == [verdict["next"]]
    verbs = [verb for verb, site in between.sent if site == "A"]
    assert verbs == ["hello"] + len(calls) * (["update_beta"] * 2 + ["mixture_losses"])
    client_states = [responder._client_state for responder in between.responders.values()]
    assert all(client_state._bank is None for client_state in client_states)


@pytest.mark.parametrize(
    "wrong", [{"objective": "size"}, {"start": "sizes"}, {"t0": "auto", "when_idle": "sizes"}]
)
def test_settings_that_need_the_sites_numbers_of_cases_are_refused(wrong):
    with pytest.raises(ConfigError, match="needs every site's number of training cases"):
        WeightLearner("here", **wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"layer": "tensor"}, "method: layer = 'tensor' needs weights = 'layer'; leave it out"),
        ({"S": 0}, "here: S: input should be greater than or equal to 1 (given: 0)"),
        ({"S": 2, "steps_per_message": 3}, "here: steps_per_message = 3 is more than S = 2, all"),
        ({"deadline": -1.0}, "here: deadline: input should be greater than or equal to 0"),
        (
            {"beta_rat": 2.0},
            "here: beta_rat is not a setting of learned weights; did you mean beta_rate",
        ),
    ],
)
def test_wrong_settings_are_refused_as_in_a_study(wrong, says):
    with pytest.raises(ConfigError) as caught:
        WeightLearner("here", **wrong)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(("T", "calls"), [(0, [1, 2, 5, 12]), (12, [1, 2]), (15, [1, 2, 5])])
def test_the_last_round_bounds_the_calls_where_it_is_known(T, calls, monkeypatch):
    """A fifth of the rounds at most; every call pays here."""
    monkeypatch.setattr(Gain, "beyond_noise", True)
    learner, between, called = WeightLearner("here", S=1, t0="auto"), carrier(), []
    state = network().state_dict()
    for t in range(1, 13):
        learned = learner.round(t, state, {s: trained(s, t, state) for s in SITES}, between, T)
        called += [t] * learned.learned
    assert called == calls


def test_a_site_that_lost_the_models_is_sent_them_again():
    state = network().state_dict()
    models = {s: trained(s, 1, state) for s in SITES}
    plain = WeightLearner("here", S=4).round(1, state, models, carrier())
    fresh = []

    def lose(verb, site, answer):
        if verb == "update_beta" and site == "B" and len(fresh) < 1:
            fresh.append(site)
            between.responders["B"] = Responder("B", network(), loss_of, batch_of("B"))
        return answer

    between = carrier(lose)
    again = WeightLearner("here", S=4).round(1, state, models, between)
    assert fresh
    assert again.alpha == plain.alpha


def test_a_site_sits_out_and_comes_back_and_one_is_new():
    learner, between, state = WeightLearner("here", S=5, beta_rate=0.5), carrier(), None
    state = network().state_dict()
    first = learner.round(1, state, {s: trained(s, 1, state) for s in "AB"}, between)
    assert list(first.alpha) == ["A", "B"]
    kept = learner._beta["A"].clone()
    second = learner.round(2, state, {s: trained(s, 2, state) for s in "BC"}, between)
    assert list(second.alpha) == ["B", "C"]
    assert torch.equal(learner._beta["A"], kept)
    third = learner.round(3, state, {s: trained(s, 3, state) for s in SITES}, between)
    assert list(third.alpha) == list(SITES)
    for learned in (first, second, third):
        assert sum(w for (w,) in learned.alpha.values()) == pytest.approx(1.0)
    assert [site for verb, site in between.sent if verb == "hello"] == ["A", "B", "C"]


def test_sitting_out_is_the_cores_own_rule():
    """Beta of those present, and their share of alpha, are as Algorithm 1's server has them."""
    state = network().state_dict()
    learner, between = WeightLearner("here", S=3, constraint="softmax"), carrier()
    learner.round(1, state, {s: trained(s, 1, state) for s in SITES}, between)
    beta = torch.stack([learner._beta[s] for s in SITES])
    learned = learner.round(2, state, {s: trained(s, 2, state) for s in "AC"}, between)

    class Absent(Core):
        def ask(self, verb, notes, within):
            answers = super().ask(verb, notes, within)
            return answers | ({"B": NoReply("is away")} if verb == "local_train" else {})

    layout = Layout.of(network())
    federation = Federation(Absent(layout, 0), quorum=2)
    plan = replace(learner.method.plan(layout, 2))
    done = next(auto_fedavg(federation, plan, Round(1, layout.read(network()), beta)))
    expected = among(done.alpha, federation, done.w_k)
    assert [w for (w,) in learned.alpha.values()] == pytest.approx(expected.tolist(), abs=1e-15)


def test_one_site_alone_has_all_the_weight_and_is_not_asked():
    between, state = carrier(), network().state_dict()
    learned = WeightLearner("here").round(1, state, {"A": trained("A", 1, state)}, between)
    assert learned.alpha == {"A": [1.0]}
    assert not learned.learned
    assert between.sent == [("hello", "A")]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda m: m.pop("3.bias"), "has no tensor 3.bias"),
        (
            lambda m: m.update(extra=torch.zeros(1)),
            "has a tensor extra, which the network does not have",
        ),
        (lambda m: m.update({"3.bias": torch.zeros(7)}), "3.bias as 7, the network as 2"),
        (
            lambda m: m.update({"3.bias": torch.zeros(2).double()}),
            "another type than torch.float32",
        ),
        (lambda m: m.update({"3.bias": torch.tensor([0.0, torch.nan])}), "not finite"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_under_its_sites_name(spoil, said):
    state = network().state_dict()
    models = {s: trained(s, 1, state) for s in SITES}
    spoil(models["B"])
    with pytest.raises((ConfigError, FederationError), match="client B") as refused:
        WeightLearner("here", S=2).round(1, state, models, carrier())
    assert said in str(refused.value)
    left = WeightLearner("here", S=2, bad_answers="drop", quorum=2)
    learned = left.round(1, state, models, carrier())
    assert list(learned.alpha) == ["A", "C"]
    assert [e["site"] for e in learned.events if e["what"] == "dropped"] == ["B"]
    assert all(bool(torch.isfinite(a.double()).all()) for a in learned.state.values())


def test_a_global_model_of_another_network_is_the_servers_fault():
    state = network().state_dict()
    other = {k: v for k, v in state.items() if k != "3.bias"}
    models = {s: trained(s, 1, state) for s in SITES}
    with pytest.raises(ConfigError, match=r"the server: the global model has no tensor 3\.bias"):
        WeightLearner("here").round(1, other, models, carrier())


def test_a_site_with_another_network_is_refused_at_joining():
    between = carrier()
    other = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    between.responders["C"] = Responder("C", other, loss_of, batch_of("C"))
    state = network().state_dict()
    with pytest.raises(FederationError, match=r"client C.*its network is not that of A: 0\.weight"):
        WeightLearner("here").round(1, state, dict.fromkeys(SITES, state), between)


def test_another_version_and_two_sites_of_one_name_are_refused():
    state = network().state_dict()
    models = dict.fromkeys(SITES, state)
    for change, said in [({"version": "0.0.1"}, "0.0.1"), ({"site": "A"}, "both called A")]:

        def lie(verb, site, answer, change=change):
            lied = verb == "hello" and site == "B"
            return Message({}, {**answer.facts, **change}) if lied else answer

        with pytest.raises(FederationError, match=said):
            WeightLearner("here").round(1, state, models, carrier(lie))


def test_a_lost_site_ends_the_round_unless_a_quorum_allows_it():
    state = network().state_dict()
    models = {s: trained(s, 1, state) for s in SITES}

    def lose(verb, site, answer):
        return NoReply("is gone") if verb == "update_beta" and site == "C" else answer

    with pytest.raises(FederationError, match=r"client C, update_beta, round 1: did not answer"):
        WeightLearner("here", S=2).round(1, state, models, carrier(lose))
    learned = WeightLearner("here", S=2, quorum=2).round(1, state, models, carrier(lose))
    assert {e["site"] for e in learned.events} == {"C"}
    assert list(learned.alpha) == list(SITES)


def test_what_goes_wrong_at_a_site_says_nothing_of_its_files():
    def broken(t, s):
        raise FileNotFoundError("/hospital/secret/patient.nii")

    between, state = carrier(), network().state_dict()
    between.responders["B"] = Responder("B", network(), loss_of, broken)
    with pytest.raises(FederationError, match=r"client B.*FileNotFoundError") as refused:
        WeightLearner("here").round(1, state, dict.fromkeys(SITES, state), between)
    assert "secret" not in str(refused.value)


def test_a_loss_that_is_not_finite_names_the_client():
    between, state = carrier(), network().state_dict()
    nan = lambda net, batch: loss_of(net, batch) * torch.nan  # noqa: E731
    between.responders["B"] = Responder("B", network(), nan, batch_of("B"))
    with pytest.raises(Exception, match=r"client B.*the loss is nan"):
        WeightLearner("here").round(1, state, dict.fromkeys(SITES, state), between)


def test_no_site_at_all():
    with pytest.raises(FederationError, match="no site has trained"):
        WeightLearner("here").round(1, network().state_dict(), {}, carrier())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"t_0": 2}, "did you mean t0"),
        ({"S": 0}, "S"),
        ({"steps_per_message": 30}, "more than S"),
        ({"learn_on": "train"}, "not a setting"),
        ({"sketch": 64}, "not a setting"),
        ({"learning": "blind"}, "the engine's own training sends them"),
        ({"deadline": -1.0}, "deadline"),
        ({"quorum": "two"}, "quorum is 'two'"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_wrong_settings(settings, said):
    with pytest.raises(ConfigError, match=said):
        WeightLearner("LearnedFedAvg", **settings)


def test_a_data_loader_gives_the_same_batches_whenever_asked():
    x = torch.arange(30.0).reshape(10, 3)
    loader = DataLoader(TensorDataset(x, torch.ones(10).long()), batch_size=4, shuffle=True)
    state = network().state_dict()
    models = {s: trained(s, 1, state) for s in SITES}

    def once():
        net = network()
        between = Carrier({s: Responder(s, net, loss_of, loader) for s in SITES})
        return WeightLearner("here", S=5).round(1, state, models, between).alpha

    assert once() == once()


def test_batches_that_are_neither_loader_nor_function():
    with pytest.raises(ConfigError, match="batches is list"):
        Responder("A", network(), loss_of, [1, 2])


def test_the_sites_own_network_is_left_alone():
    net = network()
    before = copy.deepcopy(net.state_dict())
    Responder("A", net, loss_of, batch_of("A")).answer("hello", Message())
    net(torch.randn(4, 3)).sum().backward()
    between = Carrier({s: Responder(s, net, loss_of, batch_of(s)) for s in SITES})
    gradients = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
    net.load_state_dict(before)
    models = {s: trained(s, 1, before) for s in SITES}
    WeightLearner("here", S=2).round(1, before, models, between)
    assert all(torch.equal(a, before[n]) for n, a in net.state_dict().items())
    assert all(torch.equal(g, dict(net.named_parameters())[n].grad) for n, g in gradients.items())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight


@pytest.mark.parametrize("make", [network, Tied, lambda: nn.Linear(2, 2).double()])
def test_a_network_told_in_plain_values_is_the_same_network(make):
    layout = Layout.of(make())
    again = layout_from(
        decode(encode(Message({}, {"layout": layout_values(layout)}))).facts["layout"]
    )
    assert again == layout
    state = make().state_dict()
    back = again.state_dict(model_from(again, state))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[k], state[k]) for k in state)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.sampled_from(["tensors", "aliases", "counters", "trainable", "dtype", ""]), plain)
def test_anything_else_is_refused(key, value):
    good = layout_values(Layout.of(nn.Linear(2, 2)))
    bad = {**good, key: value} if key else value
    try:
        layout = layout_from(bad)
    except ConfigError:
        return
    assert layout_values(layout) == bad


def test_a_site_refuses_models_that_are_not_of_its_network():
    def other(verb, site, answer):
        if verb == "hello" and site == "C":
            between.responders["C"] = Responder("C", nn.Linear(3, 2), loss_of, batch_of("C"))
        return answer

    between, state = carrier(other), network().state_dict()
    with pytest.raises(ConfigError, match=r"client C.*was sent a model of A"):
        WeightLearner("here").round(1, state, dict.fromkeys(SITES, state), between)


def test_a_site_answers_nothing_else():
    answer = Responder("A", network(), loss_of, batch_of("A")).answer("evaluate", Message())
    assert "unknown request" in answer.facts["error"]
