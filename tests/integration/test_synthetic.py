"""The generated hospitals and the MONAI chain around them."""

import hashlib
import threading
from pathlib import Path

import nibabel
import numpy as np
import pytest

from autofedavg.core.errors import DataError
from autofedavg.core.seeds import Seeds
from autofedavg.core.trainer import Training
from autofedavg.tasks.imaging.cache import cache_home
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.segmentation import SegmentationSite
from autofedavg.tasks.synthetic.phantoms import HOSPITALS, scan
from autofedavg.tasks.synthetic.task import Synthetic
from volumes import prepared, write_case


def digest(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(nibabel.load(path).get_fdata().tobytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def tiny(cache: Path, **change) -> Synthetic:
    return Synthetic(**{"scale": 0.02, "extent": (24.0, 24.0, 30.0), "cache": str(cache), **change})


def test_sizes_keep_the_ratio_of_the_papers_study() -> None:
    table = Synthetic(scale=1.0).split()
    counts = {site: sum(map(len, parts.values())) for site, parts in table.items()}
    assert counts == {"I": 671, "II": 88, "III": 186}
    assert [len(table["II"][split]) for split in ("train", "validation", "test")] == [30, 29, 29]


def test_a_case_is_in_one_split_only_and_holdout_comes_from_training() -> None:
    plain, held = Synthetic().split(), Synthetic(holdout=0.25).split()
    for site in HOSPITALS:
        ids = [case for part in held[site].values() for case in part]
        assert len(ids) == len(set(ids))
        assert held[site]["train"] + held[site]["holdout"] == plain[site]["train"]
        assert held[site]["holdout"]
        assert held[site]["test"] == plain[site]["test"]


def test_same_seed_same_volumes_and_another_seed_others(tmp_path) -> None:
    one = digest(tiny(tmp_path / "a")._generate(None))
    assert one == digest(tiny(tmp_path / "b")._generate(None))
    other = digest(tiny(tmp_path / "a", seed=1)._generate(None))
    assert one.keys() == other.keys()
    assert not set(one.values()) & set(other.values())


def test_hospitals_differ_in_grid_intensity_and_annotation() -> None:
    images = {}
    for name, hospital in HOSPITALS.items():
        image, label = scan(hospital, (50.0, 50.0, 48.0), np.random.RandomState(0))
        assert image.shape == label.shape
        assert label.any()
        images[name] = image
    assert len({image.shape for image in images.values()}) == 3
    means = [float(np.median(image[image > -200])) for image in images.values()]
    assert max(means) - min(means) > 100


def test_two_processes_may_generate_at_once(tmp_path) -> None:
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(tiny(tmp_path)._generate(None)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [made[0].name]


def test_a_generation_that_fails_leaves_nothing(tmp_path, monkeypatch) -> None:
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nibabel, "save", full)
    with pytest.raises(DataError, match=r"cannot be written: No space.*set task\.cache"):
        tiny(tmp_path)._generate(None)
    assert not list(tmp_path.iterdir())


def test_cache_folder_follows_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("AUTOFEDAVG_CACHE", "/somewhere")
    assert cache_home() == Path("/somewhere")
    monkeypatch.delenv("AUTOFEDAVG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_home() == Path("/cache/autofedavg")


def test_crops_are_balanced_between_foreground_and_background(tmp_path) -> None:
    label = np.zeros((40, 40, 16), np.uint8)
    label[:2, :2, :2] = 1
    case = write_case(tmp_path, "corner", label.astype(np.float32), label)
    counts = {}
    for share in (0.0, 0.5, 1.0):
        how = Pipeline(
            spacing=(1.0, 1.0, 1.0),
            window=(0.0, 1.0),
            roi=(8, 8, 8),
            foreground=share,
            flip=0.0,
            channels=(4, 8),
        )
        site = SegmentationSite("north", prepared(how, [case], tmp_path), how)
        random = np.random.RandomState(0)
        _, labels = site._batch("train", np.zeros(200, int), random, augment=True)
        counts[share] = int((labels.flatten(1).sum(1) > 0).sum())
    assert counts[0.0] < 30
    assert 75 < counts[0.5] < 140
    assert counts[1.0] == 200


def test_an_epoch_sees_every_training_case_once(tmp_path) -> None:
    site = tiny(tmp_path).problem().sites["I"]
    n = site.cases()["train"]
    picks = list(site._picks(Seeds(0), 1, Training(epochs=2, batch_size=4)))
    assert sorted(np.concatenate(picks[: len(picks) // 2])) == list(range(n))
    assert sorted(np.concatenate(picks)) == sorted([*range(n), *range(n)])
