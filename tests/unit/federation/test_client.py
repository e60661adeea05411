"""One institution: answers depend on the request, its data and its shelf, on nothing else."""

from dataclasses import replace

import pytest
import torch

from autofedavg.core.bank import Bank
from autofedavg.core.errors import AutoFedAvgError, DataError, Diverged
from autofedavg.core.problem import Problem
from autofedavg.core.seeds import Seeds
from autofedavg.federation.client_state import ClientState
from autofedavg.federation.messages import Message, arrays_of, model_of
from autofedavg.federation.port import Federation
from autofedavg.methods.auto_fedavg import AutoFedAvg
from toy import (
    METRIC,
    TRAINING,
    DirectFleet,
    PointSite,
    ToySite,
    make_client,
    norm_net,
    point_problem,
    toy_problem,
)


@pytest.fixture
def problem():
    """With batch norm and dropout: buffers, counters and randomness in the network."""
    return toy_problem(2, norm_net)


def requests(problem, **settings):
    """One of each request of the port, in an order that can be answered."""
    w0, layout = problem.initial(Seeds(7))
    transport = DirectFleet(problem)
    federation = Federation(transport)
    w_k = federation.local_train(1, w0, T=2).w_k
    federation.share_models(1, w_k)
    plan = AutoFedAvg(**settings).plan(layout, 2)
    federation.update_beta(1, 1, plan.gamma.initial(2), **plan.message(1))
    how = {"data": plan.data, "mode": plan.mode}
    federation.differentiate(1, 1, w0, "AB", layout.trainable, **how)
    federation.evaluate(w0, "validation")
    federation.validate_local(1, w_k, METRIC)
    federation.class_counts(1)
    return {verb: message for verb, site, message in transport.asked if site == "A"}


VERBS = ["local_train", "share_models", "update_beta", "differentiate", "evaluate"]
VERBS += ["validate_local", "class_counts"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_value_that_a_client_does_not_know_is_refused(problem, verb):
    client = make_client(problem, "A")
    message = requests(problem)[verb]
    spoilt = Message(message.arrays, {**message.facts, "muu": 0.1})
    with pytest.raises(AutoFedAvgError, match=rf"^client A: unknown value 'muu' for {verb}; "):
        client.answer(verb, spoilt)


def test_what_a_method_misspells_ends_the_call_with_a_hint(problem):
    w0, _ = problem.initial(Seeds(7))
    federation = Federation(DirectFleet(problem))
    with pytest.raises(AutoFedAvgError, match="unknown value 'weight_deacy' for local_train"):
        federation.local_train(1, w0, T=2, weight_deacy=0.1)


def same(one, other):
    return one.facts == other.facts and all(
        torch.equal(one.arrays[key], other.arrays[key]) for key in one.arrays | other.arrays
    )


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("m", [1, 3])
def test_every_request_may_be_repeated(problem, mode, m):
    client, asked = make_client(problem, "A"), requests(problem, mode=mode, steps_per_message=m)
    for verb in VERBS:
        first = client.answer(verb, asked[verb])
        first = Message({k: a.clone() for k, a in first.arrays.items()}, first.facts)
        assert same(client.answer(verb, asked[verb]), first), verb


def test_an_answer_does_not_depend_on_what_was_asked_in_between(problem):
    client, asked = make_client(problem, "A"), requests(problem)
    first = {verb: client.answer(verb, asked[verb]) for verb in VERBS}
    for verb in reversed(VERBS):
        assert same(client.answer(verb, asked[verb]), first[verb]), verb


def test_a_client_that_comes_back_gives_the_same_answers(problem):
    asked = requests(problem)
    old, new = make_client(problem, "A"), make_client(problem, "A")
    for verb in VERBS:
        assert same(new.answer(verb, asked[verb]), old.answer(verb, asked[verb])), verb


@pytest.mark.parametrize("verb", VERBS)
def test_no_request_touches_global_randomness(problem, verb):
    client, asked = make_client(problem, "A"), requests(problem, mode="train")
    for earlier in VERBS[: VERBS.index(verb)]:
        client.answer(earlier, asked[earlier])
    before = torch.get_rng_state()
    client.answer(verb, asked[verb])
    assert torch.equal(torch.get_rng_state(), before)


def test_rounds_and_clients_have_their_own_dropout(problem):
    """Same data under two names: with full batches only the network's own randomness differs."""
    one = replace(problem.sites["A"], full=True)
    twins = Problem(problem.network, problem.loss, {"A": one, "B": one}, METRIC)
    w0, _ = twins.initial(Seeds(7))

    def trained(name, t):
        message = Message(arrays_of(w0), {"t": t, "T": 9})
        return make_client(twins, name).answer("local_train", message).arrays["values"]

    assert torch.equal(trained("A", 1), trained("A", 1))
    assert not torch.equal(trained("A", 1), trained("A", 2))
    assert not torch.equal(trained("A", 1), trained("B", 1))


def test_every_client_round_and_step_has_an_alpha_of_its_own(problem):
    """Same data, full batches, eval mode: only the draw from the Dirichlet can differ."""
    one = replace(problem.sites["A"], full=True)
    twins = Problem(problem.network, problem.loss, {"A": one, "B": one}, METRIC)
    asked = requests(twins)
    bank = Bank.gather(
        {name: model_of(asked["share_models"].arrays, "B") for name in ("A", "B")}
        | {"A": twins.initial(Seeds(7))[0]}
    )

    def theta(name, t, s):
        client = make_client(twins, name)
        client.client_state.keep_bank(bank, "x")
        facts = {**asked["update_beta"].facts, "t": t, "s": s, "digest": "x"}
        message = Message(asked["update_beta"].arrays, facts)
        return client.answer("update_beta", message).arrays["theta"]

    base = theta("A", 1, 1)
    assert torch.equal(theta("A", 1, 1), base)
    for other in (("A", 1, 2), ("A", 2, 1), ("B", 1, 1)):
        assert not torch.equal(theta(*other), base), other


def test_a_client_tells_its_data_once_where_the_network_is(problem):
    told = []
    problem.sites["A"].settle = told.append
    make_client(problem, "A")
    assert told == [torch.device("cpu")]


def test_class_counts_are_the_data_s_own_or_none(problem):
    counted = (
        make_client(problem, "A").answer("class_counts", Message({}, {"t": 1})).facts["classes"]
    )
    assert counted == problem.sites["A"].class_counts()
    assert sum(counted) == problem.sites["A"].cases()["train"]
    unaware = point_problem((0.0,), {"A": PointSite((1.0,), (1.0,))})
    assert make_client(unaware, "A").answer("class_counts", Message()).facts == {"classes": None}


def test_an_unknown_request_is_refused(problem):
    with pytest.raises(AutoFedAvgError, match=r"^client A: unknown request 'forget'$"):
        make_client(problem, "A").answer("forget", Message())


# --- losses that are not finite -------------------------------------------------------------------


class Spoilt(ToySite):
    """A site whose batches hold a NaN from the second one of a round on."""

    def train_batches(self, seeds, t, training):
        for step, (x, y) in enumerate(super().train_batches(seeds, t, training)):
            yield (x * torch.nan if step >= 1 else x), y

    def weight_batch(self, seeds, t, s, split, batch_size):
        x, y = super().weight_batch(seeds, t, s, split, batch_size)
        return x * torch.nan, y


def spoilt(problem):
    sites = {**problem.sites, "A": Spoilt("A", problem.sites["A"].splits)}
    return Problem(problem.network, problem.loss, sites, METRIC)


def test_a_nan_in_training_names_client_round_and_step(problem):
    w0, _ = problem.initial(Seeds(7))
    wrong = (
        "^client A, local_train, round 3, step 2: the loss is nan; lower training.learning_rate, "
        "or look at this site's images and labels$"
    )
    with pytest.raises(Diverged, match=wrong):
        make_client(spoilt(problem), "A").answer(
            "local_train", Message(arrays_of(w0), {"t": 3, "T": 5})
        )


def test_a_nan_while_learning_beta_names_client_round_and_step(problem):
    asked = requests(problem)
    client, whole = make_client(spoilt(problem), "A"), make_client(problem, "A")
    trained = whole.answer("local_train", asked["local_train"])
    client.client_state.keep_own(model_of(trained.arrays))
    client.answer("share_models", asked["share_models"])
    step = Message(asked["update_beta"].arrays, {**asked["update_beta"].facts, "t": 4, "s": 5})
    with pytest.raises(
        AutoFedAvgError, match=r"^client A, update_beta, round 4, step 5: the loss is nan; lower"
    ):
        client.answer("update_beta", step)


def test_a_nan_in_a_message_of_several_steps_names_the_first_bad_one(problem):
    class LateNan(ToySite):
        def weight_batch(self, seeds, t, s, split, batch_size):
            x, y = super().weight_batch(seeds, t, s, split, batch_size)
            return (x * torch.nan if s >= 3 else x), y

    asked = requests(problem, steps_per_message=5)
    sites = {**problem.sites, "A": LateNan("A", problem.sites["A"].splits)}
    client = make_client(Problem(problem.network, problem.loss, sites, METRIC), "A")
    for verb in ("local_train", "share_models"):
        client.answer(verb, asked[verb])
    with pytest.raises(
        AutoFedAvgError, match=r"^client A, update_beta, round 1, step 3: the loss is nan; lower"
    ):
        client.answer("update_beta", asked["update_beta"])


def test_the_loss_of_a_message_is_the_mean_over_its_steps(problem):
    asked, one = requests(problem, steps_per_message=2), requests(problem)
    client = make_client(problem, "A")
    for verb in ("local_train", "share_models"):
        client.answer(verb, asked[verb])
    both = client.answer("update_beta", asked["update_beta"]).facts["loss"]
    first = client.answer("update_beta", one["update_beta"]).facts["loss"]
    assert both != first
    assert both == pytest.approx(first, rel=0.9)


def test_a_nan_while_differentiating_names_client_round_and_step(problem):
    message = requests(problem)["differentiate"]
    message = Message(message.arrays, {**message.facts, "t": 4, "s": 5})
    with pytest.raises(
        AutoFedAvgError, match=r"^client A, differentiate, round 4, step 5: the loss is nan; lower"
    ):
        make_client(spoilt(problem), "A").answer("differentiate", message)


def test_a_failed_training_is_not_kept(problem):
    w0, _ = problem.initial(Seeds(7))
    client = make_client(spoilt(problem), "A")
    with pytest.raises(AutoFedAvgError, match="the loss is nan"):
        client.answer("local_train", Message(arrays_of(w0), {"t": 1, "T": 5}))
    assert client.client_state.own() is None


def test_a_client_without_a_single_batch_is_refused(problem):
    class Idle(ToySite):
        def train_batches(self, seeds, t, training):
            return iter([])

    idle = Problem(problem.network, problem.loss, {"A": Idle("A", problem.sites["A"].splits)})
    w0, _ = problem.initial(Seeds(7))
    with pytest.raises(AutoFedAvgError, match=r"A.*batch"):
        make_client(idle, "A").answer("local_train", Message(arrays_of(w0), {"t": 1, "T": 5}))


# --- scores ---------------------------------------------------------------------------------------


def test_scores_come_one_per_case_and_metric(problem):
    w0, _ = problem.initial(Seeds(7))
    answer = make_client(problem, "B").answer("evaluate", Message(arrays_of(w0), {"split": "test"}))
    cases = [case for case, _, _ in answer.facts["scores"]]
    assert cases == [f"test-{i}" for i in range(5)]
    assert {metric for _, metric, _ in answer.facts["scores"]} == {METRIC}


def test_scoring_is_done_in_eval_mode_without_a_graph(problem):
    seen = []

    class Watched(ToySite):
        def score(self, network, split):
            seen.append((network.training, torch.is_grad_enabled()))
            return super().score(network, split)

    client = make_client(problem, "A")
    client.data = Watched("A", problem.sites["A"].splits)
    w0, _ = problem.initial(Seeds(7))
    client.answer("evaluate", Message(arrays_of(w0), {"split": "validation"}))
    assert seen == [(False, False)]


def test_a_split_without_cases_is_an_error(problem):
    client = make_client(problem, "A")
    x, y = problem.sites["A"].splits["test"]
    client.data = ToySite("A", {"test": (x[:0], y[:0])})
    w0, _ = problem.initial(Seeds(7))
    with pytest.raises(DataError, match=r"^site A: no test case to score$"):
        client.answer("evaluate", Message(arrays_of(w0), {"split": "test"}))


def test_local_validation_is_the_mean_over_cases_of_the_own_model(problem):
    client, asked = make_client(problem, "A"), requests(problem)
    trained = client.answer("local_train", asked["local_train"])
    found = client.answer("validate_local", Message({}, {"t": 1, "metric": METRIC})).facts["score"]
    message = Message(trained.arrays, {"split": "validation"})
    scores = client.answer("evaluate", message).facts["scores"]
    assert found == pytest.approx(sum(value for _, _, value in scores) / len(scores))


def test_local_validation_needs_a_trained_model_and_takes_the_one_it_is_sent(problem):
    asked = requests(problem)
    old, new = make_client(problem, "A"), make_client(problem, "A")
    facts = {"t": 1, "metric": METRIC}
    assert new.answer("validate_local", Message({}, facts)).facts == {"missing": True}
    trained = old.answer("local_train", asked["local_train"])
    found = new.answer("validate_local", Message(trained.arrays, facts))
    assert same(found, old.answer("validate_local", Message({}, facts)))
    assert same(found, new.answer("validate_local", Message({}, facts)))


def test_a_metric_that_nobody_computes_is_named(problem):
    client, asked = make_client(problem, "A"), requests(problem)
    client.answer("local_train", asked["local_train"])
    with pytest.raises(AutoFedAvgError, match=r"A.*hausdorff"):
        client.answer("validate_local", Message({}, {"t": 1, "metric": "hausdorff"}))


# --- gradients ------------------------------------------------------------------------------------


def test_the_gradient_is_autograd_s_on_the_step_s_own_batch(problem):
    message = requests(problem)["differentiate"]
    client = make_client(problem, "A")
    w0, layout = problem.initial(Seeds(7))
    network = problem.network().eval()
    network.load_state_dict(layout.state_dict(w0))
    problem.loss(network, client.data.weight_batch(Seeds(7), 1, 1, "validation", 4)).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in network.parameters()])
    answer = client.answer("differentiate", message)
    assert set(answer.arrays) == {"gradient"}
    assert answer.arrays["gradient"].shape == (layout.trainable,)
    torch.testing.assert_close(answer.arrays["gradient"], expected)


def test_a_gradient_that_was_given_stays_as_it_was(problem):
    """The network's own gradient is written over by whatever comes next."""
    message = requests(problem)["differentiate"]
    client = make_client(problem, "A")
    given = client.answer("differentiate", message).arrays["gradient"]
    kept = given.clone()
    client.answer("differentiate", Message(message.arrays, {**message.facts, "s": 2}))
    assert torch.equal(given, kept)


@pytest.mark.parametrize("spoil", ["one number", "another type", "no counters"])
def test_a_model_of_another_network_is_not_differentiated(problem, spoil):
    """A single number would otherwise be spread over the whole network."""
    message = requests(problem)["differentiate"]
    arrays = dict(message.arrays)
    if spoil == "one number":
        arrays["values"] = arrays["values"][:1]
    elif spoil == "another type":
        arrays["values"] = arrays["values"].double()
    else:
        del arrays["counters"]
    with pytest.raises(
        AutoFedAvgError,
        match=r"^client A, differentiate, round 1, step 1: was sent \d+ numbers of torch.float\d+, "
        "not its network's; give every site the same study$",
    ):
        make_client(problem, "A").answer("differentiate", Message(arrays, message.facts))


# --- the shelf ------------------------------------------------------------------------------------


def test_without_the_models_a_client_says_so(problem):
    answer = make_client(problem, "A").answer("update_beta", requests(problem)["update_beta"])
    assert answer.facts == {"missing": True}
    assert not answer.arrays


def test_a_bag_without_the_own_model_is_not_kept_by_a_client_that_lost_it(problem):
    client, asked = make_client(problem, "A"), requests(problem)
    client.answer("share_models", asked["share_models"])
    assert client.answer("update_beta", asked["update_beta"]).facts == {"missing": True}


def test_a_bag_without_another_client_s_model_is_not_kept(problem):
    client, asked = make_client(problem, "A"), requests(problem)
    client.answer("local_train", asked["local_train"])
    client.answer("share_models", Message({}, asked["share_models"].facts))
    assert client.answer("update_beta", asked["update_beta"]).facts == {"missing": True}


def test_models_of_another_digest_are_not_used(problem):
    client, asked = make_client(problem, "A"), requests(problem)
    for verb in ("local_train", "share_models"):
        client.answer(verb, asked[verb])
    other = Message(asked["update_beta"].arrays, {**asked["update_beta"].facts, "digest": "0"})
    assert client.answer("update_beta", other).facts == {"missing": True}
    assert "theta" in client.answer("update_beta", asked["update_beta"]).arrays


def test_the_memory_shelf_keeps_one_model_and_one_bank(problem):
    client_state = ClientState()
    w0, _ = problem.initial(Seeds(7))
    assert client_state.own() is None
    assert client_state.bank("x") is None
    kept = client_state.keep_own(w0)
    assert kept is client_state.own()
    before = w0.clone()
    w0.values.zero_()  # what it was given may be a network's own memory
    assert torch.equal(kept.values, before.values)
    assert torch.equal(kept.counters, before.counters)
    bank = Bank.gather({"A": w0})
    client_state.keep_bank(bank, "x")
    assert client_state.bank("x") is bank
    assert client_state.bank("y") is None


# --- the problem ----------------------------------------------------------------------------------


def test_the_initial_model_is_the_seed_s_and_touches_nothing(problem):
    before = torch.get_rng_state()
    first, layout = problem.initial(Seeds(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(problem.initial(Seeds(1))[0].values, first.values)
    assert not torch.equal(problem.initial(Seeds(2))[0].values, first.values)
    assert layout.size == first.values.numel()


def test_the_roster_is_in_order_of_names(problem):
    sites = dict(reversed(problem.sites.items()))
    roster = Problem(problem.network, problem.loss, sites).roster()
    assert [site.name for site in roster] == ["A", "B"]
    assert roster[1].cases == {"train": 12, "validation": 6, "test": 5, "holdout": 4}


def test_the_cosine_schedule_reaches_the_client(problem):
    w0, layout = problem.initial(Seeds(7))

    def moved(t):
        cosine = TRAINING.model_copy(update={"schedule": "cosine", "iterations": 1})
        full = Problem(problem.network, problem.loss, {"A": replace(problem.sites["A"], full=True)})
        message = Message(arrays_of(w0), {"t": t, "T": 10})
        answer = make_client(full, "A", cosine).answer("local_train", message)
        return (answer.arrays["values"] - w0.values)[: layout.trainable].norm().item()

    assert moved(10) < 0.2 * moved(1)
