"""Methods that need data at the server, on whole runs: command, federate, jobs, refusals."""

import json
import tomllib

import numpy as np
import pytest
import torch
from tests_tiny import TINY
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from autofedavg import Machine, cli, federate, read_study, resume, run_study
from autofedavg.core.errors import ConfigError, DataError
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.engines.remote.server import host
from autofedavg.experiment.folder import Ledger
from autofedavg.tasks.cifar import files
from autofedavg.tasks.cifar.task import Cifar10
from autofedavg.tasks.loaders import LoaderSite
from autofedavg.tasks.synthetic.task import Synthetic
from deployed import InProcessTransport, assert_same_run, environment_of, job_of
from lookalikes import cifar10_binary

NAMES = ["feddf", "fedbe", "fltrust"]
ROWS = """
[[run]]
name = "feddf"
method = { name = "feddf", steps = 2 }

[[run]]
name = "fedbe"
method = { name = "fedbe", steps = 2, samples = 2, average_every = 1 }

[[run]]
name = "fltrust"
method = { name = "fltrust" }
"""


@pytest.fixture
def study(tmp_path):
    """The tiny study, whose rows have data at the server."""
    text = TINY.partition("[[run]]")[0].replace(
        'name = "synthetic"', 'name = "synthetic"\nproxy = 3'
    )
    path = tmp_path / "served.toml"
    path.write_text(text.replace('"tiny"', '"served"').replace('baseline = "fedavg"\n', "") + ROWS)
    return path


def test_the_command_runs_all_three_and_a_job_gives_the_same_bits(study, tmp_path) -> None:
    assert cli._main(["run", str(study), "--out", str(tmp_path), "--set", "rounds=2"]) == 0
    read = read_study(study, ["rounds=2"])
    for name in NAMES:
        folder = tmp_path / "served" / name / "seed-0"
        assert Ledger(folder).finished
        assert environment_of(folder)["data"]["proxy"] == 3
        assert "server" not in environment_of(folder)["data"]["cases"]
        job = job_of(read, name)
        path = host(job, InProcessTransport(job), tmp_path / "jobs")
        assert_same_run(folder, path)
        assert environment_of(path)["data"]["proxy"] == 3


def test_the_number_of_workers_changes_no_bit_and_a_resumed_run_neither(study, tmp_path) -> None:
    read = read_study(study, ["rounds=2"], only=["feddf"])
    one = run_study(read, tmp_path / "one", Machine(workers=1, threads=1)) / "feddf" / "seed-0"
    two = run_study(read, tmp_path / "two", Machine(workers=3, threads=1)) / "feddf" / "seed-0"
    assert_same_run(one, two)
    status = two / "status.json"
    said = json.loads(status.read_text())
    status.write_text(json.dumps({**said, "status": "interrupted"}))
    resume(two)
    assert_same_run(one, two)


@pytest.mark.parametrize("name", NAMES)
def test_a_study_without_data_at_the_server_is_refused_as_it_is_read(name, study) -> None:
    with pytest.raises(ConfigError, match=r"needs data at the server, and task\.proxy is 0; set"):
        read_study(study, ["task.proxy=0"], only=[name])


def test_a_task_that_has_none_says_so(study) -> None:
    study.write_text('[study]\nname = "x"\n[base.task]\nname = "pancreas"\n' + ROWS)
    with pytest.raises(ConfigError, match=r"this task has none; use a task with the setting proxy"):
        read_study(study, only=["feddf"])
    with pytest.raises(ConfigError, match=r"task\.proxy is not a setting of pancreas"):
        read_study(study, ["task.proxy=3"], only=["feddf"])


def test_the_hospital_of_the_server_is_none_of_the_sites(tmp_path) -> None:
    size = {"scale": 0.02, "extent": (24.0, 24.0, 30.0), "cache": str(tmp_path)}
    plain, served = Synthetic(**size), Synthetic(**size, proxy=3)
    assert plain.problem().proxy is None
    problem = served.problem()
    assert dict(problem.proxy.cases()) == {"train": 3}
    assert sorted(problem.sites) == plain.site_names()
    assert served.folder() == plain.folder()
    assert served.describe()["split_sha256"] == plain.describe()["split_sha256"]
    again = served.server_problem()
    training = Training(iterations=1, batch_size=2)
    one, other = (next(p.proxy.train_batches(Seeds(0), 1, training)) for p in (problem, again))
    assert torch.equal(one[0], other[0])
    network = problem.network()
    assert problem.logits(network, one).shape[:2] == (2, 2)


@pytest.mark.parametrize("partition", ["heterogeneous", "homogeneous"])
def test_cifar_images_at_the_server_are_taken_off_before_the_partition(tmp_path, partition) -> None:
    cifar10_binary(tmp_path)
    given = {"root": str(tmp_path), "clients": 3, "partition": partition}
    data = files.read(tmp_path)
    plain, served = Cifar10(**given), Cifar10(**given, proxy=60)
    own = served.server_images(data)
    dealt = np.concatenate([parts["train"] for parts in served.split(data).values()])
    assert len(own) == 60
    assert sorted([*own, *dealt]) == list(range(300))
    assert set(Cifar10(**given, proxy=20).server_images(data)) < set(own)
    zero = Cifar10(**given, proxy=0).split(data)
    for site, parts in plain.split(data).items():
        assert all(np.array_equal(parts[split], zero[site][split]) for split in parts)
    for problem in (served.problem(), served.server_problem()):
        assert problem.proxy.cases()["train"] == 60
        (batch,) = problem.proxy.train_batches(Seeds(0), 1, Training(iterations=1))
        network = problem.network()
        expected = cross_entropy(problem.logits(network.eval(), batch), batch[1])
        torch.testing.assert_close(problem.loss(network.eval(), batch), expected)
    assert served.describe()["proxy"] == 60
    with pytest.raises(DataError, match=r"300 images at the server leave none.*lower task\.proxy"):
        Cifar10(**given, proxy=300).problem()


def test_a_server_without_the_files_refuses_clearly(tmp_path, monkeypatch) -> None:
    cifar10_binary(tmp_path / "here")
    study = tmp_path / "c.toml"
    head = '[study]\nname = "c"\n[base]\nselect = "last"\n[base.task]\nname = "cifar10"\n'
    study.write_text(f'{head}root = "here"\nclients = 3\nproxy = 30\n' + ROWS)
    job = job_of(read_study(study, only=["feddf"]), "feddf")
    job = type(job).read(job.text(), "here")
    monkeypatch.setenv("AUTOFEDAVG_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"the server: .*task\.proxy.* cannot be had.*disk"):
        host(job, InProcessTransport(job), tmp_path / "runs")


def loader(seed: int) -> DataLoader:
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 4, shuffle=True)


@pytest.mark.parametrize("name", NAMES)
def test_federate_takes_a_loader_for_the_server(name, tmp_path) -> None:
    def run(**given):
        return federate(
            lambda: torch.nn.Linear(4, 2),
            lambda network, batch: cross_entropy(network(batch[0]), batch[1]),
            {site: LoaderSite(loader(k), loader(k + 5)) for k, site in enumerate("AB")},
            lambda network, batch: (network(batch[0]).argmax(1) == batch[1]).double(),
            method=name,
            rounds=2,
            **given,
        )

    with pytest.raises(ConfigError, match=r"needs data at the server.*federate\(proxy=\)"):
        run()
    one, other = (run(proxy=loader(9), out=tmp_path / name) for _ in range(2))
    assert torch.equal(one.network.weight, other.network.weight)
    known = tomllib.loads((tmp_path / name / "config.toml").read_text())
    assert known["task"] == {"name": "loaders", "sites": ["A", "B"], "proxy": 12}
