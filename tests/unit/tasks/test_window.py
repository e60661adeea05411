"""Sliding windows in slabs give what MONAI's whole-image inferer gives."""

import pytest
import torch
from monai.inferers import SlidingWindowInferer

from autofedavg.tasks.imaging.prediction import slabs, stride


def whole(network, image, roi, overlap):
    found = list(
        slabs(network, lambda box: image[(slice(None), *box)], image.shape[1:], roi, overlap)
    )
    starts = [start for start, _ in found]
    assert starts == sorted(set(starts))
    return torch.cat([part for _, part in found], dim=1)


@pytest.mark.parametrize(
    ("size", "roi", "overlap"),
    [
        ((20, 17, 13), (8, 8, 8), 0.5),
        ((20, 17, 13), (8, 8, 8), 0.75),
        ((8, 8, 8), (8, 8, 8), 0.5),
        ((33, 9, 8), (8, 8, 8), 0.0),
        ((40, 23), (16, 16), 0.25),
    ],
)
def test_equals_the_whole_image_inferer(size, roi, overlap) -> None:
    torch.manual_seed(0)
    kind = torch.nn.Conv3d if len(size) == 3 else torch.nn.Conv2d
    network = torch.nn.Sequential(kind(2, 4, 3, padding=1), torch.nn.ReLU(), kind(4, 3, 1))
    image = torch.randn(2, *size)
    with torch.no_grad():
        expected = SlidingWindowInferer(roi, sw_batch_size=3, overlap=overlap, mode="gaussian")(
            image[None], network
        )[0]
        torch.testing.assert_close(
            whole(network, image, roi, overlap), expected, rtol=1e-5, atol=1e-6
        )


def test_holds_one_windows_depth_only() -> None:
    """Slabs are never deeper than a window, and no row is missing or told twice."""
    network = torch.nn.Conv3d(1, 2, 1)
    image = torch.randn(1, 50, 8, 8)
    with torch.no_grad():
        crop = lambda box: image[(slice(None), *box)]  # noqa: E731
        found = list(slabs(network, crop, (50, 8, 8), (8, 8, 8), 0.5))
    assert max(part.shape[1] for _, part in found) <= 8
    assert [start for start, _ in found] == [0, *torch.cumsum(
        torch.tensor([part.shape[1] for _, part in found]), 0
    ).tolist()[:-1]]  # fmt: skip


def test_stride_is_the_papers() -> None:
    assert stride((256, 256, 32), 0.75) == (64, 64, 8)
