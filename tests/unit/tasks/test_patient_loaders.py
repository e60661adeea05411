"""`federate(privacy=...)`: data loaders whose cases belong to patients (decision 65)."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofedavg.core.errors import ConfigError, DataError, RunError
from autofedavg.core.privacy import Privacy
from autofedavg.core.trainer import Training
from autofedavg.methods.auto_fedavg import AutoFedAvg
from autofedavg.studies.federate import federate
from autofedavg.studies.machine import Machine
from autofedavg.tasks.loaders import LoaderSite, PatientLoaderData

BOTH = Privacy(theta_clip=1.0, theta_noise=2.0, train_clip=1.0, train_noise=2.0, delta=1e-3)


def loader(seed, n=12):
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=4, shuffle=True)


def site(k, n=12, **patients):
    """Two cases a patient; other patients for training than for validation."""
    named = {"train": [f"t{i // 2}" for i in range(n)], "validation": [f"v{i}" for i in range(n)]}
    return LoaderSite(loader(k, n), loader(k + 50, n), patients={**named, **patients})


def loss(network, batch):
    return nn.functional.cross_entropy(network(batch[0]), batch[1])


def score(network, batch):
    return (network(batch[0]).argmax(1) == batch[1]).double()


def run(sites=None, privacy=BOTH, **how):
    made = sites or {name: site(k) for k, name in enumerate("ABC")}
    return federate(
        lambda: nn.Linear(4, 2),
        loss,
        made,
        score,
        privacy=privacy,
        **{"rounds": 2, "method": AutoFedAvg(S=2), **how},
        training=Training(iterations=2, batch_size=4, learning_rate=0.05),
        machine=Machine(workers=1, threads=1),
    )


def test_a_run_spends_and_says_so(tmp_path):
    found = run(out=tmp_path / "run")
    last = found.rounds[-1]
    assert set(last["epsilon"]) == {"A", "B", "C"}
    assert all(value > 0 for value in last["epsilon"].values())
    groups = {entry[0] for line in found.rounds for entry in line["spent"]["A"]}
    assert groups == {"train", "validation"}
    assert all(value is None for value in last["loss"].values())
    plain = run(privacy=Privacy())
    assert "epsilon" not in plain.rounds[-1]
    assert plain.rounds[-1]["loss"] != last["loss"]
    with pytest.raises(RunError, match="holds a run with other settings"):
        run(privacy=Privacy(), out=tmp_path / "run")
    assert run(out=tmp_path / "run").rounds == json.loads(json.dumps(found.rounds))


def test_a_patients_cases_are_one_batch():
    data = PatientLoaderData("A", site(0), score)
    assert (data.patients("train"), data.patients("validation"), data.patients("test")) == (
        6,
        12,
        0,
    )
    x, _ = data.patient_batch("train", 2, np.random.RandomState(0), False)
    dataset = site(0).train.dataset
    assert torch.equal(x, torch.stack([dataset[4][0], dataset[5][0]]))
    assert not data.shares_patients("train", "validation")
    same = PatientLoaderData("A", site(0, validation=["t0"] * 12), score)
    assert same.shares_patients("train", "validation")
    assert same.patients("validation") == 1


def test_more_than_the_limit_is_refused():
    with pytest.raises(ConfigError, match=r"more than epsilon = 0\.5"):
        run(privacy=BOTH.model_copy(update={"epsilon": 0.5}))


def test_noise_without_effect_is_refused():
    with pytest.raises(ConfigError, match="theta_clip has no effect"):
        run(method="fedavg")


def test_sites_must_name_their_patients():
    unnamed = {name: LoaderSite(loader(k), loader(k + 50)) for k, name in enumerate("ABC")}
    with pytest.raises(DataError, match="patient by patient"):
        run(unnamed)
    with pytest.raises(DataError, match="patients has 11 entries for 12 train cases"):
        PatientLoaderData("A", site(0, train=["p"] * 11), score)
    with pytest.raises(DataError, match="patients has 1 entries for 0 holdout cases"):
        PatientLoaderData("A", site(0, holdout=["p"]), score)

    class Batches:
        dataset = range(3)

        def __len__(self):
            return 1

        def __iter__(self):
            return iter([(torch.zeros(3, 4), torch.zeros(3).long())])

    plain = LoaderSite(Batches(), Batches(), patients={"train": "abc"})
    with pytest.raises(DataError, match="cannot be had one by one"):
        PatientLoaderData("A", plain, score)
