"""What an inspection says is what was generated; what it draws lies where it should."""

import csv
import io
import json
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

from autofedavg.core.errors import DataError
from autofedavg.experiment.config import parse_study
from autofedavg.tasks.imaging.files import Scan
from autofedavg.tasks.imaging.panels import COLOURS, view
from autofedavg.tasks.imaging.pipeline import Pipeline
from autofedavg.tasks.inspection.comparison import HIGH, LOW, histogram, normalised
from autofedavg.tasks.inspection.look import inspect
from autofedavg.tasks.lists.defaults import OpenPipeline
from autofedavg.tasks.lists.fingerprint import LEVELS, CaseFacts, Fingerprint
from autofedavg.tasks.lists.starting import starting_study
from autofedavg.tasks.lists.task import Datalist
from volumes import save_nifti

SPACING = (0.5, 0.5, 3.0)
GRID = (24, 20, 6)
BOXES = (2, 3, 4, 5, 6)


def generate(folder, sites, *, change=None, spacing=SPACING, column="", patients=None):
    """Writes a list of volumes; sites: name -> intensity offset. `change` edits (image, label)."""
    rows = ["site,case,image,label,patient" + (",split" if column else "")]
    volumes = {}
    for number, (site, offset) in enumerate(sites.items()):
        random = np.random.RandomState(number)
        for k, box in enumerate(BOXES):
            image = random.normal(200 + offset, 20, GRID).astype(np.float32)
            label = np.zeros(GRID, np.uint8)
            label[5 : 5 + box, 4 : 4 + box, 1 : 2 + k] = 1
            if change:
                change(site, k, image, label)
            paths = [f"{number}/{k}_{what}.nii.gz" for what in ("image", "label")]
            for path, values in zip(paths, (image, label), strict=True):
                save_nifti(folder / path, values, np.diag([*spacing, 1.0]))
            volumes[site, k] = image, label
            cell = io.StringIO()
            patient = patients[k] if patients else f"p{k}"
            csv.writer(cell).writerow(
                [site, f"case{k}", *paths, patient, *[column][: bool(column)]]
            )
            rows.append(cell.getvalue().strip())
    path = folder / "list.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path, volumes


def look(path, **settings):
    return inspect(Datalist(datalist=str(path), cache=str(path.parent / "cache"), **settings))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two sites whose intensities lie five standard deviations apart, else alike."""
    return generate(tmp_path_factory.mktemp("two"), {"north": 0.0, "south": 100.0})


@pytest.fixture(scope="module")
def seen(two):
    return look(two[0])


@pytest.mark.parametrize("site", ["north", "south"])
def test_numbers_are_those_of_the_volumes(two, seen, site) -> None:
    images, labels = zip(*(two[1][site, k] for k in range(5)), strict=True)
    found = seen.as_json()["sites"][site]
    assert (found["cases"], found["patients"]) == (5, 5)
    assert sum(found["splits"].values()) == 5
    assert [axis["median"] for axis in found["grid"]] == list(GRID)
    for axis, mm in zip(found["spacing"], SPACING, strict=True):
        assert axis["low"] == axis["high"] == pytest.approx(mm)
    for level, name in ((LOW, "low"), (50, "median"), (HIGH, "high")):
        expected = np.median([np.percentile(image, level) for image in images])
        assert found["intensities"][0][name] == pytest.approx(expected, rel=1e-6)
    assert found["shares"]["1"] == pytest.approx(np.mean([label > 0 for label in labels]))
    sizes = [int(label.sum()) for label in labels]
    assert found["label_voxels"] == {
        "median": np.median(sizes), "low": min(sizes), "high": max(sizes)
    }  # fmt: skip
    assert found["label_ml"]["median"] == pytest.approx(np.median(sizes) * 0.75 / 1000)


def test_the_text_says_the_same_numbers(two, seen) -> None:
    text = seen.text()
    middle = [np.median([np.median(two[1][s, k][0]) for k in range(5)]) for s in ("north", "south")]
    line = next(line for line in text.splitlines() if "intensity, 50 %" in line)
    assert [float(n) for n in line.split("%")[1].split()] == [round(m) for m in middle]
    assert re.search(r"cases +5 +5\n", text)
    assert re.search(r"spacing, axis 3, mm +3 +3\n", text)
    assert max(map(len, text.splitlines())) <= 100
    assert max(map(len, seen.text(60).splitlines())) <= 60


def test_the_shift_is_there_before_normalising_and_gone_after_zscore(seen) -> None:
    (shift,) = seen.shifts
    assert seen.normalise == "zscore"
    assert shift.before[0][1] > 1
    assert shift.after[0][1] < 0.1
    assert shift.before[0][0] == 0
    assert "lie far apart as stored" in seen.differences[0]
    assert "after zscore they do not" in seen.differences[0]


def test_a_fixed_window_leaves_the_shift(two) -> None:
    how = OpenPipeline(normalise="window", window=(0.0, 500.0))
    (shift,) = look(two[0], pipeline=how).shifts
    assert shift.after[0][1] == pytest.approx(shift.before[0][1], rel=0.01)
    (shift,) = look(two[0], pipeline=OpenPipeline(normalise="percentiles")).shifts
    assert shift.after[0][1] < 0.1


def test_normalised_percentiles_are_those_of_the_normalised_image(two) -> None:
    from autofedavg.tasks.imaging.intensities import normalised as normalise

    path, volumes = two
    task = Datalist(datalist=str(path), cache=str(path.parent / "cache"))
    for way in ("zscore", "window"):
        how = task.resolved().pipeline.pipeline().model_copy(update={"normalise": way})
        case = normalised(task.fingerprint(), how).sites["south"]["case2"]
        expected = np.percentile(normalise(volumes["south", 2][0][None], how)[0], LEVELS)
        np.testing.assert_allclose(case.percentiles[0], expected, atol=2e-3)  # float16


def test_histograms_lie_on_one_scale(two, seen) -> None:
    known = seen.histograms[0].before
    edges = np.linspace(known.low, known.high, len(known.shares["north"]) + 1)
    for site in ("north", "south"):
        every = np.concatenate([two[1][site, k][0].ravel() for k in range(5)])
        counted = np.histogram(every, edges)[0] / every.size
        np.testing.assert_allclose(known.shares[site], counted, atol=0.02)
    north, south = (next(x for x in seen.text().splitlines() if re.match(rf"  {s} .*█", x))
                    for s in ("north", "south"))  # fmt: skip
    assert north.index("█") < south.index("█")


def test_one_far_site_of_three_is_named(tmp_path) -> None:
    path, _ = generate(tmp_path, {"a": 0.0, "b": 5.0, "c": 300.0})
    (said,) = look(path).differences
    assert said.startswith("The intensities of c lie far from the other sites' as stored")


def test_what_is_odd_is_told(tmp_path) -> None:
    def change(site, k, image, label):
        if site == "b" and k == 0:
            label[:] = 0
        if site == "a" and k == 3:
            image += 400
        if site == "a" and k == 1:
            label[0, 0, 0] = 2

    path, volumes = generate(tmp_path, {"a": 0.0, "b": 0.0}, change=change, patients="ppqrs")
    medians = [float(np.median(volumes["a", k][0])) for k in range(5)]
    odd = "\n".join(look(path).oddities)
    assert "a: fewer than 5 patients (4)" in odd
    assert "b: class 2 does not occur" in odd
    assert "b: empty label: case0" in odd
    usual = f"{np.median(medians):.4g}"
    assert f"median intensity is far from the usual {usual}: case3 ({medians[3]:.4g})" in odd
    assert "a: class" not in odd
    assert "a: empty" not in odd
    one = look(path, classes={"lesion": (1,)})
    assert "a: case1: label values that belong to no class: 2" in one.oddities
    assert len(one.examples()) == 6


def test_nothing_is_odd_about_even_data(seen) -> None:
    assert seen.oddities == []
    assert "nothing odd was found" in seen.text()


def test_a_grid_far_from_its_sites_is_odd_and_rounding_is_not(tmp_path) -> None:
    path, _ = generate(tmp_path, {"a": 0.0})
    for what in ("image", "label"):
        wide = np.zeros((24, 20, 12), np.float32 if what == "image" else np.uint8)
        wide[4:8] = np.arange(20)[:, None] if what == "image" else 1
        near = np.diag([0.5000001, 0.5, 3.0, 1.0])
        save_nifti(tmp_path / f"0/2_{what}.nii.gz", wide, near)
    odd = look(path).oddities
    assert "a: grid along axis 3 is far from the usual 6: case2 (12)" in odd
    assert not any("spacing" in said for said in odd)


def test_without_possible_splits_the_rest_is_still_told(tmp_path) -> None:
    path, _ = generate(tmp_path, {"a": 0.0}, patients="ppppp")
    found = look(path)
    assert "no splits, so a study will refuse this list" in found.oddities[0]
    assert re.search(r"train +\?\n", found.text())
    assert "one site" in found.differences[0]


def test_a_site_without_a_test_case_is_told(tmp_path) -> None:
    path, _ = generate(tmp_path, {"a": 0.0}, column="train")
    assert (
        "a: no case for validation and test: a study will refuse this site" in look(path).oddities
    )


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.words = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        self.words += data


def test_the_page_is_escaped_and_stands_alone(tmp_path) -> None:
    evil = '<script>alert("1")</script>'
    path, _ = generate(tmp_path, {evil: 0.0, "b & c": 9.0})
    found = look(path)
    written = found.write(tmp_path / "out")
    page = written[0].read_text(encoding="utf-8")
    read = Tags(page)
    assert "script" not in read.tags
    assert evil in read.words
    assert "b & c" in read.words
    assert {"link", "iframe", "object", "base", "form"}.isdisjoint(read.tags)
    assert "://" not in page
    assert "url(" not in page
    assert "@import" not in page
    for tag, name, value in read.attributes:
        assert not name.startswith("on")
        assert name not in {"href", "srcset", "action"}
        if name == "src":
            assert tag == "img"
            assert value.startswith("data:image/png;base64,")
    assert read.tags.count("img") == 6
    assert all(
        v for t, n, v in read.attributes if (t, n) in {("img", "alt"), ("svg", "aria-label")}
    )
    assert sum(n == "alt" for _, n, _ in read.attributes) == 6
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_files_hold_the_same_values(two, seen, tmp_path) -> None:
    names = [path.name for path in seen.write(tmp_path / "deep" / "out")]
    assert names == ["inspection.html", "inspection.json", "sites.csv", "cases.csv"]
    folder = tmp_path / "deep" / "out"
    kept = json.loads(
        (folder / "inspection.json").read_text(encoding="utf-8"), parse_constant=pytest.fail
    )
    assert kept == seen.as_json()
    with (folder / "cases.csv").open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert [(line["site"], line["case"]) for line in lines] == [
        (site, f"case{k}") for site in ("north", "south") for k in range(5)
    ]
    image, label = two[1]["south", 4]
    bright = image[image > image.mean()].mean()
    assert float(lines[9]["bright_mean"]) == pytest.approx(bright, rel=1e-5)
    assert int(lines[9]["voxels_1"]) == label.sum()
    with (folder / "sites.csv").open(encoding="utf-8", newline="") as stream:
        (_, south) = csv.DictReader(stream)
    assert south["site"] == "south"
    assert float(south["label_ml_high"]) == pytest.approx(6 * 6 * 5 * 0.75 / 1000)


def test_a_folder_that_cannot_be_written_is_named(seen, tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="the inspection cannot be written"):
        seen.write(tmp_path / "file")


def test_names_cannot_steer_the_terminal(tmp_path) -> None:
    path, _ = generate(tmp_path, {"a\x1b[31m": 0.0})
    assert "\x1b" not in look(path).text()


def test_settings_are_told_with_why_they_are_so(seen) -> None:
    said = {path: (value, why) for path, value, why, _ in seen.settings}
    assert said["task.pipeline.spacing"][0] == SPACING
    assert all(why.startswith("derived from the data") for _, why in said.values())
    assert "task.pipeline.window" not in said
    assert "task.pipeline.normalise = zscore  (derived from the data" in seen.text()


def test_the_contour_lies_on_the_border_of_the_label(tmp_path) -> None:
    path, volumes = generate(tmp_path, {"a": 0.0})
    (last,) = (shown for shown in look(path).examples() if shown.why == "largest label")
    drawn = np.array(Image.open(io.BytesIO(last.png)).convert("RGB"))
    assert last.size == drawn.shape[1::-1] == (256, 213)  # pixels keep their true shape
    coloured = (drawn == COLOURS[0]).all(axis=2)
    label = volumes["a", 4][1][:, :, 1].T[::-1, ::-1]  # front up, right side to the left
    large = np.array(Image.fromarray(label * 255).resize(last.size, Image.Resampling.NEAREST)) > 0
    inner, outer = ndimage.binary_erosion(large), ndimage.binary_dilation(large)
    far = ndimage.distance_transform_edt(~(outer & ~inner))
    assert coloured.sum() > 200
    assert far[coloured].max() <= 6  # corners are rounded, by about half a voxel of eleven pixels
    grey = (drawn == drawn[..., :1]).all(axis=2)
    assert grey[far > 8].all()


@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, -1, 1), (-1, 1, -1)])
def test_front_is_up_right_is_left_and_the_slice_is_the_fullest(signs) -> None:
    values = np.zeros((1, 8, 10, 4), np.float32)
    values[0, 7, 9, 2] = 5.0  # right, front
    label = np.zeros((8, 10, 4), np.uint8)
    label[2:5, 2:5, 2] = 1
    label[2, 2, 1] = 1
    flips = [axis for axis, sign in enumerate(signs) if sign < 0]
    affine = np.diag([signs[0] * 2.0, signs[1] * 1.0, signs[2] * 4.0, 1.0])
    scan = Scan(np.flip(values, [axis + 1 for axis in flips]), affine)
    shown = view(scan, np.flip(label, flips))
    assert shown.image.shape == (1, 10, 8)
    assert shown.image[0, 0, 0] == 5.0
    assert shown.slice == 3
    assert shown.label.sum() == 9
    assert shown.pixel == (1.0, 2.0)


def test_swapped_axes_are_put_right() -> None:
    values = np.zeros((1, 4, 8, 10), np.float32)  # up, right, front
    values[0, 2, 7, 9] = 5.0
    label = np.zeros((4, 8, 10), np.uint8)
    label[2, 2:5, 2:5] = 1
    affine = np.array([[0, 2, 0, 0], [0, 0, 1, 0], [4, 0, 0, 0], [0, 0, 0, 1]], float)
    shown = view(Scan(values, affine), label)
    assert (shown.image[0, 0, 0], shown.slice, shown.slices) == (5.0, 3, 4)
    assert shown.pixel == (1.0, 2.0)


def test_colour_pictures_stay_in_colour(tmp_path) -> None:
    rows = ["site,image,label"]
    random = np.random.RandomState(0)
    for k in range(3):
        pixels = random.randint(1, 255, (256, 256, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{k}.png")
        label = np.zeros((256, 256), np.uint8)
        label[50 : 60 + k, 50:60] = 1
        Image.fromarray(label).save(tmp_path / f"l{k}.png")
        rows.append(f"a,{k}.png,l{k}.png")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    found = look(tmp_path / "list.csv")
    assert "channel 3" in found.text()
    assert "label, pixels" in found.text()
    assert len(found.shifts) == 3
    last = found.examples()[-1]
    assert (last.line.case, last.why, last.slice) == ("2", "largest label", None)
    drawn = np.array(Image.open(io.BytesIO(last.png)))
    inside = label > 0
    border = ndimage.binary_dilation(inside) & ~ndimage.binary_erosion(inside)
    near = ndimage.distance_transform_edt(~border)
    coloured = (drawn == COLOURS[0]).all(axis=2)
    np.testing.assert_array_equal(drawn[near > 3], pixels[near > 3])
    assert coloured.sum() > 30
    assert near[coloured].max() <= 1


def facts(percentiles, mean=0.0, deviation=1.0):
    return CaseFacts((8, 8), None, False, 0.0, [percentiles], [(mean, deviation)], [[]], {0: 64})


rising = st.lists(st.floats(-1e4, 1e4, width=32), min_size=len(LEVELS), max_size=len(LEVELS)).map(
    sorted
)


@given(
    st.lists(rising, min_size=1, max_size=4), st.sampled_from(["window", "percentiles", "zscore"])
)
def test_normalising_keeps_the_order_and_histograms_hold_every_voxel_once(curves, way) -> None:
    before = Fingerprint({str(k): {"c": facts(curve)} for k, curve in enumerate(curves)})
    after = normalised(before, Pipeline(normalise=way))
    for case in after.cases:
        assert (np.diff(case.percentiles[0]) >= 0).all()
    for known in (before, after):
        for shares in histogram(known, 0, 16).shares.values():
            assert min(shares) >= -1e-12
            assert sum(shares) <= 1 + 1e-9


def test_the_starting_study_can_be_read(two, tmp_path) -> None:
    text = starting_study(two[0])
    study = parse_study(tomllib.loads(text), "first.toml", folder=tmp_path)
    assert [run.name for run in study.runs] == ["fedavg", "fedavg-even", "n-dirichlet"]
    assert study.baseline == "fedavg"
    assert study.runs[2].method.constraint == "dirichlet"
    assert study.runs[0].task.site_names() == ["north", "south"]
    assert "# " in text


def test_the_starting_study_follows_the_list(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # where there is no ../data
    path = tmp_path / 'a "strange" \x7f näme.csv'
    lines = [f"a,{k}.png,l{k}.png,{k % 5}" for k in range(5)]
    lines += [f"b\N{BELL},{k}b.png,l{k}b.png,{k % 5}" for k in range(5)]
    path.write_text("\n".join(["site,image,label,fold", *lines]), encoding="utf-8")
    study = parse_study(tomllib.loads(starting_study(path, "../data")), "x.toml", folder=tmp_path)
    task = study.runs[0].task
    assert study.folds == (0, 1, 2, 3, 4)
    assert task.root == str(tmp_path / "../data")
    assert task.datalist == str(path)


def test_the_starting_study_finds_its_list_from_its_own_folder(two, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(two[0].parent.parent)
    near = two[0].relative_to(two[0].parent.parent)
    for folder in (None, tmp_path):
        raw = tomllib.loads(starting_study(near, folder=folder))
        task = parse_study(raw, "first.toml", folder=tmp_path).runs[0].task
        assert task.site_names() == ["north", "south"]
        assert Path(raw["base"]["task"]["datalist"]).is_absolute() == (folder is None)
