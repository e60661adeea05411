"""A row with differential privacy: what is refused, and the forecast of epsilon."""

import json
from dataclasses import replace

import pytest

from autofedavg.core.accountant import Mechanism, composed, epsilon, epsilon_of
from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError, DataError
from autofedavg.core.privacy import Privacy
from autofedavg.core.trainer import Training
from autofedavg.experiment.config import parse_run, parse_study
from autofedavg.experiment.privacy_account import PrivacyAccount
from autofedavg.experiment.private_rows import budget_lines, budgets, refuse_private
from autofedavg.methods import METHODS
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.methods.fedavg import FedAvg
from toy import TRAINING, PointSite, ToySite, mlp, norm_net, point_problem, toy_problem

BOTH = Privacy(theta_clip=1.0, theta_noise=2.0, train_clip=1.0, train_noise=3.0)
TRAIN = Privacy(train_clip=1.0, train_noise=3.0)
THETA = Privacy(theta_clip=1.0, theta_noise=2.0)


def budget_of(privacy, method, training, T, problem):
    return budgets(privacy, method, training, T, Layout.of(problem.network()), problem.sites)


def forecast(privacy, method, T=4, training=TRAINING):
    return budget_of(privacy, method, training, T, toy_problem())


def test_disjoint_splits_are_forecast_in_parallel():
    found = forecast(BOTH, AutoFedAvg(S=5, t0=2, learn_on="validation"))["A"]
    train = epsilon(4 / 8, 3.0, 4 * 3, 1e-3)
    theta = epsilon(4 / 6, 2.0, 2 * 5, 1e-3)
    assert found.epsilon == pytest.approx(max(train, theta))
    assert found.groups["train"] == {"epsilon": train, "patients": 8, "sums": 12}
    assert found.groups["validation"] == {"epsilon": theta, "patients": 6, "sums": 10}


def test_weights_that_are_learned_on_training_patients_count_with_training():
    found = forecast(BOTH, AutoFedAvg(S=5, t0=2, learn_on="train"))["A"]
    spent = {Mechanism(0.5, 3.0): 12, Mechanism(0.5, 2.0): 10}
    assert found.epsilon == pytest.approx(epsilon_of(composed(spent), 1e-3))
    assert list(found.groups) == ["train"]


def test_splits_that_share_patients_are_forecast_together():
    """As the site's ledger counts them: a patient of both splits is in all releases."""

    class Sharing(ToySite):
        def shares_patients(self, split, other):
            return True

    sites = {name: Sharing(name, site.splits) for name, site in toy_problem().sites.items()}
    problem = replace(toy_problem(), sites=sites)
    found = budget_of(BOTH, AutoFedAvg(S=5, t0=2), TRAINING, 4, problem)["A"]
    spent = {Mechanism(4 / 8, 3.0): 12, Mechanism(4 / 6, 2.0): 10}
    assert list(found.groups) == ["train"]
    assert found.epsilon == pytest.approx(epsilon_of(composed(spent), 1e-3))


@pytest.mark.parametrize("how", [{}, {"steps_per_message": 2}, {"learning": "server"}])
def test_every_step_on_beta_counts_however_it_is_asked_for(how):
    found = forecast(THETA, AutoFedAvg(S=5, t0=2, **how))["A"]
    assert found.groups["validation"]["sums"] == 10


def test_epochs_count_as_steps():
    how = Training(epochs=2, batch_size=3)
    assert forecast(TRAIN, FedAvg(), training=how)["B"].groups["train"]["sums"] == 4 * 2 * 4


def test_without_noise_there_is_nothing_to_forecast():
    assert forecast(Privacy(), FedAvg()) == {}
    assert budget_lines({}) == []


def test_a_row_above_its_limit_is_refused_with_every_site():
    said = r"more than epsilon = 1 at delta = 0.001: A \d.*, B .*, C"
    with pytest.raises(ConfigError, match=said):
        forecast(BOTH.model_copy(update={"epsilon": 1.0}), AutoFedAvg(S=5))
    enough = forecast(BOTH.model_copy(update={"epsilon": 100.0}), AutoFedAvg(S=5))
    assert enough == forecast(BOTH, AutoFedAvg(S=5))


def test_delta_must_be_below_one_in_all_patients():
    alone = replace(toy_problem(), sites={"B": toy_problem().sites["B"]})
    for delta in (0.1, 1 / 12):
        large = TRAIN.model_copy(update={"delta": delta})
        said = rf"delta = {delta:g} is no protection for 12 train patients"
        with pytest.raises(ConfigError, match=said):
            budget_of(large, FedAvg(), TRAINING, 1, alone)
    assert budget_of(TRAIN.model_copy(update={"delta": 1 / 13}), FedAvg(), TRAINING, 1, alone)


def test_data_without_patients():
    problem = point_problem((0.0,), {"A": PointSite((1.0,), (1.0,))})
    with pytest.raises(DataError, match="patient by patient"):
        budget_of(TRAIN, FedAvg(), TRAINING, 1, problem)


@pytest.mark.parametrize(
    ("privacy", "method", "said"),
    [
        (THETA, "fedavg", "theta_clip has no effect"),
        (TRAIN, "q-fedavg", "a loss before training"),
        (TRAIN, "fedcostwavg", "weighs by training losses"),
        (TRAIN, "fedpidavg", "weighs by training losses"),
        (TRAIN, "feddisco", "training cases per class"),
        (TRAIN, "ditto", "the local rule 'personal'"),
        (TRAIN, "apfl", "the local rule 'apfl'"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(privacy, method, said):
    with pytest.raises(ConfigError, match=said):
        refuse_private(privacy, METHODS[method](), mlp(), 4)


@pytest.mark.parametrize("learning", ["clients", "server"])
def test_ways_of_learning_without_noise_are_refused(learning):
    for privacy in (THETA, TRAIN):
        with pytest.raises(ConfigError, match="judges calls by losses"):
            refuse_private(privacy, AutoFedAvg(t0="auto", learning=learning), mlp(), 4)
        refuse_private(privacy, AutoFedAvg(t0="auto", learning="blind"), mlp(), 4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"exchange": {"disclose": "means"}}, "halves are compared case by case"),
        ({"privacy": {"theta_clip": 1.0, "theta_noise": 1.0}}, "no noise for its gradients"),
        ({"method": {"name": "auto-fedavg", "learning": "blind"}}, "shows no site's own model"),
    ],
)
def test_a_ceiling_that_shows_too_much_is_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        parse_run({**ROW, "rounds": 3, "ceiling": [2], **change}, "here").check()


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "fednova", "fedadam", "median"])
def test_methods_that_train_on_gradients_alone_can_be_private(name):
    refuse_private(TRAIN, METHODS[name](), mlp(), 4)


def test_batch_norm_is_refused_for_training_and_not_for_beta():
    with pytest.raises(ConfigError, match="running statistics"):
        refuse_private(TRAIN, FedAvg(), norm_net(), 4)
    refuse_private(THETA, AutoFedAvg(), norm_net(), 4)


# --- settings -------------------------------------------------------------------------------------

ROW = {"name": "row", "task": {"name": "synthetic"}, "method": {"name": "auto-fedavg"}}


def test_a_row_has_the_table_only_where_it_is_private():
    plain = parse_run(ROW, "here")
    assert "privacy" not in plain.values()
    assert not [path for path in plain.origin_of() if path.startswith("privacy")]
    private = parse_run({**ROW, "privacy": {"theta_clip": 0.5, "theta_noise": 2.0}}, "here")
    assert private.values()["privacy"]["theta_noise"] == 2.0
    assert private.origin_of()["privacy.delta"] == "ours: decision 65"
    assert parse_run(json.loads(json.dumps(private.values())), "there").privacy == private.privacy


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"theta_clip": 0.5}, "differential privacy needs both"),
        ({"theta_clp": 0.5}, "did you mean theta_clip"),
        ({"delta": 0.5}, "delta has no effect without noise"),
    ],
)
def test_mistakes_in_the_table_are_told(table, said):
    with pytest.raises(ConfigError, match=said):
        parse_study({"run": [{**ROW, "privacy": table}]}, "study.toml")


def test_the_account_of_a_run_continues_from_its_lines():
    lines = [{"t": 1, "spent": {"A": [["train", 0.5, 2.0, 3]]}}, {"t": 2}]
    account = PrivacyAccount(TRAIN, lines)
    assert account.epsilon() == {"A": epsilon(0.5, 2.0, 3, 1e-3)}
    line = account.record({"A": [["train", 0.5, 2.0, 3]], "B": [["train", 1.0, 2.0, 1]]})
    assert line["epsilon"] == {"A": epsilon(0.5, 2.0, 6, 1e-3), "B": epsilon(1.0, 2.0, 1, 1e-3)}
    assert account.record({}) == {}
