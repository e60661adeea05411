"""Augmentation against a slow reference, and what a client's batches are made of."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from autofedavg.core.errors import DataError
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.tasks.cifar.files import LabelledImages
from autofedavg.tasks.cifar.network_input import augment, cifar_loss, normalise
from autofedavg.tasks.cifar.site import BLOCK, CifarSite


def slow(image, shift, flip):
    """One image: reflect-pad by 4, cut out 32 x 32, flip."""
    padded = functional.pad(image[None].float(), (4, 4, 4, 4), mode="reflect")[0].to(torch.uint8)
    down, right = shift.tolist()
    cut = padded[:, down : down + 32, right : right + 32]
    return cut.flip(2) if flip else cut


@given(st.integers(0, 1000))
def test_augmentation_of_a_batch_is_the_slow_one_image_by_image(seed) -> None:
    draw = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (5, 3, 32, 32), generator=draw, dtype=torch.uint8)
    shift = torch.randint(9, (5, 2), generator=draw)
    flip = torch.rand(5, generator=draw) < 0.5
    wanted = torch.stack([slow(*each) for each in zip(images, shift, flip, strict=True)])
    assert torch.equal(augment(images, shift, flip), wanted)


def test_every_corner_of_the_padded_image_is_reached_exactly() -> None:
    image = torch.arange(3 * 1024).reshape(1, 3, 32, 32) % 251
    image = image.to(torch.uint8)
    for corner in ([0, 0], [0, 8], [8, 0], [8, 8], [4, 4]):
        for flip in (False, True):
            shift, flips = torch.tensor([corner]), torch.tensor([flip])
            assert torch.equal(augment(image, shift, flips)[0], slow(image[0], shift[0], flip))
    assert torch.equal(augment(image, torch.tensor([[4, 4]]), torch.tensor([False])), image)


def test_normalisation_is_fedmas() -> None:
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    mean = torch.tensor([125.3, 123.0, 113.9], dtype=torch.float64).view(3, 1, 1) / 255
    std = torch.tensor([63.0, 62.1, 66.7], dtype=torch.float64).view(3, 1, 1) / 255
    wanted = (images.double() / 255 - mean) / std
    assert torch.allclose(normalise(images).double(), wanted, atol=1e-5)


N = 23


def site(aside=5, train_on_holdout=False) -> CifarSite:
    random = np.random.default_rng(0)
    images = random.integers(256, size=(N + 7, 3, 32, 32)).astype(np.uint8)
    images[:, 0, 0, 0] = np.arange(N + 7)  # says which image it is
    labels = (np.arange(N + 7) % 10).astype(np.uint8)
    names = [f"case-{i}" for i in range(N + 7)]
    return CifarSite(
        "client-03",
        LabelledImages(images[:N], labels[:N]),
        names[:N],
        LabelledImages(images[N:], labels[N:]),
        names[N:],
        aside,
        train_on_holdout,
    )


def which(batch) -> list[int]:
    return batch[0][:, 0, 0, 0].tolist()


def test_an_epoch_sees_every_training_image_once_and_keeps_the_last_short_batch() -> None:
    batches = list(site().train_batches(Seeds(0), 1, Training(epochs=3, batch_size=4)))
    sizes = [len(batch[1]) for batch in batches]
    assert sizes == [4, 4, 4, 4, 2] * 3
    passes = [[i for batch in batches[at : at + 5] for i in which(batch)] for at in (0, 5, 10)]
    assert all(sorted(seen) == list(range(N - 5)) for seen in passes)
    assert passes[0] != passes[1] != passes[2]
    for images, labels, shift, flip in batches:
        assert (images.dtype, images.shape[1:]) == (torch.uint8, (3, 32, 32))
        assert labels.tolist() == [i % 10 for i in images[:, 0, 0, 0].tolist()]
        assert (shift.dtype, shift.shape) == (torch.int64, (len(labels), 2))
        assert (flip.dtype, flip.shape) == (torch.bool, (len(labels),))


def test_batches_as_large_as_the_data_or_larger_are_one_pass() -> None:
    for size in (18, 64):
        (batch,) = site().train_batches(Seeds(0), 1, Training(epochs=1, batch_size=size))
        assert sorted(which(batch)) == list(range(N - 5))


def test_shifts_and_flips_take_all_values_and_change_with_the_round() -> None:
    how = Training(iterations=200, batch_size=20)
    first, second = (list(site().train_batches(Seeds(0), t, how)) for t in (1, 2))
    assert [len(batch[1]) for batch in first] == [20] * 200
    shift = torch.cat([batch[2] for batch in first])
    for axis in (0, 1):
        counts = torch.bincount(shift[:, axis], minlength=9)
        assert len(counts) == 9
        assert counts.min() > 4000 / 9 * 0.8
    assert 0.46 < torch.cat([batch[3] for batch in first]).double().mean() < 0.54
    assert not torch.equal(first[0][2], second[0][2])


@pytest.mark.parametrize(("train_on_holdout", "trained"), [(False, N - 5), (True, N)])
def test_the_last_images_are_set_aside(train_on_holdout, trained) -> None:
    data = site(5, train_on_holdout)
    assert data.cases() == {"train": trained, "holdout": 5, "validation": 5, "test": 7}
    seen = set()
    for s in range(30):
        for split in ("holdout", "validation"):
            images, _, shift, flip = data.weight_batch(Seeds(0), 1, s, split, 4)
            seen |= set(which([images]))
            assert torch.equal(shift, torch.full((4, 2), 4))
            assert not flip.any()
    assert seen == set(range(N - 5, N))


def test_an_empty_split_is_refused_as_a_batch_and_has_no_score() -> None:
    data = site(aside=0)
    assert data.cases()["validation"] == 0
    assert data.score(nn.Linear(1, 1), "validation") == []
    with pytest.raises(DataError, match=r"there is no holdout image; set task\.holdout, or"):
        data.weight_batch(Seeds(0), 1, 1, "holdout", 4)


class Knowing(nn.Module):
    """Says the class that the image number asks for, and is wrong from image 26 on."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        number = (x[:, 0, 0, 0] * 63.0 + 125.3).round().long()
        said = torch.where(number < 26, number % 10, (number + 1) % 10)
        return functional.one_hot(said, 10).float() * self.scale


def test_scores_are_one_or_zero_per_image_with_its_name() -> None:
    scores = site().score(Knowing(), "test")
    assert [score.case for score in scores] == [f"case-{i}" for i in range(N, N + 7)]
    assert {score.metric for score in scores} == {"accuracy"}
    assert [score.value for score in scores] == [1.0] * 3 + [0.0] * 4
    held = site().score(Knowing(), "holdout")
    assert [score.case for score in held] == [f"case-{i}" for i in range(N - 5, N)]


def test_more_images_than_a_scoring_batch_are_all_scored(monkeypatch) -> None:
    whole = site().score(Knowing(), "train")
    monkeypatch.setattr("autofedavg.tasks.cifar.site.SCORED", 4)
    assert site().score(Knowing(), "train") == whole
    assert len(whole) == N - 5


def test_the_loss_is_cross_entropy_of_the_augmented_images() -> None:
    batch = next(iter(site().train_batches(Seeds(0), 1, Training(epochs=1, batch_size=6))))
    network = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    images, labels, shift, flip = batch
    cut = torch.stack([slow(*each) for each in zip(images, shift, flip, strict=True)])
    wanted = functional.cross_entropy(network(normalise(cut)), labels)
    assert torch.equal(cifar_loss(network, batch), wanted)


def test_settling_moves_the_images_and_changes_no_batch() -> None:
    moved, still = site(), site()
    moved.settle(torch.device("meta"))
    batch = next(iter(moved.train_batches(Seeds(0), 1, Training(epochs=1, batch_size=6))))
    assert {part.device.type for part in batch} == {"meta"}
    assert {p.device.type for p in moved.weight_batch(Seeds(0), 1, 1, "train", 2)} == {"meta"}
    still.settle(torch.device("cpu"))
    how = Training(epochs=1, batch_size=6)
    for one, two in zip(
        still.train_batches(Seeds(0), 1, how), site().train_batches(Seeds(0), 1, how), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("train_on_holdout", [False, True])
def test_class_counts_are_those_of_the_training_images(train_on_holdout) -> None:
    data = site(5, train_on_holdout)
    trained = [i % 10 for i in range(data.cases()["train"])]
    assert data.class_counts() == [trained.count(c) for c in range(10)]


@pytest.mark.parametrize("how", [{"epochs": 3, "iterations": 0}, {"iterations": 7}], ids=str)
def test_steps_told_by_numbers_are_the_batches(how) -> None:
    training = Training(batch_size=4, **how)
    local = site()
    steps = local.train_steps(Seeds(3), 2, training)
    batches = list(local.train_batches(Seeds(3), 2, training))
    assert len(steps.picks) == len(steps.moves) == len(batches)
    for pick, move, batch in zip(steps.picks, steps.moves, batches, strict=True):
        there = pick >= 0
        assert np.all(np.sort(there)[::-1] == there)  # the missing ones are the last
        same_pictures(local, pick[there], move[there], batch)


@pytest.mark.parametrize("split", ["train", "holdout"])
def test_a_step_on_the_weights_told_by_numbers_is_the_batch(split) -> None:
    local = site()
    steps = local.weight_step(Seeds(3), 2, 5, split, 6)
    batch = local.weight_batch(Seeds(3), 2, 5, split, 6)
    same_pictures(local, steps.picks[0], steps.moves[0], batch)


def test_steps_on_the_weights_have_images_of_their_own_whenever_asked() -> None:
    """Also beyond the steps that are drawn at once, and after a look at others."""
    asked = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1]
    local = site()

    def picks(data, s: int, t: int = 1) -> tuple[int, ...]:
        return tuple(data.weight_step(Seeds(3), t, s, "train", 12).picks[0].tolist())

    found = [picks(local, s) for s in asked]
    assert len(set(found)) == len(asked)
    assert [picks(local, s) for s in reversed(asked)] == found[::-1]
    assert picks(site(), BLOCK) == picks(local, BLOCK)
    assert picks(local, BLOCK, t=2) != picks(local, BLOCK)


def same_pictures(local, picks, moves, batch) -> None:
    images, labels = local.pictures()
    assert torch.equal(labels[picks.astype(np.int64)], batch[1])
    flip, place = torch.from_numpy(moves % 2 == 1), moves.astype(np.int64) // 2
    shift = torch.from_numpy(np.stack([place // 9, place % 9], axis=1))
    shown = augment(images[picks.astype(np.int64)], shift, flip)
    assert torch.equal(shown, augment(batch[0], batch[2], batch[3]))


def test_an_image_is_a_patient_and_splits_may_share_them() -> None:
    data, both = site(), site(train_on_holdout=True)
    assert [data.patients(split) for split in ("train", "holdout", "test")] == [N - 5, 5, 7]
    for patient in (0, 4):
        still = data.patient_batch("holdout", patient, np.random.RandomState(1), augment=False)
        image, label, shift, flip = still
        assert image.shape == (1, 3, 32, 32)
        assert label.shape == (1,)
        assert image[0, 0, 0, 0] == N - 5 + patient
        assert (shift.tolist(), flip.tolist()) == ([[4, 4]], [False])
    moved = [
        data.patient_batch("train", 3, np.random.RandomState(n), augment=True)[2:]
        for n in range(30)
    ]
    assert len({str(shift.tolist()) for shift, _ in moved}) > 15
    assert {bool(flip) for _, flip in moved} == {False, True}
    cifar_loss(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), still)
    assert data.shares_patients("holdout", "validation")
    assert data.shares_patients("train", "train")
    assert not data.shares_patients("train", "holdout")
    assert not data.shares_patients("train", "test")
    assert both.shares_patients("train", "holdout")
