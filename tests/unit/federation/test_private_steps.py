"""A client under differential privacy: what it replies, what it pays, what it refuses."""

from dataclasses import replace

import pytest
import torch

from autofedavg.algorithm import Round
from autofedavg.core.accountant import Mechanism, composed, epsilon_of
from autofedavg.core.bank import Bank
from autofedavg.core.errors import DataError, FederationError, TrainingError
from autofedavg.core.local_rules import Prox
from autofedavg.core.privacy import Privacy
from autofedavg.core.trainer import Training
from autofedavg.federation.encoding import as_received, packed
from autofedavg.federation.local_training import Probe
from autofedavg.federation.messages import Message, arrays_of, bag_of
from autofedavg.federation.port import Federation
from autofedavg.federation.private_steps import steps_of
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import (
    BETA,
    HOW,
    TRAINING,
    DirectFleet,
    PointSite,
    ToySite,
    forge,
    make_client,
    norm_net,
    point_problem,
    rounds_of,
    same_round,
    toy_problem,
    toy_site,
)

BOTH = Privacy(theta_clip=0.5, theta_noise=1.0, train_clip=0.5, train_noise=1.0)
THETA = Privacy(theta_clip=0.5, theta_noise=1.0)


def client(privacy=BOTH, problem=None, **how):
    return make_client(problem or toy_problem(), "A", privacy=privacy, **how)


def w0(problem=None):
    return (problem or toy_problem()).initial(make_client(toy_problem(), "A").seeds)[0]


def train(site, t=1, model=None, **how):
    model = model or w0()
    return site.answer("local_train", Message(arrays_of(model), {"t": t, "T": 3, **how}))


def shared(site, digest="d", spread=0.0):
    bank = Bank.gather({"ABC"[k]: w0() for k in range(3)})
    generator = torch.Generator().manual_seed(3)
    bank.values.add_(torch.randn(bank.values.shape, generator=generator) * (0.3 + spread))
    digests = {name: f"{digest}{name}" for name in bank.sites}
    facts = {"t": 1, "sites": [*bank.sites], "digest": digest, "digests": digests}
    site.answer("share_models", Message(bag_of(bank), facts))
    return bank


def weigh(site, beta=BETA, s=1, **how):
    return site.answer(
        "update_beta", Message({"beta": beta}, {"t": 1, "s": s, "digest": "d", **HOW, **how})
    )


def test_training_withholds_its_loss_and_names_its_price():
    reply = train(client())
    assert reply.facts == {"loss": None, "spent": ["train", 4 / 8, 1.0, TRAINING.iterations]}


def test_the_same_request_has_the_same_bits_and_costs_once():
    site = client()
    first, again = train(site).arrays["values"].clone(), train(site).arrays["values"].clone()
    spent = site.private.ledger.epsilon()
    assert torch.equal(first, again)
    fresh = client()
    assert torch.equal(train(fresh).arrays["values"], first)
    assert fresh.private.ledger.epsilon() == spent


@pytest.mark.parametrize("how", ["bfloat16", "difference"])
def test_how_models_travel_changes_neither_the_noise_nor_the_price(how):
    """An encoding only reads what was released; a model sent otherwise is the same request."""
    problem, site = toy_problem(), client()
    before = w0(problem)
    start = as_received(replace(before, values=1.01 * before.values), how, before)
    exact = train(site, model=start)
    released, spent = exact.arrays["values"].clone(), site.private.ledger.epsilon()
    site.client_state.keep_reference(before, "known")
    told = {"coding": how, **({"reference": "known"} if how == "difference" else {})}
    facts = {"t": 1, "T": 3, "up": how, "sent": told}
    reply = site.answer("local_train", Message(packed(start, how, before), facts))
    assert reply.facts == exact.facts
    assert site.private.ledger.epsilon() == spent
    wanted = packed(replace(start, values=released), how, start)
    assert reply.arrays.keys() == wanted.keys()
    assert all(torch.equal(reply.arrays[name], array) for name, array in wanted.items())


def test_another_model_for_the_same_round_has_other_noise_and_costs_again():
    """With the same noise, the difference of two answers would have none."""
    site = client(Privacy(train_clip=1e-6, train_noise=1.0))
    model = w0()
    moved = replace(model, values=model.values.clone())
    moved.values[0] += 1e-3
    one = train(site, model=model).arrays["values"] - model.values
    spent = site.private.ledger.epsilon()
    other = train(site, model=moved).arrays["values"] - moved.values
    assert site.private.ledger.epsilon() > spent
    assert float((one - other).norm()) > 0.3 * float(one.norm())


def test_noise_hides_one_patient():
    """Answers with and without a patient differ by at most the bound, in units of the noise."""
    problem = toy_problem()
    site = problem.sites["A"]
    x, y = site.splits["train"]
    sizes = []
    for count in (len(x), len(x) - 1):
        full = replace(site, splits={**site.splits, "train": (x[:count], y[:count])})
        given = replace(problem, sites={**problem.sites, "A": full})
        one = client(
            Privacy(train_clip=0.1, train_noise=0.1),
            given,
            training=TRAINING.model_copy(update={"iterations": 1, "batch_size": 1000}),
        )
        release = one.private.training(one.training_of(Message(arrays_of(w0()), {"t": 1, "T": 1})))
        quiet = replace(
            release.batch(0, augment=True), noise=lambda n: torch.zeros(n, dtype=torch.float64)
        )
        one.trainer.load(w0())
        one.trainer._backward(quiet)
        sizes.append(one.trainer.gradient * quiet.expected)
    assert 0 < float((sizes[0] - sizes[1]).norm()) <= 0.1 * (1 + 1e-5)


def test_samples_take_every_patient_with_chance_q():
    site = client()
    release = site.private.training(site.training_of(Message(arrays_of(w0()), {"t": 1, "T": 3})))
    counts = [len(list(release.batch(s).patients)) for s in range(4000)]
    n, q = 8, 0.5
    mean = sum(counts) / len(counts)
    assert mean == pytest.approx(n * q, abs=4 * (n * q * (1 - q) / len(counts)) ** 0.5)
    assert 0 in counts
    assert {release.batch(s).expected for s in range(9)} == {n * q}  # whoever was found


def test_every_step_has_noise_and_a_sample_of_its_own(monkeypatch):
    """Noise that returned in the next step could be averaged out, or subtracted."""
    site, taken = client(), []
    release = site.private.training(site.training_of(Message(arrays_of(w0()), {"t": 1, "T": 3})))
    steps = [release.batch(s) for s in range(8)]
    noise = torch.stack([step.noise(400) for step in steps])
    assert float((torch.corrcoef(noise) - torch.eye(8)).abs().max()) < 0.25
    assert float(noise.std()) == pytest.approx(1.0, abs=0.1)
    moved = w0()
    moved.values[0] += 1e-3
    asked = Message(arrays_of(moved), {"t": 1, "T": 3})  # the same round, from another model
    again = site.private.training(site.training_of(asked)).batch(0).noise(400)
    assert float(torch.corrcoef(torch.stack([noise[0], again]))[0, 1]) < 0.25
    monkeypatch.setattr(
        type(site.data), "patient_batch", lambda _, split, i, *rest: taken.append(i)
    )
    samples = []
    for step in steps:
        list(step.patients)
        samples.append(tuple(taken))
        taken.clear()
    assert len(set(samples)) > 4


def test_steps_follow_iterations_or_epochs():
    assert steps_of(Training(iterations=7), 10) == 7
    assert steps_of(Training(epochs=3, batch_size=4), 10) == 9
    site = client(training=Training(epochs=2, batch_size=3))
    assert train(site).facts["spent"][3] == 6


def test_a_step_on_beta_is_private_and_repeats_itself():
    site = client(THETA)
    shared(site)
    reply = weigh(site)
    assert reply.facts == {"loss": None, "spent": ["validation", 4 / 6, 1.0, 1]}
    assert torch.equal(weigh(site).arrays["theta"], reply.arrays["theta"])
    once = site.private.ledger.epsilon()
    other = weigh(site, BETA + 1e-6).arrays["theta"]
    assert site.private.ledger.epsilon() > once
    assert float((other - reply.arrays["theta"]).abs().max()) > 1e-3


def test_steps_on_patients_who_also_train_are_counted_with_training():
    class Sharing(ToySite):
        def shares_patients(self, split, other):
            return True

    problem = toy_problem()
    sites = {**problem.sites, "A": Sharing("A", problem.sites["A"].splits)}
    site = client(BOTH, replace(problem, sites=sites))
    shared(site)
    spent = [train(site).facts["spent"], weigh(site).facts["spent"]]
    assert [group for group, *_ in spent] == ["train", "train"]
    once = composed({Mechanism(*spent[0][1:3]): spent[0][3], Mechanism(*spent[1][1:3]): 1})
    assert site.private.ledger.epsilon() == pytest.approx(epsilon_of(once, 1e-3))


def test_a_bank_that_the_server_calls_by_the_same_name_is_another_one():
    site, same = client(THETA), client(THETA)
    shared(site)
    first = weigh(site).arrays["theta"]
    site.client_state.keep_bank(shared(same, spread=1e-4), "d")
    assert float((weigh(site).arrays["theta"] - first).abs().max()) > 1e-3
    assert site.private.ledger.epsilon() > same.private.ledger.epsilon()


def test_the_mean_step_without_noise_is_the_step_on_all_patients():
    """A bound above all gradients, everybody sampled: Algorithm 1's step on the whole split."""
    problem = toy_problem(full=True)
    how = TRAINING.model_copy(update={"batch_size": 1000})
    site = make_client(problem, "A", how, privacy=Privacy(theta_clip=1e3, theta_noise=1.0))
    plain = make_client(problem, "A", how)
    shared(site)
    shared(plain)
    site.private.key.normals = lambda count, *_: torch.zeros(count, dtype=torch.float64)
    theta = weigh(site).arrays["theta"]
    assert torch.allclose(theta, weigh(plain).arrays["theta"], atol=1e-6)
    gradient = ask_gradient(site).arrays["gradient"]
    assert torch.allclose(gradient, ask_gradient(plain).arrays["gradient"], atol=1e-6)


def ask_gradient(site, s=1):
    facts = {"t": 1, "s": s, "data": "validation", "mode": "eval"}
    return site.answer("differentiate", Message(arrays_of(w0()), facts))


def test_gradients_for_the_server_are_private_too():
    site = client(THETA)
    reply = ask_gradient(site)
    assert reply.facts["spent"] == ["validation", 4 / 6, 1.0, 1]
    assert torch.equal(ask_gradient(site).arrays["gradient"], reply.arrays["gradient"])


def test_several_steps_a_message_are_paid_one_by_one():
    site = client(THETA)
    shared(site)
    optimiser = {"kind": "sgd", "rate": 0.1, "betas": [0.5, 0.9]}
    assert weigh(site, steps=3, optimiser=optimiser).facts["spent"][3] == 3


@pytest.mark.parametrize(
    ("verb", "facts", "said"),
    [
        ("class_counts", {"t": 1}, "training cases per class"),
        ("local_train", {"probe": Probe().note()}, "a loss before training"),
        ("local_train", {"rule": {"name": "personal", "mu": 1.0}}, "the local rule 'personal'"),
        ("local_train", {"form": {}}, "networks whose layers change"),
        ("mixture_losses", {"t": 1, "s": 3, "steps": 2}, "the losses that judge a call"),
        ("evaluate", {"t": 1, "split": "test", "half": 0}, "the ceiling"),
    ],
)
def test_what_no_noise_covers_is_refused(verb, facts, said):
    message = Message(
        arrays_of(w0()), {"t": 1, "T": 3, **facts} if verb == "local_train" else facts
    )
    with pytest.raises(TrainingError, match=said):
        client().answer(verb, message)


def test_prox_is_private():
    rule = Prox(mu=0.1)
    assert train(client(), rule=rule.note()).facts["spent"][0] == "train"


def test_buffers_that_change_are_not_sent():
    problem = toy_problem(network=norm_net)
    problem = replace(problem, loss=lambda net, batch: net(batch[0].repeat(2, 1)).square().mean())
    site = client(problem=problem, privacy=Privacy(train_clip=1.0, train_noise=1.0))
    with pytest.raises(TrainingError, match="changed buffers"):
        train(site, model=w0(problem))


def test_data_must_be_had_by_patient():
    problem = point_problem((0.0,), {"A": PointSite((1.0,), (1.0,))})
    with pytest.raises(DataError, match="patient by patient"):
        make_client(problem, "A", privacy=BOTH)


def test_a_split_without_patients():
    bare = toy_site("A", 0)
    bare.splits["validation"] = tuple(part[:0] for part in bare.splits["validation"])
    problem = toy_problem()
    site = client(THETA, replace(problem, sites={**problem.sites, "A": bare}))
    shared(site)
    with pytest.raises(TrainingError, match="no validation patient"):
        weigh(site)


# --- at the server --------------------------------------------------------------------------------


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_runs_are_reproducible_and_resume_with_the_same_bits(learning):
    method = AutoFedAvg(S=2, constraint="softmax", learning=learning)
    whole = rounds_of(method, DirectFleet(toy_problem(), privacy=BOTH), 3)
    assert all(r.losses == {} for r in whole)
    for t in (0, 1):
        rest = rounds_of(method, DirectFleet(toy_problem(), privacy=BOTH), 3, whole[t])
        assert all(same_round(a, b) for a, b in zip(whole[t + 1 :], rest, strict=True))
    plain = rounds_of(method, DirectFleet(toy_problem()), 3)
    assert not torch.equal(plain[-1].w.values, whole[-1].w.values)


def test_the_server_collects_prices():
    fleet = DirectFleet(toy_problem(), privacy=BOTH)
    federation = Federation(fleet, privacy=BOTH)
    start, layout = toy_problem().initial(fleet.seeds)
    method = AutoFedAvg(S=2, constraint="softmax")
    list(method.rounds(federation, layout, 2, Round(0, start)))
    spent = federation.take_spent()
    assert spent["A"] == [["train", 0.5, 1.0, 6], ["validation", 4 / 6, 1.0, 4]]
    assert federation.take_spent() == {}
    assert federation.take_learning_losses() == {}


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        (None, "the price of its reply is None"),
        (["train", 0.5, 1.0], "the price of its reply is"),
        ([1, 0.5, 1.0, 3], "the price of its reply is"),
        (["train", 0.0, 1.0, 3], "the price of its reply is"),
        (["train", 1.5, 1.0, 3], "the price of its reply is"),
        (["train", 0.5, float("nan"), 3], "the price of its reply is"),
        (["train", 0.5, 1.0, 0], "the price of its reply is"),
        (["train", 0.5, 1.0, 10**12], "the price of its reply is"),
    ],
)
def test_a_reply_without_a_proper_price_is_not_used(spent, said):
    honest = train(client(BOTH))
    reply = Message(honest.arrays, {**honest.facts, "spent": spent})
    fleet = DirectFleet(toy_problem(), privacy=BOTH, intercept=forge("A", "local_train", reply))
    with pytest.raises(FederationError, match=said):
        Federation(fleet, privacy=BOTH).local_train(1, w0(), T=3)


def test_a_loss_is_withheld_only_where_the_study_asks_for_it():
    honest = train(client(BOTH))
    fleet = DirectFleet(toy_problem(), intercept=forge("A", "local_train", honest))
    with pytest.raises(FederationError, match="private reply that nobody asked for"):
        Federation(fleet).local_train(1, w0(), T=3)
    silent = Message(honest.arrays, {"loss": None})
    fleet = DirectFleet(toy_problem(), intercept=forge("A", "local_train", silent))
    with pytest.raises(FederationError, match="its loss is None"):
        Federation(fleet).local_train(1, w0(), T=3)


def test_vectors_are_part_of_a_request():
    site = client()
    length = site.trainer.layout.trainable
    note, model = {"name": "shift", "mean_gradient": False}, w0()

    def asked(shift):
        facts = {"t": 1, "T": 3, "rule": note}
        arrays = {**arrays_of(model), "along/shift": torch.full((length,), shift)}
        return site.answer("local_train", Message(arrays, facts)).arrays["values"].clone()

    asked(0.0)
    once = site.private.ledger.epsilon()
    asked(0.0)
    assert site.private.ledger.epsilon() == once
    asked(1.0)
    assert site.private.ledger.epsilon() > once


def test_what_the_study_leaves_alone_is_not_private():
    site = client(THETA)
    assert train(site).facts["loss"] > 0
    assert site.private.ledger.epsilon() == 0
    site = client(Privacy(train_clip=0.5, train_noise=1.0))
    shared(site)
    assert weigh(site).facts["loss"] > 0
    assert "spent" not in ask_gradient(site).facts


def test_a_site_that_lacks_the_models_pays_nothing():
    fleet = DirectFleet(toy_problem(), privacy=THETA)
    federation = Federation(fleet, privacy=THETA)
    bank = Bank.gather({name: w0() for name in "ABC"})
    federation.share_models(1, bank)
    fleet.clients["B"].client_state.keep_bank(bank, "other")
    federation.update_beta(1, 1, BETA, **HOW)
    spent = federation.take_spent()
    assert [spent[name][0][3] for name in "ABC"] == [1, 1, 1]
