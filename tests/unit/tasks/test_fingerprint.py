"""What a data list looks like, measured once."""

import numpy as np
import pytest

from autofedavg.core.errors import DataError
from autofedavg.tasks.lists import fingerprint as module
from autofedavg.tasks.lists.fingerprint import fingerprint
from autofedavg.tasks.lists.listing import read_listing
from volumes import oblique, save_itk, save_nifti


@pytest.fixture
def listed(tmp_path):
    """Two sites; the second is brighter and lies on its side."""
    rows = ["site,image,label"]
    for site, order in (("a", (0, 1, 2)), ("b", (2, 0, 1))):
        for number in range(3):
            image = np.random.default_rng(number).normal(100, 10, (9, 8, 7))
            image += 20 * (site == "b")
            image[:4] = 0
            label = np.zeros((9, 8, 7), np.uint16)
            label[5, :2, :3], label[6, 0, 0] = 300, 2
            affine = oblique((0.5, 0.7, 3.0), order)
            save_nifti(tmp_path / f"{site}{number}.nii.gz", image, affine)
            save_itk(tmp_path / f"{site}{number}.mha", label, affine)
            rows.append(f"{site},{site}{number}.nii.gz,{site}{number}.mha")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    return read_listing(tmp_path / "list.csv", tmp_path)


def test_axes_are_those_of_the_body_whatever_the_file_has(listed, tmp_path) -> None:
    seen = fingerprint(listed, str(tmp_path / "cache"))
    assert [case.grid for case in seen.cases] == [(9, 8, 7)] * 3 + [(8, 7, 9)] * 3
    assert seen.sites["a"]["a0"].spacing == pytest.approx((0.5, 0.7, 3.0))
    assert seen.sites["b"]["b0"].spacing == pytest.approx((0.7, 3.0, 0.5))
    assert (seen.axes, seen.channels) == (3, 1)


def test_intensities_and_classes_are_measured(listed, tmp_path) -> None:
    seen = fingerprint(listed, str(tmp_path / "cache"))
    case = seen.sites["a"]["a0"]
    assert case.zeros == pytest.approx(4 / 9)
    assert case.percentiles[0][50] == pytest.approx(100, abs=3)
    assert case.moments[0] == pytest.approx((100, 10), abs=2)
    assert len(case.foreground[0]) == 101
    assert case.voxels == {0: 504 - 7, 2: 1, 300: 6}
    assert seen.values() == [2, 300]
    names, apart = seen.shift()
    assert names == ["a", "b"]
    assert apart[0, 1] == apart[1, 0] == pytest.approx(1.4, abs=0.2)
    assert apart[0, 0] == 0


def test_a_case_is_measured_once_and_again_when_it_changes(listed, tmp_path, monkeypatch) -> None:
    told, measured = [], []
    real = module._measure
    monkeypatch.setattr(module, "_measure", lambda e: measured.append(e.case) or real(e))
    once = fingerprint(listed, str(tmp_path / "cache"), lambda *what: told.append(what))
    assert told[-1] == ("measuring cases", 6, 6)
    assert sorted(measured) == sorted(entry.case for entry in listed.entries)
    assert fingerprint(listed, str(tmp_path / "cache")) == once
    assert len(measured) == 6
    kept = [*(tmp_path / "cache" / "fingerprints").iterdir()]
    kept[0].write_text('{"grid": [1')  # a power cut
    kept[1].write_text("[]")
    assert fingerprint(listed, str(tmp_path / "cache")) == once
    assert len(measured) == 8
    listed.entries[0].label.touch()
    assert fingerprint(listed, str(tmp_path / "cache")) == once
    assert len(measured) == 9


def test_everything_that_cannot_be_used_is_listed(listed, tmp_path) -> None:
    listed.entries[1].label.unlink()
    save_nifti(listed.entries[4].image[0], np.ones((9, 8, 7)))
    with pytest.raises(DataError) as caught:
        fingerprint(listed, str(tmp_path / "cache"))
    said = str(caught.value)
    assert "2 of 6 cases cannot be used" in said
    assert "a, a1: " in said
    assert "b, b1: " in said
    assert str(listed.path) in said


def test_cases_of_different_kinds_are_refused(listed, tmp_path) -> None:
    both = np.random.default_rng(0).random((9, 8, 7, 2))
    save_nifti(listed.entries[5].image[0], both, oblique((0.5, 0.7, 3.0), (2, 0, 1)))
    with pytest.raises(DataError, match=r"3 axes and 1 channels \(a/a0\); 3 axes and 2 channels"):
        fingerprint(listed, str(tmp_path / "cache"))


def test_a_cache_that_cannot_be_written_is_told(listed, tmp_path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DataError, match=r"cannot be written: .*set task\.cache"):
        fingerprint(listed, str(tmp_path / "file"))
