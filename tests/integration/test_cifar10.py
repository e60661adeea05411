"""The CIFAR-10 task: its splits, a study through the command line, and the real bytes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from autofedavg import cli
from autofedavg.core.errors import DataError
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import LocalTrainer, Training
from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.report.read import read_results
from autofedavg.studies.study_file import read_study, study_path
from autofedavg.tasks.cifar import files as cifar10_files
from autofedavg.tasks.cifar.task import Cifar10
from fedma_partition import FEDMA_16
from folders import model_file
from lookalikes import cifar10_binary, cifar10_python

SHARED = Path(__file__).parents[3] / "shared" / "data" / "cifar10"

STUDY = """
[study]
name = "pictures"

[base]
rounds = 2

[base.task]
name = "cifar10"
root = "{root}"
clients = 3
holdout = 0.2

[base.training]
iterations = 3
batch_size = 8
optimiser = "sgd"
learning_rate = 0.01

[[run]]
name = "fedavg"
label = "FedAvg"
method = {{ name = "fedavg" }}

[[run]]
name = "n-dirichlet"
label = "Auto-FedAvg-N-Dirichlet"
method = {{ name = "auto-fedavg", S = 2, learn_on = "holdout" }}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("cifar10")
    cifar10_binary(home)
    return home


@pytest.fixture(scope="module")
def folder(root, tmp_path_factory) -> Path:
    """The study on the look-alike, run once through the command."""
    home = tmp_path_factory.mktemp("study")
    (home / "pictures.toml").write_text(STUDY.format(root=root))
    assert cli._main(["run", str(home / "pictures.toml"), "--out", str(home)]) == 0
    return home / "pictures"


def test_a_study_runs_and_scores_every_test_image_once(folder, capsys) -> None:
    for row in ("fedavg", "n-dirichlet"):
        run = RunFolder(folder / row / "seed-0")
        assert run.status() == "finished"
        rows = [row for row in run.scores() if row.model == "global"]
        assert sorted(row.case for row in rows) == [f"test-{index:05d}" for index in range(40)]
        assert {row.metric for row in rows} == {"accuracy"}
        assert {row.value for row in rows} <= {0.0, 1.0}
        assert {row.site for row in rows} == {"client-00", "client-01", "client-02"}
    learned = RunFolder(folder / "n-dirichlet" / "seed-0").rounds()[-1]
    assert sum(learned["alpha"]) == pytest.approx(1)
    assert len(set(learned["alpha"])) == 3
    assert cli._main(["report", str(folder)]) == 0
    assert "Auto-FedAvg-N-Dirichlet" in capsys.readouterr().out


def test_the_run_folder_says_that_these_are_not_the_official_bytes(folder) -> None:
    about = json.loads((folder / "fedavg/seed-0/environment.json").read_text())
    assert about["metric"] == "accuracy"
    data = about["data"]
    assert data["data"] == "CIFAR-10 layout, not the official bytes"
    assert data["layout"] == "binary"
    assert sum(parts["train"] + parts["holdout"] for parts in data["cases"].values()) == 300
    assert [parts["test"] for parts in data["cases"].values()] == [14, 13, 13]


def test_an_image_in_two_splits_counts_once_in_a_tables_heading(root, folder) -> None:
    sites = read_results([folder]).sites
    assert sum(sites.values()) == 340
    assert list(sites) == ["client-00", "client-01", "client-02"]
    kept = Cifar10(root=str(root), clients=3, holdout_images=5, train_on_holdout=True)
    assert kept.describe()["sizes"] == sites


@pytest.mark.slow
def test_the_python_layout_gives_the_same_bits(folder, tmp_path) -> None:
    cifar10_python(tmp_path)
    (tmp_path / "pictures.toml").write_text(STUDY.format(root=tmp_path))
    study = ["run", str(tmp_path / "pictures.toml"), "--out", str(tmp_path)]
    assert cli._main([*study, "--only", "n-dirichlet"]) == 0
    one, two = (home / "n-dirichlet/seed-0" for home in (folder, tmp_path / "pictures"))
    for name in ("last-2", "best-global"):
        files = [model_file(run, name, "safetensors") for run in (one, two)]
        assert files[0].read_bytes() == files[1].read_bytes()
    hashes = [json.loads((run / "environment.json").read_text())["data"] for run in (one, two)]
    assert hashes[0]["split_sha256"] == hashes[1]["split_sha256"]
    assert hashes[1]["layout"] == "python"


def test_missing_data_has_its_exit_code_and_says_what_to_do(tmp_path, capsys) -> None:
    (tmp_path / "pictures.toml").write_text(STUDY.format(root=tmp_path / "nowhere"))
    assert cli._main(["run", str(tmp_path / "pictures.toml"), "--out", str(tmp_path)]) == 3
    err = capsys.readouterr().err
    assert "no CIFAR-10 files found" in err
    assert "cifar-10-binary.tar.gz" in err


def test_check_needs_no_data(tmp_path, capsys) -> None:
    (tmp_path / "pictures.toml").write_text(STUDY.format(root=tmp_path / "nowhere"))
    assert cli._main(["check", str(tmp_path / "pictures.toml")]) == 0
    out = capsys.readouterr().out
    assert "missing: unpack cifar-10-binary.tar.gz from https://" in out
    assert f" in {tmp_path / 'nowhere'}" in out
    assert "3,491,530 numbers, 9 layers" in out


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"holdout": 0.1, "holdout_images": 5}, "either holdout or holdout_images"),
        ({"train_on_holdout": True}, "train_on_holdout needs holdout or holdout_images above 0"),
        ({"holdout": 1.0}, "less than 1"),
        ({"concentration": 0.0}, "greater than 0"),
        ({"clients": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong, why) -> None:
    with pytest.raises(ValidationError, match=why):
        Cifar10(**wrong)


def test_learning_on_a_validation_split_that_is_empty_is_refused(tmp_path, capsys) -> None:
    text = STUDY.format(root=tmp_path).replace("holdout = 0.2", "")
    for split in ("validation", "holdout"):
        changed = text.replace('learn_on = "holdout"', f'learn_on = "{split}"')
        (tmp_path / "pictures.toml").write_text(changed)
        assert cli._main(["check", str(tmp_path / "pictures.toml")]) == 2
        assert (
            f"the method learns on {split} cases, but task.holdout sets no"
            in capsys.readouterr().err
        )
    for change in ("", "holdout_images = 5"):
        changed = text.replace("clients = 3", f"clients = 3\n{change}")
        learn_on = "holdout" if change else "train"
        changed = changed.replace('learn_on = "holdout"', f'learn_on = "{learn_on}"')
        (tmp_path / "pictures.toml").write_text(changed)
        assert cli._main(["check", str(tmp_path / "pictures.toml")]) == 0
        capsys.readouterr()


def split_of(root, **settings) -> dict:
    task = Cifar10(root=str(root), clients=3, **settings)
    return {
        site: {part: indices.tolist() for part, indices in parts.items()}
        for site, parts in task.split(cifar10_files.read(root)).items()
    }


@pytest.mark.parametrize("partition", ["heterogeneous", "homogeneous"])
def test_the_holdout_is_the_end_of_each_clients_list(root, partition) -> None:
    plain = split_of(root, partition=partition)
    share = split_of(root, partition=partition, holdout=0.2)
    count = split_of(root, partition=partition, holdout_images=7)
    kept = split_of(root, partition=partition, holdout_images=7, train_on_holdout=True)
    assert sorted(i for parts in plain.values() for i in parts["train"]) == list(range(300))
    assert [i for parts in plain.values() for i in parts["test"]] == list(range(40))
    for site, parts in plain.items():
        assert parts["holdout"] == parts["validation"] == []
        assert share[site]["train"] + share[site]["holdout"] == parts["train"]
        assert len(share[site]["holdout"]) == round(0.2 * len(parts["train"]))
        assert count[site]["train"] + count[site]["holdout"] == parts["train"]
        assert len(count[site]["holdout"]) == 7
        assert kept[site]["train"] == parts["train"]
        assert kept[site]["holdout"] == parts["train"][-7:]
        for variant in (share, count, kept):
            assert variant[site]["validation"] == variant[site]["holdout"]
            assert variant[site]["test"] == parts["test"]


def test_problem_holds_the_images_that_the_split_names(root) -> None:
    task = Cifar10(root=str(root), clients=3, holdout_images=7, train_on_holdout=True)
    data = cifar10_files.read(root)
    for site, parts in task.split(data).items():
        local = task.problem().sites[site]
        for split, indices in parts.items():
            source = data.test if split == "test" else data.train
            images, labels = local._of(split)
            assert np.array_equal(images, source.images[indices])
            assert np.array_equal(labels, source.labels[indices])


def test_a_holdout_that_leaves_nothing_to_train_on_is_refused_or_capped(root) -> None:
    with pytest.raises(DataError, match=r"take 640 of its \d+ images and leave none to train on"):
        split_of(root, holdout_images=640)
    capped = split_of(root, holdout_images=640, train_on_holdout=True)
    assert all(parts["holdout"] == parts["train"] for parts in capped.values())


def test_more_clients_than_images_are_refused(root, tmp_path) -> None:
    with pytest.raises(DataError, match="300 images could not be divided among 31 clients"):
        Cifar10(root=str(root), clients=31).problem()
    cifar10_binary(tmp_path, train=300, test=2)
    with pytest.raises(DataError, match="2 test images are too few for 3 clients"):
        Cifar10(root=str(tmp_path), clients=3).problem()


def test_the_hash_tells_splits_and_images_apart(root, tmp_path) -> None:
    cifar10_binary(tmp_path, seed=1)
    settings = [
        {},
        {"holdout": 0.1},
        {"holdout_images": 5},
        {"holdout_images": 5, "train_on_holdout": True},
        {"partition": "homogeneous"},
        {"partition_seed": 1},
        {"concentration": 5.0},
        {"root": str(tmp_path)},
    ]
    tasks = [Cifar10(**{"root": str(root), "clients": 3, **change}) for change in settings]
    hashes = [task.describe()["split_sha256"] for task in tasks]
    assert len(set(hashes)) == len(settings)
    assert tasks[0].describe()["split_sha256"] == hashes[0]


def test_names_sort_as_numbers_do() -> None:
    for clients in (3, 16, 120):
        names = Cifar10(clients=clients).site_names()
        assert names == sorted(names)
        assert len(set(names)) == clients
    assert Cifar10().site_names()[:2] == ["client-00", "client-01"]


def test_where_the_files_are_looked_for(monkeypatch, root) -> None:
    monkeypatch.delenv("AUTOFEDAVG_DATA", raising=False)
    assert Cifar10().folder() == Path("data/cifar10")
    monkeypatch.setenv("AUTOFEDAVG_DATA", "/there")
    assert Cifar10().folder() == Path("/there/cifar10")
    assert Cifar10(root="/here").folder() == Path("/here")
    assert Cifar10.paths == ("root",)
    assert Cifar10(root=str(root)).where() == f"in {root}/cifar-10-batches-bin (binary layout)"


def test_about_and_verify_say_what_is_wanted_and_what_is_there(root, tmp_path) -> None:
    about = Cifar10(root=str(tmp_path)).about()
    assert "https://www.cs.toronto.edu/~kriz/cifar.html" in about
    assert f"unpack it in {tmp_path}" in about
    assert "No licence is stated there" in about
    lines = Cifar10(root=str(root)).verify()
    assert any(line.startswith("300 training images: airplane ") for line in lines)
    assert "test_batch.bin: not the official bytes" in lines
    home = cifar10_binary(tmp_path)
    for batch in ("data_batch_2", "test_batch"):
        (home / f"{batch}.bin").unlink()
    task = Cifar10(root=str(tmp_path))
    assert task.where().endswith("without data_batch_2, test_batch")
    with pytest.raises(DataError) as told:
        task.verify()
    assert "data_batch_2.bin: it is missing" in str(told.value)
    assert "test_batch.bin: it is missing" in str(told.value)


def test_the_committed_study_has_the_papers_settings_and_one_split() -> None:
    study = read_study("table1-cifar10")
    assert {run.name: run.T for run in study.runs if run.T != 99} == {
        "ensemble": 1,
        "ensemble-150": 1,
    }
    assert {"fedma", "fedavg", "fedavg-even", "fedprox", "local-only"} < {
        r.name for r in study.runs
    }
    assert {run.general.select for run in study.runs} == {"last"}
    without = {run.name for run in study.runs if run.training.weight_decay == 0}
    assert without == {"ensemble", "ensemble-150", "fedma"}  # as in FedMA's code
    epochs = {run.name: run.training.epochs for run in study.runs}
    assert epochs.pop("ensemble-150") == 150
    assert set(epochs.values()) == {20}
    assert {run.task for run in study.runs} == {Cifar10()}
    assert len(study.runs[0].task.site_names()) == 16
    learned = [run.method for run in study.runs if run.method.learns_on]
    assert {(method.weights, method.constraint) for method in learned} == {
        (weights, constraint)
        for weights in ("network", "layer")
        for constraint in ("softmax", "dirichlet")
    }
    assert {(method.t0, method.learn_on) for method in learned} == {(10, "train")}
    assert {run.training.precision for run in study.runs} == {"bf16"}


def test_the_studies_with_images_set_aside_have_the_same_training() -> None:
    whole, aside = read_study("table1-cifar10"), read_study("table1-holdout")
    assert {run.task for run in aside.runs} == {Cifar10(holdout=0.1)}
    assert {run.training for run in aside.runs} < {run.training for run in whole.runs}
    assert {run.T for run in aside.runs} == {99}
    assert {run.method.learns_on for run in aside.runs} == {None, "holdout"}
    overrides = ["task.holdout=0", "task.holdout_images=640", "task.train_on_holdout=true"]
    text = study_path("table1-cifar10").read_text()
    assert all(f"--set {override}" in text for override in overrides)
    assert len(read_study("table1-holdout", overrides).runs) == len(aside.runs)


@pytest.fixture(scope="session")
def official(tmp_path_factory) -> Path:
    """The real files in the official binary layout."""
    script = SHARED / "unpack.py"
    if not script.exists():
        pytest.skip(f"CIFAR-10 is not in {SHARED}")
    home = tmp_path_factory.mktemp("official")
    subprocess.run([sys.executable, str(script), str(home)], check=True, capture_output=True)
    return home


@pytest.mark.data
def test_the_real_files_are_official_and_dealt_out_as_in_fedma(official) -> None:
    task = Cifar10(root=str(official))
    lines = task.verify()
    assert (
        "50000 training images: " + ", ".join(f"{name} 5000" for name in cifar10_files.CLASSES)
        in lines
    )
    assert sum(line.endswith(": the official bytes") for line in lines) == 6
    assert task.describe()["data"] == "CIFAR-10, official bytes"
    data = cifar10_files.read(official)
    split = task.split(data)
    counts = [
        np.bincount(data.train.labels[parts["train"]], minlength=10).tolist()
        for parts in split.values()
    ]
    assert counts == FEDMA_16
    assert {len(parts["test"]) for parts in split.values()} == {625}


@pytest.mark.data
def test_twenty_steps_on_a_real_client_lower_the_loss(official) -> None:
    problem = Cifar10(root=str(official), holdout=0.1).problem()
    training = Training(
        iterations=20, batch_size=32, optimiser="sgd", learning_rate=0.01, weight_decay=1e-4
    )
    w0, _ = problem.initial(Seeds(0))
    device = torch.device("cpu")
    bench = LocalTrainer(problem.network(), problem.loss, training, device)
    data = problem.sites["client-00"]
    held = data.weight_batch(Seeds(0), 1, 1, "holdout", 64)
    _, before = bench.differentiate(w0, held, "eval")
    bench.load(w0)
    losses = bench.train(data.train_batches(Seeds(0), 1, training), 0.01)
    _, after = bench.differentiate(bench.model(), held, "eval")
    assert len(losses) == 20
    assert float(after) < float(before) - 0.1


@pytest.mark.slow
def test_the_tables_other_rows_run_without_validation_cases(root, tmp_path, capsys) -> None:
    """Ensemble and FedMA on VGG-9, tested after the last round; nothing is set aside."""
    study = STUDY.format(root=root).replace("rounds = 2", 'rounds = 9\nselect = "last"')
    study = study.replace("holdout = 0.2", "").partition("[[run]]")[0]
    study = study.replace("iterations = 3", "iterations = 1")
    for name in ("ensemble", "fedma"):
        rounds = "rounds = 1" if name == "ensemble" else ""
        study += f'[[run]]\nname = "{name}"\n{rounds}\nmethod = {{ name = "{name}" }}\n'
    (tmp_path / "rows.toml").write_text(study)
    assert cli._main(["run", str(tmp_path / "rows.toml"), "--out", str(tmp_path)]) == 0
    for name in ("ensemble", "fedma"):
        run = RunFolder(tmp_path / "pictures" / name / "seed-0")
        rows = [row for row in run.scores() if row.model == "global"]
        assert len(rows) == 40
    widths = run.load("final-global").facts["form"]["widths"]
    assert len(widths) == 9
    assert all(
        grown >= was
        for grown, was in zip(widths, (32, 64, 128, 128, 256, 256, 512, 512, 10), strict=True)
    )
