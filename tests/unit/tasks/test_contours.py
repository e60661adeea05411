"""Lines around masks separate what is inside from what is not, and are lines."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays
from PIL import Image
from scipy import ndimage

from autofedavg.tasks.imaging.files import Scan
from autofedavg.tasks.imaging.panels import (
    COLOURS,
    FOUND,
    LABEL,
    LineStyle,
    View,
    borders,
    colours_of,
    framed,
    panels,
    shades,
    trace,
    view,
)
from autofedavg.tasks.imaging.pipeline import Pipeline

RED = (255, 0, 0)
masks = arrays(bool, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8))


def inside(lines: list[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """Which pixel centres lie inside an odd number of closed lines."""
    rows, columns = np.mgrid[: shape[0], : shape[1]] + 0.5
    odd = np.zeros(shape, bool)
    for line in lines:
        for (r0, c0), (r1, c1) in zip(line, np.roll(line, -1, axis=0), strict=True):
            if r0 != r1:
                crossing = c0 + (rows - r0) / (r1 - r0) * (c1 - c0)
                odd ^= ((r0 > rows) != (r1 > rows)) & (columns < crossing)
    return odd


@given(masks)
def test_borders_part_the_mask_from_the_rest(mask) -> None:
    lines = borders(mask)
    # Off the lines' own coordinates: they pass through rows of pixel centres.
    np.testing.assert_array_equal(inside([line + 1e-7 for line in lines], mask.shape), mask)
    parts = ndimage.label(mask)[1]
    holes = ndimage.label(np.pad(~mask, 1, constant_values=True), np.ones((3, 3)))[1] - 1
    assert len(lines) == parts + holes
    sides = sum(abs(np.diff(np.pad(mask.astype(int), 1), axis=axis)).sum() for axis in (0, 1))
    assert sum(map(len, lines)) == 2 * sides


def test_straight_borders_lie_between_the_pixels() -> None:
    mask = np.zeros((12, 12), bool)
    mask[3:9, 2:10] = True
    (line,) = borders(mask)
    assert line.min(axis=0).tolist() == [3.0, 2.0]
    assert line.max(axis=0).tolist() == [9.0, 10.0]
    straight = line[(line[:, 1] > 3) & (line[:, 1] < 9)]
    assert set(straight[:, 0]) == {3.0, 9.0}


def blob() -> np.ndarray:
    random = np.random.RandomState(3)
    smooth = ndimage.gaussian_filter(random.normal(size=(48, 64)), 4)
    return np.pad((smooth > 0.4 * smooth.max())[2:-2, 2:-2], 2)


def edges(mask: np.ndarray, times: int) -> np.ndarray:
    """The pixels of an enlarged mask that touch its border from either side."""
    large = np.kron(mask, np.ones((times, times), bool))
    return ndimage.binary_dilation(large, np.ones((3, 3))) & ~ndimage.binary_erosion(
        large, np.ones((3, 3)), border_value=1
    )


def coloured(picture: Image.Image, colour) -> np.ndarray:
    return (np.array(picture.convert("RGB")) == colour).all(axis=2)


def test_a_line_is_two_pixels_wide_and_lies_on_the_border() -> None:
    mask, plain = blob(), Image.new("RGB", (64 * 6, 48 * 6), (90, 90, 90))
    drawn = coloured(trace(plain, mask, RED, LineStyle(2.0)), RED)
    border = edges(mask, 6)
    far = ndimage.distance_transform_edt(~border)
    assert far[drawn].max() <= 0.36 * 6 + 1  # marching squares cut corners, by 0.36 of a voxel
    assert ndimage.distance_transform_edt(~drawn)[border].max() <= 0.36 * 6 + 2
    straight = np.zeros((40, 40), bool)
    straight[10:30, 10:30] = True
    picture = trace(Image.new("RGB", (240, 240), (90, 90, 90)), straight, RED, LineStyle(2.0))
    assert np.flatnonzero(coloured(picture, RED)[:, 120]).tolist() == [59, 60, 179, 180]
    untouched = (np.array(picture) == 90).all(axis=2)
    assert untouched[64:176, 64:176].all()


def test_dashes_cover_a_part_of_the_line_evenly() -> None:
    mask = np.zeros((20, 20), bool)
    mask[4:16, 4:16] = True
    plain = Image.new("RGB", (240, 240), (90, 90, 90))
    whole = coloured(trace(plain, mask, RED, LineStyle(2.0)), RED)
    dashed = coloured(trace(plain, mask, RED, LineStyle(2.0, dashed=True)), RED)
    assert (dashed & ~ndimage.binary_dilation(whole)).sum() == 0
    assert 0.35 < dashed.sum() / whole.sum() < 0.7
    assert abs(ndimage.label(dashed, np.ones((3, 3)))[1] - 576 / 9) <= 4


def test_one_voxel_stays_in_sight_when_the_picture_is_smaller() -> None:
    mask = np.zeros((1000, 500), bool)
    mask[700, 401] = True
    for dashed in (False, True):
        drawn = trace(Image.new("RGB", (128, 256)), mask, RED, LineStyle(2.0, dashed))
        rows, columns = np.nonzero(np.array(drawn)[..., 0] > 120)
        assert len(rows)
        assert abs(rows - 700 * 0.256).max() <= 2
        assert abs(columns - 401 * 0.256).max() <= 2


def opened(made) -> Image.Image:
    return Image.open(io.BytesIO(made.png)).convert("RGB")


def seen(label, *others, seed=0) -> View:
    noise = np.random.RandomState(seed).uniform(40, 100, (1, *label.shape)).astype(np.float32)
    return View(noise, label, (1.0, 1.0), 1, 1, others)


def changed(one, other) -> np.ndarray:
    return (np.array(opened(one)) != np.array(opened(other))).any(axis=2)


def test_a_perfect_segmentation_is_drawn_where_the_label_is() -> None:
    label = blob().astype(np.uint8)
    noise = np.random.RandomState(0).randint(0, 256, (3, *label.shape)).astype(np.uint8)
    in_colour = View(noise, label, (1.0, 1.0), None, 1, (label,))
    image, own, found = panels(in_colour, 0.0, 100.0, 1)
    np.testing.assert_array_equal(changed(image, found), changed(image, own))
    image, own, found = panels(seen(label, label), 0.0, 100.0, 1)
    lines = coloured(opened(found), FOUND) | coloured(opened(found), LABEL)
    assert not (lines & ~ndimage.binary_dilation(coloured(opened(own), LABEL))).any()
    assert not coloured(opened(image), LABEL).any()
    assert coloured(opened(own), LABEL).any()
    assert not coloured(opened(own), FOUND).any()
    assert coloured(opened(found), FOUND).any()
    assert coloured(opened(found), LABEL).any()  # its dashes, on the same line


def test_what_is_missed_and_what_is_too_much_can_be_told_apart() -> None:
    label, wrong = np.zeros((2, 64, 64), np.uint8)
    label[8:24, 8:24] = wrong[40:56, 40:56] = 1
    image, _, found = panels(seen(label, wrong), 0.0, 100.0, 1)
    drawn = opened(found)
    assert coloured(drawn, LABEL)[:128, :128].any()
    assert not coloured(drawn, FOUND)[:128, :128].any()
    assert coloured(drawn, FOUND)[150:, 150:].any()
    assert not coloured(drawn, LABEL)[150:, 150:].any()
    assert not changed(image, found)[130:150].any()


def test_every_class_has_its_colour_in_label_and_segmentation() -> None:
    label = np.zeros((64, 64), np.uint8)
    label[8:24, 8:24], label[40:56, 40:56] = 1, 2
    own, others = colours_of(2)
    assert own == others == COLOURS[:2]
    _, shown, found = (opened(made) for made in panels(seen(label, label), 0.0, 100.0, 2))
    for picture in (shown, found):
        rows, _ = np.nonzero(coloured(picture, COLOURS[0]))
        assert rows.max() < 128 < np.nonzero(coloured(picture, COLOURS[1]))[0].min()


def test_colour_pictures_keep_their_colours() -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (3, 256, 256)).astype(np.uint8)
    label = np.zeros((256, 256), np.uint8)
    label[100:150, 100:150] = 1
    made = panels(View(pixels, label, (1.0, 1.0), None, 1, (label,)), 0.0, 1.0, 1)
    shown = np.array(opened(made[0])).astype(int)
    assert np.abs(shown - pixels.transpose(1, 2, 0)).max() <= 3
    assert len(np.unique(shown)) == 48
    assert not changed(made[0], made[2])[:90].any()


def test_pictures_are_small_files_in_their_true_shape() -> None:
    label = np.zeros((50, 50), np.uint8)
    made = panels(seen(label)._replace(pixel=(2.0, 1.0)), 0.0, 100.0, 1)
    assert made[0].size == (128, 256)
    assert all(len(picture.png) < 25_000 for picture in made)


def test_others_are_seen_in_the_same_slice_and_turned_alike() -> None:
    label, found = np.zeros((2, 8, 10, 4), np.uint8)
    label[2:5, 2:5, 2] = 1
    found[6, 8, 2], found[:, :, 0] = 1, 1
    affine = np.diag([2.0, 1.0, 4.0, 1.0])
    shown = view(Scan(np.zeros((1, 8, 10, 4), np.float32), affine), label, found)
    assert (shown.slice, shown.slices, shown.upright) == (3, 4, True)
    assert np.argwhere(shown.others[0]).tolist() == [[1, 1]]
    empty = view(Scan(np.zeros((1, 8, 10, 4), np.float32), None), np.zeros_like(label), found)
    assert (empty.slice, empty.upright) == (1, False)


def test_empty_ground_is_cut_away_but_nothing_that_is_drawn() -> None:
    image = np.random.RandomState(0).uniform(0, 12, (1, 128, 96)).astype(np.float32)
    image[0, 40:100, 30:60] = 70
    image[0, 5, 5] = 100  # a speck
    label, found = np.zeros((2, 128, 96), np.uint8)
    label[50:60, 40:50], found[90, 80] = 1, 1
    shown = framed(View(image, label, (1.0, 1.0), 1, 1, (found,)), 0.0, 100.0)
    assert shown.label.shape == (60 + 2 * 3, 51 + 2 * 2)
    assert shown.image.shape[1:] == shown.label.shape == shown.others[0].shape
    assert (shown.label.sum(), shown.others[0].sum()) == (100, 1)
    dark = View(np.zeros((1, 9, 9)), label[:9, :9], (1.0, 1.0), 1, 1)
    assert framed(dark, 0.0, 1.0).label.shape == (9, 9)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Pipeline(), (-990.0, 500.0)),
        (Pipeline(window=(-87.0, 199.0)), (-87.0, 199.0)),
        (Pipeline(window=(5000.0, 6000.0)), (5000.0, 6000.0)),
        (Pipeline(normalise="zscore"), (-990.0, 990.0)),
    ],
)
def test_shades_are_the_images_own_within_what_the_network_sees(how, expected) -> None:
    values = np.linspace(-1000, 1000, 8 * 8 * 32, dtype=np.float32).reshape(1, 8, 8, 32)
    assert shades(Scan(values, None), how) == pytest.approx(expected, abs=0.1)
