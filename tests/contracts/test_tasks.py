"""Every registered task passes this battery, at its smallest size, by being registered."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from autofedavg.core.bank import Layout
from autofedavg.core.errors import ConfigError, DataError
from autofedavg.core.seeds import Seeds
from autofedavg.core.settings import origins
from autofedavg.core.trainer import Training
from autofedavg.tasks import TASKS
from autofedavg.tasks.imaging.task import SegmentationTask
from lookalikes import cifar10_binary
from lookalikes_ct import write_covid, write_pancreas

SMALLEST = {
    "cifar10": {"clients": 3, "holdout": 0.3},
    "covid": {
        "cases": 2,
        "holdout": 0.3,
        "pipeline": {"roi": (16, 16, 8), "network": "unet", "channels": (4, 8), "overlap": 0.25},
    },
    "datalist": {"holdout": 0.3, "pipeline": {"roi": (16, 16), "channels": (4, 8)}},
    "pancreas": {
        "cases": 2,
        "holdout": 0.3,
        "pipeline": {"roi": (16, 16, 16), "network": "unet", "channels": (4, 8), "overlap": 0.25},
    },
    "synthetic": {
        "scale": 0.06,
        "extent": (24.0, 24.0, 30.0),
        "holdout": 0.3,
        "pipeline": {"roi": (16, 16, 8), "channels": (4, 8)},
    },
}


def write_list(home: Path) -> Path:
    """A data list: three sites of six small pictures with two classes."""
    rows = ["site,image,label"]
    random = np.random.default_rng(0)
    for site in ("north", "south", "west"):
        for number in range(6):
            label = np.zeros((20, 24), np.uint8)
            label[4:12, 5:15], label[14:18, 3:9] = 1, 2
            image = (label * 90 + random.integers(0, 60, label.shape)).astype(np.uint8)
            for name, pixels in (("image", image), ("label", label)):
                Image.fromarray(pixels).save(home / f"{site}-{number}-{name}.png")
            rows.append(f"{site},{site}-{number}-image.png,{site}-{number}-label.png")
    (home / "list.csv").write_text("\n".join(rows))
    return home / "list.csv"


# Tasks on data of their own: the setting that names it, and what writes a look-alike.
LOOKALIKES = {
    "cifar10": ("root", cifar10_binary),
    "covid": ("root", partial(write_covid, cases=2)),
    "datalist": ("datalist", write_list),
    "pancreas": ("root", partial(write_pancreas, cases=2)),
}


@pytest.fixture(scope="module")
def smallest(tmp_path_factory):
    """A task's smallest settings by name, with its look-alike written."""

    def settings(name: str) -> dict:
        if name not in LOOKALIKES:
            return SMALLEST[name]
        key, write = LOOKALIKES[name]
        home = tmp_path_factory.mktemp(name)
        written = write(home)
        return {**SMALLEST[name], key: str(written if written.is_file() else home)}

    return settings


@pytest.fixture(scope="module", params=list(TASKS))
def made(request, smallest):
    task = TASKS[request.param](**smallest(request.param))
    told = []
    return task, task.problem(lambda *what: told.append(what)), told


def test_has_the_sites_it_names_with_cases_in_every_split(made) -> None:
    task, problem, _ = made
    assert sorted(problem.sites) == sorted(task.site_names())
    for data in problem.sites.values():
        assert all(data.cases()[split] > 0 for split in ("train", "validation", "test"))
    described = task.describe()
    assert json.loads(json.dumps(described)) == described
    for site, parts in described["cases"].items():
        assert parts == dict(problem.sites[site].cases())


@pytest.mark.parametrize("name", list(TASKS))
def test_validation_is_empty_only_for_tasks_that_say_so(name, smallest) -> None:
    kind = TASKS[name]
    task = kind(**{**smallest(name), "holdout": 0.0})
    lacking = {
        site for site, data in task.problem().sites.items() if not data.cases()["validation"]
    }
    if lacking:
        assert getattr(kind, "may_lack_validation", False)
        assert lacking == set(task.site_names())
    assert task.has("validation") == (not lacking)
    assert not task.has("holdout")


def test_network_is_the_same_architecture_each_time_and_matches_the_forecast(made) -> None:
    task, problem, _ = made
    assert Layout.of(problem.network()).describe() == Layout.of(task.network()).describe()
    assert task.memory() > 0
    assert task.where()


def test_initial_model_depends_on_the_seed_alone(made) -> None:
    _, problem, _ = made
    one, two, other = (problem.initial(Seeds(seed))[0].values for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def same(one, two) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_split_can_be_divided_and_each_part_knows_its_own_cases_alone(made) -> None:
    _, problem, _ = made
    for site, data in problem.sites.items():
        n = data.cases()["validation"]
        parts = [data.only("validation", picks) for picks in ([0], range(1, n)) if picks]
        assert [part.cases()["validation"] for part in parts] == [1, n - 1][: len(parts)]
        assert all(part.cases()["train"] == data.cases()["train"] for part in parts)
        network = problem.network().eval()
        with torch.no_grad():
            whole = data.score(network, "validation")
            found = [score for part in parts for score in part.score(network, "validation")]
        assert found == whole, site
        again = data.only("validation", [0]).weight_batch(Seeds(0), 1, 1, "validation", 2)
        assert same(again, parts[0].weight_batch(Seeds(0), 1, 1, "validation", 2))
        if n > 1:
            other = parts[1].weight_batch(Seeds(0), 1, 1, "validation", 2)
            assert not same(again, other)
        assert data.cases()["validation"] == n


def test_training_batches_depend_on_seed_site_and_round_alone(made) -> None:
    _, problem, _ = made
    training = Training(iterations=2, batch_size=2)
    for data in problem.sites.values():
        first = list(data.train_batches(Seeds(0), 1, training))
        assert len(first) == 2
        again = list(data.train_batches(Seeds(0), 1, training))
        assert all(same(a, b) for a, b in zip(first, again, strict=True))
        assert not same(first[0], next(iter(data.train_batches(Seeds(0), 2, training))))
        assert not same(first[0], next(iter(data.train_batches(Seeds(1), 1, training))))


def test_epochs_take_as_many_steps_as_passes_over_the_data(made) -> None:
    _, problem, _ = made
    training = Training(epochs=2, batch_size=2)
    for data in problem.sites.values():
        steps = 2 * -(-data.cases()["train"] // 2)
        assert len(list(data.train_batches(Seeds(0), 1, training))) == steps


@pytest.mark.parametrize("split", ["validation", "train", "holdout"])
def test_weight_batches_are_repeatable_for_every_split(made, split) -> None:
    _, problem, _ = made
    for data in problem.sites.values():
        batch = data.weight_batch(Seeds(0), 1, 3, split, 2)
        assert same(batch, data.weight_batch(Seeds(0), 1, 3, split, 2))
        assert not same(batch, data.weight_batch(Seeds(0), 1, 4, split, 2))


def test_loss_can_be_trained_and_scores_lie_between_zero_and_one(made) -> None:
    _, problem, _ = made
    network = problem.network()
    for data in problem.sites.values():
        loss = problem.loss(network, data.weight_batch(Seeds(0), 1, 1, "train", 2))
        loss.backward()
        assert torch.isfinite(loss)
        with torch.no_grad():
            scores = data.score(network.eval(), "validation")
        cases = {score.case for score in scores}
        assert len(cases) == data.cases()["validation"]
        values = [score.value for score in scores if score.metric == problem.metric]
        assert len(values) == len(cases)
        assert all(0 <= value <= 1 for value in values)


def test_a_single_case_is_segmented_and_scored_as_all_are(made) -> None:
    task, problem, _ = made
    if not isinstance(task, SegmentationTask):
        assert "dice" not in problem.metric  # what is scored by Dice can be drawn
        return
    network = problem.network().eval()
    collection = task.collection()
    described = task.describe()
    assert task.outline().items() <= described.items()
    assert "content_sha256" not in described or collection.content() == described["content_sha256"]
    for site, data in problem.sites.items():
        with torch.no_grad():
            scores = [s for s in data.score(network, "test") if s.metric == "dice"]
        for score in scores:
            case = collection.case(site, score.case)
            scan, label = collection.load(case)
            found = collection.segment(case, network)
            assert found.dice == score.value
            assert found.classes.shape == label.shape == scan.grid
    with pytest.raises(DataError, match="the files of this case are missing"):
        collection.case(site, "nobody")


def test_its_model_fits_what_applies_it_to_images_or_is_refused_in_words(made) -> None:
    task, _, _ = made
    if not hasattr(task, "pipeline"):
        with pytest.raises(ConfigError, match="not applied to image files; apply models of"):
            task.segmenter()
        return
    task = task.resolved()
    image = torch.zeros(1, getattr(task, "image_channels", 1), *task.pipeline.roi)
    outputs = task.network()(image).shape[1]
    names = task.segmenter().classes
    assert outputs == len(names) + 1
    assert len(set(names)) == len(names)


def test_progress_is_told_to_the_end(made) -> None:
    _, _, told = made
    assert told
    assert told[-1][1] == told[-1][2]


def test_every_setting_has_an_origin(made) -> None:
    task, _, _ = made
    default = type(task)()
    for path, _, origin, text in origins(default):
        if path != "name":
            assert origin.split()[0].rstrip(":") in {"paper", "derived", "ours"}, path
            assert text, path


def test_says_how_inputs_are_made_and_outputs_are_read(made) -> None:
    task, _, _ = made
    told = task.preprocessing()
    assert json.loads(json.dumps(told)) == told
    any_batch, *shape = told["input"]["shape"]
    assert any_batch is None
    with torch.no_grad():
        logits = task.network().eval()(torch.zeros(2, *shape))
    assert list(logits.shape) == [2, *told["output"]["shape"][1:]]
    assert logits.shape[1] == len(told["output"]["classes"])
    assert all(step["step"] and step["rule"] for step in told["steps"])
    steps = told["input"]["multiple_of"]
    if steps is not None:
        assert all(size % step == 0 for size, step in zip(shape[1:], steps, strict=True))


def test_says_what_it_is_where_it_is_and_can_be_prepared(made) -> None:
    task, _, _ = made
    assert task.about()
    assert task.verify(lambda *_: None)
    task.prepare(lambda *_: None)
