"""The public CT tasks through the command line, on look-alikes of the archives."""

import json
import shutil
import time
from pathlib import Path

import pytest

from autofedavg.experiment.folder_writer import RunFolder
from autofedavg.tasks.archives.covid import Covid
from autofedavg.tasks.archives.pancreas import Pancreas
from lookalikes_ct import ball, save_nifti, scaled, write_covid, write_pancreas, write_series

SMALL = [
    "--set", "task.cases=1", "--set", "task.pipeline.network=unet",
    "--set", "task.pipeline.channels=[4,8]", "--set", "task.pipeline.overlap=0.25",
    "--set", "training.iterations=2", "--set", "training.batch_size=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOFEDAVG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def covid(tmp_path) -> Path:
    return write_covid(tmp_path / "covid", 1)


@pytest.fixture
def pancreas(tmp_path) -> Path:
    return write_pancreas(tmp_path / "pancreas", 1)


def test_without_data_both_studies_are_valid_and_say_what_is_missing(
    say, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("AUTOFEDAVG_DATA", str(tmp_path))
    for study, task, count in (
        ("table2-covid", "covid", 199),
        ("table3-pancreas", "pancreas", 391),
    ):
        code, out, _ = say("check", study)
        assert code == 0
        assert f"in {tmp_path / task}: {count} of {count} cases are missing" in out
        assert f"`autofedavg data {task}` says which and where to get them" in out
        code, out, err = say("run", study, "--out", tmp_path / "runs")
        assert code == 3
        assert f"was found below {tmp_path / task}" in err


def test_data_says_what_to_download_under_which_licence_and_where_to_put_it(
    say, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("AUTOFEDAVG_DATA", str(tmp_path))
    code, out, err = say("data", "pancreas")
    assert code == 3
    for text in (
        "281 labelled cases", "82 labelled cases", "30 labelled cases", "CC BY-SA 4.0", "CC BY 3.0",
        "read the terms on Synapse", "Antonelli et al.", "Landman et al.",
        f"unpack below {tmp_path / 'pancreas' / 'TCIA'}",
    ):  # fmt: skip
        assert text in out
    assert "MSD: none of its 281 cases, such as imagesTr/pancreas_001.nii.gz" in err
    assert "TCIA: none of its 80 cases" in err
    assert "BTCV: none of its 30 cases" in err
    code, out, _ = say("data", "covid")
    assert code == 3
    assert "NOT the paper's" in out
    assert "199 labelled cases" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pancrea"], "'pancrea' is neither a task nor `inspect`; did you mean pancreas?"),
        (["datalist"], "data datalist: it needs a data list"),
        (["inspect"], "it needs a data list"),
        (["covid", "list.csv"], "data covid: it takes no data list"),
        (["covid", "--out", "seen"], "--out and --study belong to `data inspect`"),
        (["covid", "--set", "case=1"], "task.case is not a setting of covid; did you mean cases?"),
        (["covid", "--set", "cases=-1"], "task.cases: input should be greater than or equal to 0"),
        (["inspect", "a.csv", "--study", __file__], "the file exists already; name another file"),
    ],
)
def test_bad_usage_of_data_is_told(say, arguments, told) -> None:
    code, out, err = say("data", *arguments)
    assert code == 2
    assert told in err
    assert not out


def test_data_of_tasks_that_need_no_download(say, own_cache) -> None:
    small = ["--set", "scale=0.01", "--set", "extent=[24.0,24.0,30.0]"]
    code, out, _ = say("data", "synthetic", "--prepare", *small)
    assert code == 0
    assert out.endswith("every case is prepared\n")
    assert list(own_cache.glob("prepared/*/*/case.json"))


def test_data_verifies_what_is_there(say, covid, pancreas) -> None:
    code, out, _ = say("data", "covid", "--root", covid, "--set", "cases=1")
    assert code == 0
    for site in ("I", "II", "III"):
        assert f"{site}: 3 cases (1 train, 1 validation, 1 test), from 24 x 22 x 12" in out
    assert "note:" not in out  # scans without a label are not cases
    code, out, _ = say("data", "pancreas", "--set", f"task.root={pancreas}", "--set", "cases=1")
    assert code == 0
    assert "TCIA: 3 cases (1 train, 1 validation, 1 test), from 24 x 22 x 12" in out
    assert "left out: TCIA PANCREAS_0070, the same scan as PANCREAS_0002, withdrawn by TCIA" in out


def test_data_as_json_holds_the_same(say, covid, own_cache) -> None:
    arguments = ("data", "covid", "--root", covid, "--json", "--prepare", "--set")
    code, out, _ = say(*arguments, "cases=1")
    told = json.loads(out)
    assert code == 0
    assert (told["task"], told["prepared"], told["error"]) == ("covid", True, None)
    assert len(told["found"]) == 4
    assert len(list(own_cache.glob("prepared/*/*/case.json"))) == 9
    code, out, _ = say(*arguments, "cases=2")
    told = json.loads(out)
    assert code == 3
    assert told["prepared"] is False
    assert "I, volume-covid19-A-0011: no image volume-covid19-A-0011_ct.nii.gz" in told["error"]


def test_missing_cases_are_told_one_by_one_and_all_at_once(say, pancreas, tmp_path) -> None:
    cases = {k.site: k.case for k in Pancreas(cases=1).known() if k.split == "train"}
    msd, tcia, btcv = (cases[site] for site in ("MSD", "TCIA", "BTCV"))
    (pancreas / "MSD" / "Task07_Pancreas" / "labelsTr" / f"{msd}.nii.gz").unlink()
    series = pancreas / "TCIA" / "manifest-1" / "Pancreas-CT" / tcia
    shutil.rmtree(series)
    series.mkdir()  # the retriever leaves empty folders
    image = pancreas / "BTCV" / "RawData" / "Training" / "img" / f"{btcv}.nii.gz"
    (pancreas / "BTCV" / "elsewhere").mkdir()
    shutil.copy(image, pancreas / "BTCV" / "elsewhere")
    expected = [
        f"MSD, {msd}: no label labelsTr/{msd}.nii.gz",
        f"TCIA, {tcia}: no image {tcia}",
        f"BTCV, {btcv}: 2 images: ",
        "`autofedavg data pancreas` says what to download",
    ]
    code, _, err = say("data", "pancreas", "--root", pancreas, "--set", "cases=1")
    assert code == 3
    assert all(line in err for line in expected)
    code, _, err = say(
        "run", "table3-pancreas", *SMALL, "--set", f"task.root={pancreas}",
        "--set", "task.pipeline.roi=[16,16,16]", "--out", tmp_path / "runs",
    )  # fmt: skip
    assert code == 3
    assert all(line in err for line in expected)


def test_cases_the_split_does_not_know_are_a_note(say, covid) -> None:
    for kind in ("ct", "seg"):
        name = f"volume-covid19-A-0001_{kind}.nii.gz"
        save_nifti(covid / "Train" / name, ball(1)[kind == "seg"], scaled(0.8, 0.8, 5))
    code, out, _ = say("data", "covid", "--root", covid, "--set", "cases=1")
    assert code == 0
    assert "note: volume-covid19-A-0001 is present but not in the split, so it is not used" in out


def test_names_that_sources_disagree_on_are_both_taken(tmp_path) -> None:
    for number in ("0196", "0383_1", "0202_0"):
        for kind in ("ct", "seg"):
            name = f"volume-covid19-A-{number}_{kind}.nii.gz"
            save_nifti(tmp_path / "Train" / name, ball(1)[kind == "seg"])
    found = Covid().sources["I"].find(tmp_path)
    assert set(found) == {f"volume-covid19-A-{n}" for n in ("0196_0", "0383_1", "0202_0")}
    assert found["volume-covid19-A-0196_0"].images[0].name == "volume-covid19-A-0196_ct.nii.gz"
    told = {known.case for known in Covid(root=str(tmp_path)).lacking()}
    assert len(told) == 199 - 3


def test_a_folder_that_links_back_to_itself_is_walked_once(covid) -> None:
    (covid / "COVID-19-20_v2" / "Train" / "back").symlink_to(covid)
    (covid / "elsewhere").symlink_to(covid / "COVID-19-20_v2" / "Train")
    assert Covid(root=str(covid), cases=1).where().endswith("all 9 cases present")


@pytest.fixture
def series(pancreas) -> Path:
    """The DICOM files of a TCIA case."""
    case = next(k.case for k in Pancreas(cases=1).known() if k.site == "TCIA")
    return next((pancreas / "TCIA" / "manifest-1" / "Pancreas-CT" / case).rglob("*.dcm")).parent


def test_a_cut_off_dicom_file_is_told_by_name(say, pancreas, series) -> None:
    file = sorted(series.iterdir())[5]
    file.write_bytes(file.read_bytes()[:-200])
    code, _, err = say("data", "pancreas", "--root", pancreas, "--set", "cases=1")
    assert code == 3
    assert f"TCIA, {series.parents[1].name}: {series.parents[1]}: cannot be read" in err
    assert "not readable as DICOM: 1-006.dcm" in err


def test_a_missing_slice_is_told_by_the_headers_alone(say, pancreas, series) -> None:
    sorted(series.iterdir())[5].unlink()
    code, _, err = say("data", "pancreas", "--root", pancreas, "--set", "cases=1")
    assert code == 3
    assert "its grid is 24 x 22 x 12, the image's 24 x 22 x 11" in err


def test_a_second_series_is_told(say, pancreas, series) -> None:
    write_series(series.parent / "Scout", ball(1)[0], (2.0, 2.0, 2.5), number=4711)
    code, _, err = say("data", "pancreas", "--root", pancreas, "--set", "cases=1")
    assert code == 3
    assert "found 2 DICOM series: " in err


def test_a_header_that_is_none_is_told(say, covid) -> None:
    case = Covid(cases=1).known()[0].case
    path = covid / "COVID-19-20_v2" / "Train" / f"{case}_seg.nii.gz"
    path.write_bytes(b"<html>sign in</html>")
    code, _, err = say("data", "covid", "--root", covid, "--set", "cases=1")
    assert code == 3
    assert f"I, {case}: {path}: cannot be read" in err


def test_what_headers_do_not_show_is_told_when_files_are_read(say, covid) -> None:
    task = Covid(cases=1, root=str(covid))
    cut, strange = (covid / "COVID-19-20_v2" / "Train" / f"{task.known()[k].case}_seg.nii.gz"
                    for k in (0, 1))  # fmt: skip
    cut.write_bytes(cut.read_bytes()[:-30])
    save_nifti(strange, ball(1)[1] * 3, scaled(0.8, 0.8, 5.0))
    assert say("data", "covid", "--root", covid, "--set", "cases=1")[0] == 0
    code, out, err = say("data", "covid", "--root", covid, "--set", "cases=1", "--prepare")
    assert code == 3
    assert "every case is prepared" not in out
    assert "2 of 9 cases cannot be used" in err
    assert f"{cut}: cannot be read" in err
    assert f"{strange}: it holds 3, which the class list does not have" in err


def test_covid_from_files_to_table(say, covid, tmp_path) -> None:
    code, _, err = say(
        "run", "table2-covid", *SMALL, "--set", f"task.root={covid}",
        "--set", "task.pipeline.roi=[16,16,8]", "--set", "rounds=2", "--seeds", "0",
        "--only", "fedavg", "--only", "n-dirichlet", "--out", tmp_path / "runs",
    )  # fmt: skip
    assert code == 0, err
    home = tmp_path / "runs" / "table2-covid"
    about = json.loads((home / "n-dirichlet" / "seed-0" / "environment.json").read_text())["data"]
    assert "not the paper's hospitals; the first 1 of every site" in about["data"]
    assert about["cases"]["II"] == {"train": 1, "validation": 1, "test": 1, "holdout": 0}
    assert len(about["content_sha256"]) == len(about["split_sha256"]) == 64
    dice = [row for row in RunFolder(home / "fedavg" / "seed-0").scores() if row.metric == "dice"]
    assert {row.site for row in dice} == {"I", "II", "III"}
    code, out, _ = say("report", home)
    assert code == 0
    assert "not the paper's hospitals" in out


def test_pancreas_from_files_to_scores(say, pancreas, tmp_path) -> None:
    code, _, err = say(
        "run", "table3-pancreas", *SMALL, "--set", f"task.root={pancreas}",
        "--set", "task.pipeline.roi=[32,32,16]", "--set", "rounds=1", "--seeds", "0",
        "--only", "fedavg", "--out", tmp_path / "runs",
    )  # fmt: skip
    assert code == 0, err
    folder = tmp_path / "runs" / "table3-pancreas" / "fedavg" / "seed-0"
    about = json.loads((folder / "environment.json").read_text())["data"]
    assert "without PANCREAS_0025, PANCREAS_0070" in about["data"]
    assert set(about["cases"]) == {"MSD", "TCIA", "BTCV"}
    rows = [row for row in RunFolder(folder).scores() if row.model == "global"]
    voxels = {row.site: row.value for row in rows if row.metric == "label_voxels"}
    for site, seed in (("MSD", 1000), ("TCIA", 3000), ("BTCV", 2000)):
        case = next(k for k in Pancreas(cases=1).known() if (k.site, k.split) == (site, "test"))
        at = [k.case for k in Pancreas(cases=1).known() if k.site == site].index(case.case)
        assert voxels[site] == ball(seed + at)[1].sum()  # organs and tumours as they should count


def test_a_killed_preparation_goes_on_where_it_was(start, command, tmp_path, own_cache) -> None:
    root = write_pancreas(tmp_path / "many", 4)
    arguments = ["data", "pancreas", "--root", root, "--set", "cases=4", "--prepare"]

    def finished() -> dict[Path, tuple[int, int]]:
        made = own_cache.glob("prepared/*/[!.]*/case.json")
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in made}

    process = start(*arguments)
    while len(finished()) < 3 and process.poll() is None:
        time.sleep(0.001)
    assert process.poll() is None, process.communicate()
    process.kill()
    process.wait()
    before = finished()
    assert 3 <= len(before) < 36

    again = command(*arguments)
    assert again.returncode == 0, again.stderr
    assert again.stdout.endswith("every case is prepared\n")
    after = finished()
    assert len(after) == 36
    assert {path: after[path] for path in before} == before
