"""A site whose training labels are mirrored: labels of the mirrored volume, images as they are."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from autofedavg.core.errors import ConfigError
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.prepared import Store
from autofedavg.tasks.imaging.segmentation import SegmentationSite
from autofedavg.tasks.synthetic.task import Synthetic
from volumes import write_case

SIZE = (12, 9, 7)
WHOLE = Pipeline(
    spacing=(1.0, 1.0, 1.0), window=(0.0, 1.0), roi=(12, 12, 8), channels=(4, 8), flip=0, shift=0
)
PART = WHOLE.model_copy(update={"roi": (4, 4, 4), "foreground": 1.0})
SPLITS = ("train", "validation", "test")


def site_of(tmp_path, how, mirrored, affine=None) -> SegmentationSite:
    label = np.zeros(SIZE, np.uint8)
    label[1:3, 2:5, 1:4] = 1
    cases = []
    for n, split in enumerate(SPLITS):
        image = np.random.default_rng(n).random(SIZE, dtype=np.float32)
        cases.append(write_case(tmp_path, f"c-{split}", image, label, affine, split))
    prepared = Store(how, cache=str(tmp_path)).sites({"a": cases})
    splits = {True: ("train",), False: ()}.get(mirrored, mirrored)
    return SegmentationSite("a", prepared["a"], how, mirrored=splits)


def first_batch(site, split="train"):
    if split == "train":
        return next(site.train_batches(Seeds(1), 1, Training(iterations=1, batch_size=2)))
    return site.weight_batch(Seeds(1), 1, 1, split, 2)


def test_the_label_is_that_of_the_mirrored_volume(tmp_path) -> None:
    (image, label), (same, mirrored) = (
        first_batch(site_of(tmp_path, WHOLE, bad)) for bad in (False, True)
    )
    assert torch.equal(same, image)
    assert torch.equal(mirrored, label.flip(2))
    assert not torch.equal(mirrored, label)


def test_crops_are_centred_on_what_it_takes_for_the_lesion(tmp_path) -> None:
    """And image and label are cut at the same place."""
    for seed in range(5):
        site = site_of(tmp_path, PART, mirrored=True)
        batches = site.train_batches(Seeds(seed), 1, Training(iterations=3, batch_size=2))
        for _, label in batches:
            assert all(one.any() for one in label)
    case = site._cases["train"][0]
    whole, _ = case.window(tuple(slice(0, n) for n in SIZE))
    image, label = site._crop(case, np.random.RandomState(3), False, True)
    places = [
        start
        for start in np.ndindex(*(n - 3 for n in SIZE))
        if torch.equal(whole[(slice(None), *(slice(s, s + 4) for s in start))], image)
    ]
    ((x, y, z),) = places
    lesion = torch.zeros(SIZE, dtype=torch.uint8)
    lesion[1:3, 2:5, 1:4] = 1
    assert torch.equal(label[0], lesion.flip(0)[x : x + 4, y : y + 4, z : z + 4])


@pytest.mark.parametrize("split", ["validation", "test"])
def test_other_splits_are_right(tmp_path, split) -> None:
    right, bad = (site_of(tmp_path, WHOLE, mirrored) for mirrored in (False, True))
    for one, other in zip(first_batch(right, split), first_batch(bad, split), strict=True):
        assert torch.equal(one, other)


def test_learning_on_training_cases_sees_the_mirrored_labels(tmp_path) -> None:
    right, bad = (site_of(tmp_path, WHOLE, mirrored) for mirrored in (False, True))
    _, label = right.weight_batch(Seeds(1), 1, 1, "train", 2)
    _, mirrored = bad.weight_batch(Seeds(1), 1, 1, "train", 2)
    assert torch.equal(mirrored, label.flip(2))


def test_labels_of_validation_cases_are_mirrored_where_it_is_asked_for(tmp_path) -> None:
    right = site_of(tmp_path, WHOLE, mirrored=False)
    bad = site_of(tmp_path, WHOLE, mirrored=("train", "validation"))
    (image, label), (same, mirrored) = (first_batch(site, "validation") for site in (right, bad))
    assert torch.equal(same, image)
    assert torch.equal(mirrored, label.flip(2))
    for one, other in zip(first_batch(right, "test"), first_batch(bad, "test"), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
def test_scores_are_against_the_labels_that_the_site_has(tmp_path, monkeypatch, axes) -> None:
    """On the file's own grid, of which any axis may be the first of the prepared case."""
    affine = np.eye(4)
    affine[:3, :3] = np.eye(3)[:, list(axes)] * 1.5  # file axis k runs along RAS axis axes[k]
    site = site_of(tmp_path, WHOLE, ("validation",), affine)
    label = torch.zeros(SIZE, dtype=torch.uint8)
    label[1:3, 2:5, 1:4] = 1
    mirrored = label.flip(axes.index(0))
    for found, whole in ((label, "test"), (mirrored, "validation")):
        monkeypatch.setattr(site, "predict", lambda network, case, found=found: found)
        scores = {split: site.score(None, split)[0].value for split in ("validation", "test")}
        assert [split for split, value in scores.items() if value == 1] == [whole]


def test_a_site_that_does_not_exist_is_refused() -> None:
    task = Synthetic(mirrored=("IV",))
    with pytest.raises(ConfigError, match=r"task.mirrored: there is no site IV; use I, II, III"):
        task.mirrors({"I": 0, "II": 0, "III": 0})
    assert task.mirrors({"IV": 0}) == {"IV": ("train",)}
    assert task.outline()["data"].endswith("; training labels of IV mirrored")
    both = Synthetic(mirrored=("I",), mirrored_in=("train", "validation"))
    assert both.outline()["data"].endswith("; training and validation labels of I mirrored")
    none = Synthetic(mirrored=("I",), mirrored_in=())
    assert none.outline()["data"] == Synthetic().outline()["data"]


def test_test_labels_cannot_be_mirrored() -> None:
    with pytest.raises(ValidationError, match="mirrored_in"):
        Synthetic(mirrored_in=("test",))
