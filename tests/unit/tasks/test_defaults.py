"""What is left open is worked out from the data; what is set is kept, or told not to fit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autofedavg.core.errors import ConfigError
from autofedavg.core.settings import origins
from autofedavg.tasks.imaging.segmentation import network
from autofedavg.tasks.lists.defaults import MOST_VOXELS, OpenPipeline
from autofedavg.tasks.lists.fingerprint import CaseFacts, Fingerprint


def seen(
    grid=(512, 512, 100), spacing=(0.8, 0.8, 2.5), low=-1000.0, high=1500.0, channels=1,
    eight_bit=False, under=(-50.0, 120.0),
) -> Fingerprint:  # fmt: skip
    def levels(low, high):
        """An even spread, but for one voxel of metal."""
        return [*(low + (high - low) * k / 100 for k in range(100)), 30000.0]

    case = CaseFacts(
        grid, spacing, eight_bit, 0.1, [levels(low, high)] * channels, [(0.0, 1.0)] * channels,
        [levels(*under)] * channels, {0: 100, 1: 10},
    )  # fmt: skip
    return Fingerprint({"a": dict.fromkeys("123", case), "b": {"1": case}})


def test_ct_is_windowed_by_what_lies_under_the_labels() -> None:
    how = OpenPipeline().settle(seen()).pipeline()
    assert (how.normalise, how.spacing) == ("window", (0.8, 0.8, 2.5))
    assert how.window == pytest.approx((-48.3, 118.3), abs=0.2)
    assert how.channels[0] == 16
    flat = OpenPipeline().settle(seen((512, 512, 40))).pipeline()
    assert flat.roi[0] == flat.roi[1] > flat.roi[2] == 40


def test_other_volumes_are_brought_to_mean_0_and_spread_1() -> None:
    how = OpenPipeline().settle(seen(low=0.0)).pipeline()
    assert how.normalise == "zscore"
    unknown = OpenPipeline().settle(seen(spacing=None)).pipeline()
    assert unknown.spacing == "keep"


def test_pictures_of_bytes_keep_their_range() -> None:
    how = (
        OpenPipeline()
        .settle(seen((600, 800), None, 0.0, 255.0, channels=3, eight_bit=True))
        .pipeline()
    )
    assert (how.normalise, how.window, how.spacing) == ("window", (0.0, 255.0), "keep")
    assert how.axes == 2
    assert how.channels[0] == 32


def test_a_window_that_is_set_is_used() -> None:
    how = OpenPipeline(window=(0.0, 50.0)).settle(seen(low=0.0)).pipeline()
    assert (how.normalise, how.window) == ("window", (0.0, 50.0))


def test_a_window_of_very_small_numbers_keeps_its_digits() -> None:
    fine = seen(low=0.0, high=2e-4, under=(1e-5, 1.2e-4))
    how = OpenPipeline(normalise="window").settle(fine).pipeline()
    assert how.window == pytest.approx((1.11e-5, 1.189e-4), rel=1e-2)


@given(
    st.one_of(st.tuples(*[st.integers(2, 700)] * 2), st.tuples(*[st.integers(2, 700)] * 3)),
    st.sampled_from(["unet", "basic-unet"]),
    st.sampled_from(["auto", (4, 8), (4, 8, 8, 16)]),
)
def test_images_of_any_size_get_a_network_that_takes_their_crops(grid, kind, channels) -> None:
    if kind == "basic-unet":
        channels = "auto"
    spacing = (1.0,) * len(grid) if len(grid) == 3 else None
    how = OpenPipeline(network=kind, channels=channels).settle(seen(grid, spacing)).pipeline()
    assert how.axes == len(grid)
    most = MOST_VOXELS[len(grid)]
    assert torch.tensor(how.roi).prod() <= most or kind == "basic-unet"
    for size, roi in zip(grid, how.roi, strict=True):
        assert roi < 2 * size + 32


@given(st.tuples(*[st.integers(2, 80)] * 2).filter(lambda roi: max(roi) > 2))
def test_a_roi_that_is_set_gets_strides_that_fit_it(roi) -> None:
    how = OpenPipeline(roi=roi).settle(seen((90, 90), None)).pipeline()
    assert how.roi == roi


def test_small_images_can_be_trained_on() -> None:
    for grid in ((6, 5), (9, 9), (17, 4), (6, 5, 3), (30, 30, 2)):
        facts = seen(grid, (1.0, 1.0, 1.0) if len(grid) == 3 else None)
        how = OpenPipeline().settle(facts).pipeline()
        net = network(how).train()
        net(torch.randn(2, 1, *how.roi)).sum().backward()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"roi": (64, 64)}, "roi has 2 sizes, and the images have 3 axes"),
        ({"spacing": (1.0, 1.0)}, "spacing has 2 sizes, and the images have 3 axes"),
        ({"strides": ((2, 2),)}, "strides has 2 sizes, and the images have 3 axes"),
        ({"channels": (4,)}, "at least two widths"),
        ({"roi": (60, 60, 60), "strides": ((2, 2, 2),) * 4}, "60 is not a multiple of 16"),
        ({"network": "basic-unet", "roi": (60, 64, 64)}, "60 is not a multiple of 16"),
    ],
)
def test_what_is_set_and_does_not_fit_the_data_is_told(change, said) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        OpenPipeline(**change).settle(seen()).pipeline()
    assert caught.value.exit_code == 2


def test_settings_that_leave_nothing_open_are_checked_at_once() -> None:
    whole = OpenPipeline().settle(seen()).model_dump()
    with pytest.raises(ValidationError, match="window must rise"):
        OpenPipeline(**{**whole, "window": (5.0, 5.0)})


def test_a_spacing_cannot_be_set_where_none_is_known() -> None:
    with pytest.raises(ConfigError, match="the voxel spacing of some images is unknown"):
        OpenPipeline(spacing=(1.0, 1.0, 1.0)).settle(seen(spacing=None))


def test_settling_twice_changes_nothing_and_origins_are_kept() -> None:
    once = OpenPipeline(roi=(32, 32, 32)).settle(seen())
    assert once.settled()
    assert once.settle(seen(low=0.0, grid=(90, 90, 90))) == once
    said = {path: origin for path, _, origin, _ in origins(once)}
    assert said["roi"] == "study"
    assert said["spacing"].startswith("derived from the data")
    assert said["window"].startswith("derived from the data")
    assert OpenPipeline.model_validate(once.model_dump()) == once
