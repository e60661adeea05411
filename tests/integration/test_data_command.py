"""`autofedavg data inspect`, through the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autofedavg import cli, read_study


@pytest.fixture
def listing(tmp_path) -> Path:
    """Three sites of four colour pictures in a folder with spaces and accents."""
    home = tmp_path / "données d'images"
    home.mkdir()
    draw = np.random.default_rng(0)
    rows = ["site,image,label"]
    for number in range(12):
        label = np.zeros((20, 24), np.uint8)
        label[5:12, 4:11] = 255
        colours = draw.integers(0, 90, (20, 24, 3)) + 100 * (label > 0)[..., None]
        Image.fromarray(colours.astype(np.uint8)).save(home / f"{number}.png")
        Image.fromarray(label).save(home / f"{number} label.png")
        rows.append(f"hôpital {number % 3},{number}.png,{number} label.png")
    path = home / "list.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def test_inspect_prints_draws_and_writes_a_study_that_is_valid(listing, tmp_path, capsys) -> None:
    out, study = tmp_path / "seen", tmp_path / "studies" / "first.toml"
    code = cli._main(
        ["data", "inspect", str(listing), "--out", str(out), "--study", str(study)]
    )  # fmt: skip
    printed = capsys.readouterr()
    assert code == 0
    for site in ("hôpital 0", "hôpital 1", "hôpital 2", "Shift between sites"):
        assert site in printed.out
    assert (out / "inspection.html").stat().st_size > 1000
    assert f"written: {study}" in printed.err
    assert [run.name for run in read_study(study).runs] == ["fedavg", "fedavg-even", "n-dirichlet"]
    assert cli._main(["check", str(study)]) == 0
    checked = capsys.readouterr().out
    assert "task.image_channels  " in checked.replace(
        "task.image_channels ", "task.image_channels  "
    )
    assert "auto" not in {line.split()[1] for line in checked.splitlines() if "pipeline." in line}
    assert cli._main(["data", "inspect", str(listing), "--study", str(study)]) == 2
    assert "the file exists already" in capsys.readouterr().err


def test_inspect_speaks_json_and_tells_every_bad_case(listing, capsys) -> None:
    assert cli._main(["data", "inspect", str(listing), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    for number in (3, 7):
        path = listing.parent / f"{number}.png"
        path.write_bytes(path.read_bytes()[:60])
    assert cli._main(["data", "inspect", str(listing)]) == 3
    err = capsys.readouterr().err
    assert "2 of 12 cases cannot be used" in err
    assert "3.png: cannot be read" in err
    assert "7.png: cannot be read" in err


def test_a_list_is_verified_and_every_missing_file_is_told(listing, capsys) -> None:
    assert cli._main(["data", "datalist", str(listing), "--prepare"]) == 0
    out = capsys.readouterr().out
    assert "all files present" in out
    assert "hôpital 1: 2 train, 1 validation, 1 test" in out
    assert "every case is prepared" in out
    for name in ("3.png", "7 label.png"):
        (listing.parent / name).unlink()
    assert cli._main(["data", "datalist", str(listing)]) == 3
    err = capsys.readouterr().err
    assert "2 files are missing" in err
    assert "3.png" in err
    assert "7 label.png" in err


def test_a_list_is_verified_by_its_contents_as_well(listing, capsys) -> None:
    assert cli._main(["data", "datalist", str(listing)]) == 0
    out = capsys.readouterr().out
    assert f"Data list {listing}: 12 cases (hôpital 0 4, hôpital 1 4, hôpital 2 4)" in out
    assert out.count("all files present and readable") == 1
    image = listing.parent / "3.png"
    image.write_bytes(image.read_bytes()[:60])
    Image.new("L", (5, 5)).save(listing.parent / "7 label.png")
    assert cli._main(["data", "datalist", str(listing)]) == 3
    err = capsys.readouterr().err
    assert "2 of 12 cases cannot be used" in err
    assert "3.png: cannot be read" in err
    assert "7 label.png" in err


def test_an_image_that_was_given_as_a_label_is_told(listing, capsys) -> None:
    shades = np.arange(20 * 24, dtype=np.uint8).reshape(20, 24) % 41
    Image.fromarray(shades).save(listing.parent / "3 label.png")
    assert cli._main(["data", "datalist", str(listing)]) == 3
    err = capsys.readouterr().err
    assert "the labels hold 41 different values, most in hôpital 0/3 (41)" in err
    assert "check that these are labels, not images" in err
    assert cli._main(["data", "datalist", str(listing), "--set", "classes={disc=[255]}"]) == 3
    err = capsys.readouterr().err
    assert "hôpital 0/3: its label holds 1, 2, 3, 4, 5, ..." in err
    Image.new("L", (24, 20)).save(listing.parent / "3 label.png")
    assert cli._main(["data", "datalist", str(listing), "--set", "classes={disc=[255]}"]) == 0


def test_a_site_without_any_of_its_files_takes_one_line(listing, capsys) -> None:
    for number in (0, 3, 6, 9):
        (listing.parent / f"{number}.png").unlink()
        (listing.parent / f"{number} label.png").unlink()
    (listing.parent / "4.png").unlink()
    for verb in ("datalist", "inspect"):
        assert cli._main(["data", verb, str(listing)]) == 3
        _, *lines, last = capsys.readouterr().err.strip().splitlines()
        assert lines == [
            f"  hôpital 0: none of its 8 files is in {listing.parent}",
            f"  hôpital 1, 4: {listing.parent / '4.png'}",
        ]
        assert last == "put them there, or set task.root to the folder the list's paths begin at"


def test_a_list_where_there_is_none_and_none_where_it_is_needed(listing, capsys) -> None:
    assert cli._main(["data", "inspect"]) == 2
    assert (
        "it needs a data list; e.g. autofedavg data datalist LIST, or autofedavg data inspect"
        in (" ".join(capsys.readouterr().err.split()))
    )
    assert cli._main(["data", "cifar10", str(listing)]) == 2
    assert "leave the list out: autofedavg data cifar10" in capsys.readouterr().err


def test_a_study_that_cannot_be_written_is_told(listing, tmp_path, capsys) -> None:
    (tmp_path / "file").touch()
    study = tmp_path / "file" / "first.toml"
    assert cli._main(["data", "inspect", str(listing), "--study", str(study)]) == 3
    assert (
        "the study cannot be written: File exists; name a file in a folder"
        in capsys.readouterr().err
    )
