"""Settings that do not fit together are told, and what the cache depends on is complete."""

import pytest
from pydantic import ValidationError

from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.imaging.segmentation import network


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"roi": (64,)}, "roi must have two or three sizes, not 1"),
        ({"roi": (0, 64, 64)}, "every size of roi must be above 0"),
        ({"roi": (-32, 64, 64)}, "every size of roi must be above 0"),
        ({"roi": (60, 64, 64)}, "60 is not a multiple of 16"),
        ({"roi": (16, 16, 16)}, "to a single voxel"),
        ({"roi": (64, 64)}, "spacing must have 2 sizes above 0, like roi"),
        ({"roi": (64, 64), "spacing": (1.0, 1.0)}, "flat images have no spacing"),
        ({"roi": (64, 64), "spacing": "keep", "crop": True}, "flat images have no spacing"),
        ({"spacing": (1.0, 1.0)}, "spacing must have 3 sizes"),
        ({"spacing": (1.0, 0.0, 1.0)}, "spacing must have 3 sizes above 0"),
        ({"window": (5.0, 5.0)}, "window must rise"),
        ({"channels": (4,)}, "at least two widths"),
        ({"channels": (4, 8), "strides": ((2, 2, 2), (2, 2, 2))}, "strides needs 1 entries"),
        ({"channels": (4, 8), "strides": ((2, 2),)}, "strides needs 1 entries of 3 numbers"),
        ({"channels": (4, 8), "strides": ((0, 2, 2),)}, "numbers from 1"),
        ({"network": "basic-unet", "channels": (4, 8)}, "basic-unet takes six channels"),
        ({"network": "basic-unet", "residual_units": 1}, "basic-unet takes six channels"),
    ],
)
def test_what_does_not_fit_is_told(change, said) -> None:
    with pytest.raises(ValidationError, match=said):
        Pipeline(**change)


def test_any_pipeline_that_is_accepted_has_a_network_that_takes_its_crops() -> None:
    import torch

    for how in (
        Pipeline(roi=(32, 16), spacing="keep", channels=(4, 8), residual_units=1),
        Pipeline(roi=(8, 8, 5), channels=(4, 8, 8), strides=((2, 2, 1), (2, 2, 1))),
        Pipeline(roi=(32, 16, 16), network="basic-unet", channels=(2, 2, 4, 4, 4, 2)),
    ):
        made = network(how, channels=2, classes=3)
        assert made(torch.randn(1, 2, *how.roi)).shape == (1, 4, *how.roi)


def test_what_the_prepared_files_depend_on() -> None:
    base = Pipeline()
    for same in ({"roi": (32, 32, 32)}, {"flip": 0.5}, {"loss": "dice-ce"}, {"overlap": 0.1}):
        assert Pipeline(**same).chain() == base.chain()
    for other in (
        {"spacing": "keep"}, {"window": (0.0, 1.0)}, {"normalise": "zscore"}, {"crop": True},
    ):  # fmt: skip
        assert Pipeline(**other).chain() != base.chain()
    zscore = {"normalise": "zscore"}
    assert Pipeline(**zscore, window=(0.0, 1.0)).chain() == Pipeline(**zscore).chain()
