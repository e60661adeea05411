"""Where sites' own models are tested: at all K sites, at their own, or nowhere."""

import logging
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import LoaderSite, Training, federate
from autofedavg.experiment.folder import Ledger
from autofedavg.experiment.selection import local_tests, where_tested
from autofedavg.federation.port import Federation
from autofedavg.methods.fedavg import FedAvg
from autofedavg.report.notes import notes_of
from autofedavg.report.read import read_results
from autofedavg.report.repeats import shared_settings
from autofedavg.studies.machine import Machine


def site(number: int) -> LoaderSite:
    random = torch.Generator().manual_seed(number)
    data = TensorDataset(torch.randn(4, 3, generator=random), torch.arange(4) % 2)
    train = DataLoader(data, batch_size=2, shuffle=True, generator=torch.Generator())
    rest = DataLoader(data, batch_size=4)
    return LoaderSite(train, rest, rest)


def network() -> nn.Module:
    return nn.Linear(3, 2)


def loss(net, batch):
    return nn.functional.cross_entropy(net(batch[0]), batch[1])


def score(net, batch):
    return torch.softmax(net(batch[0]), dim=1)[torch.arange(len(batch[1])), batch[1]]


def trained(K: int, out=None, workers: int = 1, **how):
    sites = {f"site-{k:03d}": site(k) for k in range(K)}
    settings = {"rounds": 2, "out": out, "machine": Machine(workers=workers), "method": "fedavg"}
    training = Training(epochs=1, optimiser="sgd", learning_rate=0.1)
    return federate(network, loss, sites, score, training=training, **settings | how)


@pytest.fixture
def tests(monkeypatch) -> Counter:
    """Scores on test cases that were asked for, by whether the model was the site's own."""
    found: Counter = Counter()
    plain = Federation.evaluate

    def counted(self, w, split, *rest, **how):
        scores = plain(self, w, split, *rest, **how)
        if split == "test":
            found[type(w).__name__] += len({row.site for row in scores.rows})
        return scores

    monkeypatch.setattr(Federation, "evaluate", counted)
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_own_is_the_diagonal_of_full(tests, workers) -> None:
    full = trained(3, test_local="full")
    tests.clear()
    own = trained(3, workers=workers, test_local="own")
    assert tests["dict"] == 3
    assert full.summary.local_gen is not None
    assert own.summary.local_avg == full.summary.local_avg
    assert own.summary.local_gen is None
    assert own.summary.by_site == full.summary.by_site
    assert {k: dict(row) for k, row in own.summary.matrix.items()} == {
        k: {k: row[k]} for k, row in full.summary.matrix.items()
    }


def test_none_tests_the_global_models_alone(tests) -> None:
    found = trained(3, test_local="none")
    assert tests["dict"] == 0
    assert not found.summary.matrix
    assert found.summary.global_test_avg is not None


def test_many_sites_are_not_tested_against_each_other_by_default(tests, tmp_path, caplog) -> None:
    with caplog.at_level(logging.INFO, logger="autofedavg"):
        found = trained(33, out=tmp_path / "run")
    assert tests["dict"] == 33
    assert sum(tests.values()) <= 3 * 33
    assert found.summary.local_avg is not None
    assert "sites' own models: 33 tests (own) instead of 1089" in caplog.text
    assert Ledger(tmp_path / "run").finished
    messages = notes_of(read_results([tmp_path / "run"]))
    wanted = "Sites' own models were tested at their own site alone, so there is no local gen."
    assert wanted in messages


def test_a_run_goes_on_only_with_the_same_setting(tmp_path) -> None:
    trained(2, out=tmp_path / "run", test_local="own")
    with pytest.raises(Exception, match="other settings"):
        trained(2, out=tmp_path / "run", test_local="full")


@pytest.mark.parametrize(
    ("asked", "K", "where", "tests_"),
    [("auto", 32, "full", 1024), ("auto", 33, "own", 33), ("none", 3, "none", 0)],
)
def test_how_many_tests_there_are(asked, K, where, tests_) -> None:
    assert where_tested(asked, K) == where
    assert local_tests(asked, K) == tests_


def test_repeats_of_older_versions_stand_beside_newer_ones() -> None:
    older = {"method": {"name": "fedavg"}, "task": {}}
    for where, same in (("auto", True), ("own", False)):
        first, second = shared_settings([older, {**older, "test_local": where}])
        assert (first == second) is same


class GlobalOnly(FedAvg):
    """Says nothing of the sites' own models."""

    def rounds(self, *how):
        return (replace(state, w_k=None) for state in super().rounds(*how))


def test_own_models_that_were_not_kept_are_not_asked_for(tests) -> None:
    found = trained(2, method=GlobalOnly(), test_local="own", select="last")
    assert [*tests] == ["Model"]
    assert not found.summary.matrix
    assert found.summary.global_test_avg is not None
