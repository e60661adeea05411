"""Predictions are named after their images; no two alike, whatever is asked in which order."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofedavg.core.errors import ConfigError
from autofedavg.inference.predict import case_names

PARTS = st.sampled_from(["a", "b", "A", "a_b", "CT"])
FILES = st.sampled_from(["CT", "ct.nii.gz", "b_CT.nii", "x.nrrd", "a_b_CT.png", "t.1.nii.gz"])
PATHS = st.builds(
    lambda folders, name: Path("/", *folders, name), st.lists(PARTS, max_size=3), FILES
)


def names(*paths: str) -> list[str]:
    return case_names([(Path(path),) for path in paths])


def test_names_are_those_of_files_without_their_kind() -> None:
    found = names("/d/a.nii.gz", "/d/b.NII", "/d/c.tar.nrrd", "/d/series", "/d/e.png")
    assert found == ["a", "b", "c.tar", "series", "e"]


def test_folders_are_put_in_front_where_names_repeat() -> None:
    assert names("/d/P1/CT", "/d/P2/CT", "/d/P2/MR") == ["P1_CT", "P2_CT", "MR"]
    assert names("/x/1/ct", "/y/1/ct", "/y/2/CT") == ["x_1_ct", "y_1_ct", "2_CT"]
    assert names("/P1/CT", "/P2/CT", "/d/P1_CT.nii") == ["P1_CT", "P2_CT", "d_P1_CT"]


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        (("/d/a.nii", "/d/a.nii"), "/d/a.nii: it is named twice"),
        (("/d/a.nii", "/d/a.nrrd"), "would be called like that of /d/a.nii: d_a; predict it in"),
        (("/P1/CT", "/P2/CT", "/P1_CT.nii"), "would be called like that of /P1/CT: P1_CT"),
        (("/d/a.nii", "/d/A.nii"), "/d/A.nii: its prediction would be called like"),
    ],
)
def test_what_cannot_be_told_apart_is_refused_naming_both(paths, text) -> None:
    with pytest.raises(ConfigError, match=text):
        names(*paths)


@given(st.lists(PATHS, unique=True, max_size=7), st.randoms(use_true_random=False))
def test_no_two_names_are_alike_and_order_does_not_matter(paths, random) -> None:
    images = [(path,) for path in paths]
    shuffled = random.sample(images, len(images))
    try:
        found = case_names(images)
    except ConfigError:
        with pytest.raises(ConfigError):
            case_names(shuffled)
        return
    assert len({name.casefold() for name in found}) == len(paths)
    assert all("/" not in name for name in found)
    again = dict(zip(shuffled, case_names(shuffled), strict=True))
    assert [again[image] for image in images] == found
