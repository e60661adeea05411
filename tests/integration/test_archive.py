"""Run folders to publish: what is kept, what a report makes of it, what is refused."""

import gzip
import json
import os
import shutil
import stat
import tomllib
import zipfile
from pathlib import Path

import pytest

from autofedavg import cli, read_study, run_study
from autofedavg.core.errors import RunError
from autofedavg.experiment.archive import archive
from autofedavg.experiment.archive_reader import as_folder
from autofedavg.experiment.config import completed
from autofedavg.experiment.folder import read_json, run_paths
from autofedavg.experiment.plain_values import plain
from autofedavg.report.build import report_tables
from autofedavg.report.formats import joined
from autofedavg.report.read import read_results
from autofedavg.report.repeats import shared_settings
from autofedavg.tasks.synthetic.task import SyntheticPipeline
from folders import write_study
from published import published


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two rows of the tiny study, in two calls as a study goes on."""
    from tests_tiny import TINY

    home = tmp_path_factory.mktemp("archived")
    (home / "tiny.toml").write_text(TINY)
    for row in ("fedavg", "n-dirichlet"):
        run_study(read_study(home / "tiny.toml", only=[row]), home / "runs")
    return home / "runs" / "tiny"


def tables(path: Path) -> str:
    made = report_tables(read_results([path]))
    return joined([*made["scores"], *made["weights"]], "text")


def test_an_archive_gives_the_same_tables_without_the_weights(runs, tmp_path, command) -> None:
    done = command("archive", runs, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [
        str(tmp_path / "tiny.zip" / row / "seed-0") for row in ("fedavg", "n-dirichlet")
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.zip"]
    assert tables(tmp_path / "tiny.zip") == tables(runs)
    assert tables(tmp_path) == tables(runs)  # a folder of archives
    assert tables(tmp_path / "tiny.zip" / "fedavg") == tables(runs / "fedavg")
    with zipfile.ZipFile(tmp_path / "tiny.zip") as packed:
        names = packed.namelist()
    kept = (
        "config.toml", "environment.json", "origins.json", "rounds.jsonl", "scores.csv",
        "status.json",
    )  # fmt: skip
    assert names == [
        "study.json",
        *(f"{row}/seed-0/{name}" for row in ("fedavg", "n-dirichlet") for name in kept),
    ]


def test_reading_leaves_nothing_behind(runs, tmp_path, command) -> None:
    archive([runs], tmp_path)
    (tmp_path / "temporary").mkdir()
    before = sorted(tmp_path.rglob("*"))
    done = command(
        "report", tmp_path / "tiny.zip", env={**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == command("report", runs).stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_of_archives_are_compared(runs, tmp_path, capsys) -> None:
    archive([runs], tmp_path)
    said = {}
    for home in (runs, tmp_path / "tiny.zip"):
        sides = (str(home / "fedavg"), str(home / "n-dirichlet" / "seed-0"))
        assert cli._main(["compare", *sides, "--json"]) == 0
        made = json.loads(capsys.readouterr().out)
        assert [made["left"].pop("folder"), made["right"].pop("folder")] == [*sides]
        said[home] = made
    assert said[runs] == said[tmp_path / "tiny.zip"]
    assert cli._main(["compare", str(tmp_path / "tiny.zip" / "x"), str(runs / "fedavg")]) == 1
    assert f"{tmp_path / 'tiny.zip' / 'x'}: no such folder" in capsys.readouterr().err


def test_runs_may_come_one_after_another(runs, tmp_path) -> None:
    assert len(archive([runs / "fedavg"], tmp_path / "slowly")) == 1
    listed = read_json(as_folder(tmp_path / "slowly" / "tiny.zip") / "study.json")
    assert [row["config"]["name"] for row in listed["runs"]] == ["fedavg"]
    assert len(archive([runs], tmp_path / "slowly")) == 1  # the other one is there
    assert archive([runs], tmp_path / "slowly") == []
    archive([runs], tmp_path / "at once")
    one, other = (tmp_path / name / "tiny.zip" for name in ("slowly", "at once"))
    assert one.read_bytes() == other.read_bytes()


def test_an_archive_can_be_archived(runs, tmp_path) -> None:
    archive([runs], tmp_path / "one")
    archive([tmp_path / "one" / "tiny.zip"], tmp_path / "two")
    one, two = (tmp_path / name / "tiny.zip" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_an_archive_of_version_0_1_is_a_folder_and_can_be_archived(runs, tmp_path) -> None:
    archive([runs], tmp_path)
    old = tmp_path / "old" / "tiny"
    shutil.copytree(as_folder(tmp_path / "tiny.zip"), old)
    for scores in old.rglob("scores.csv"):
        scores.with_name("scores.csv.gz").write_bytes(gzip.compress(scores.read_bytes()))
        scores.unlink()
    assert tables(old) == tables(runs)
    archive([old], tmp_path / "new")
    assert (tmp_path / "new" / "tiny.zip").read_bytes() == (tmp_path / "tiny.zip").read_bytes()


def test_rows_stand_as_in_the_study_whatever_came_first(tmp_path) -> None:
    from tests_tiny import TINY

    (tmp_path / "tiny.toml").write_text(TINY)
    pieces = []
    for row in ("n-dirichlet", "fedavg", "local-only"):
        study = read_study(tmp_path / "tiny.toml", only=[row])
        pieces.append(run_study(study, tmp_path / row))
        run_study(study, tmp_path / "runs")
    wanted = ["local-only", "fedavg", "n-dirichlet"]
    assert [row.name for row in read_results(pieces).rows] == wanted
    for piece in pieces:
        archive([piece], tmp_path / "out")
    for home in (tmp_path / "runs" / "tiny", tmp_path / "out" / "tiny.zip"):
        assert [row.name for row in read_results([home]).rows] == wanted


def test_a_part_of_a_study_leaves_the_order_of_the_rest_alone(tmp_path) -> None:
    """As a tuned study of a few rows does, which are added to a published one."""
    from tests_tiny import TINY

    head, *rows = TINY.split("[[run]]")
    head = head.replace('baseline = "fedavg"\n', "")

    def added(names: list[int]) -> list[str]:
        text = "[[run]]".join([head, *(rows[at] for at in names)])
        folder = tmp_path / "-".join(map(str, names))
        folder.mkdir()
        (folder / "tiny.toml").write_text(text)
        run_study(read_study(folder / "tiny.toml"), folder)
        place = tmp_path / "out" / "tiny.zip"
        known = {row.name for row in read_results([place]).rows} if place.exists() else set()
        new = (run for run in (folder / "tiny").iterdir() if run.is_dir() and run.name not in known)
        archive(sorted(new), tmp_path / "out")
        return [row.name for row in read_results([place]).rows]

    wanted = ["local-only", "fedavg", "n-dirichlet"]
    assert added([0, 2]) == [wanted[0], wanted[2]]
    assert added([0, 1]) == wanted  # after the row that it stands after
    shutil.rmtree(tmp_path / "out")
    assert added([1, 0]) == [wanted[1], wanted[0]]
    assert added([2]) == [wanted[1], wanted[0], wanted[2]]


def test_runs_of_an_older_version_leave_the_order_alone(runs, tmp_path) -> None:
    archive([runs / "n-dirichlet"], tmp_path / "out")
    order = json.loads((runs / "study.json").read_text())["rows"]
    assert len(order) > 2
    shutil.copytree(runs, tmp_path / "old" / "tiny")
    listed = tmp_path / "old" / "tiny" / "study.json"
    content = json.loads(listed.read_text())
    del content["rows"]  # as it was before rows were listed
    listed.write_text(json.dumps(content))
    archive([tmp_path / "old" / "tiny" / "fedavg"], tmp_path / "out")
    found = read_json(as_folder(tmp_path / "out" / "tiny.zip") / "study.json")
    assert [row["config"]["name"] for row in found["runs"]] == ["fedavg", "n-dirichlet"]
    assert found["rows"] == order


def test_what_cannot_be_archived(runs, tmp_path) -> None:
    shutil.copytree(runs, tmp_path / "other" / "tiny")
    taken = tmp_path / "other" / "tiny" / "fedavg" / "seed-0" / "rounds.jsonl"
    taken.write_text(taken.read_text().replace('"time": 1', '"time": 2'))
    archive([tmp_path / "other"], tmp_path)
    before = (tmp_path / "tiny.zip").read_bytes()
    with pytest.raises(RunError, match=r"another run is in the archive at .*/tiny.zip/fedavg/seed"):
        archive([runs], tmp_path)
    assert (tmp_path / "tiny.zip").read_bytes() == before
    going = tmp_path / "going" / "tiny" / "fedavg" / "seed-0"
    going.mkdir(parents=True)
    (going / "config.toml").write_text("")
    (going / "status.json").write_text('{"state": "interrupted"}')
    with pytest.raises(RunError, match="belongs to no study"):
        archive([going], tmp_path / "x")
    (tmp_path / "going" / "tiny" / "study.json").write_text('{"runs": []}')
    with pytest.raises(RunError, match="not finished, but interrupted; finish it with `autofedavg"):
        archive([going], tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_what_a_killed_call_left_is_no_run(runs, tmp_path) -> None:
    shutil.copytree(runs, tmp_path / "tiny")
    half = tmp_path / "tiny" / "fedavg" / "seed-1.part"
    half.mkdir()
    (half / "config.toml").write_text("schema = 1")
    assert tables(tmp_path / "tiny") == tables(runs)


def test_a_repeat_from_another_folder_and_an_older_version_stands_in_the_same_table() -> None:
    """Published runs must take further seeds whatever settings are new since."""
    run = published("study-lgg") / "fedavg" / "fold-0" / "seed-0"
    old = tomllib.loads((run / "config.toml").read_text())
    new = json.loads(json.dumps(old))
    new["method"]["redraw"] = 10
    new["task"] |= {"mirrored": [], "root": "/elsewhere", "datalist": "list.csv", "fold": 3}
    first, second = shared_settings([old, new])
    assert first == second
    for part, key, value in (
        ("task", "mirrored", ["DU"]), ("method", "redraw", 3), ("training", "iterations", 7),
    ):  # fmt: skip
        other = json.loads(json.dumps(new))
        other[part][key] = value
        first, second = shared_settings([old, other])
        assert first != second


def test_what_newer_versions_added_is_read_at_its_default() -> None:
    old = {"method": {"name": "auto-fedavg"}, "task": {"name": "synthetic"}}
    first, made = shared_settings([old, completed(old)])
    assert first == made
    assert (made["method"]["objective"], made["method"]["clip_steps"]) == ("even", 100.0)
    assert (made["task"]["mirrored"], made["task"]["mirrored_in"]) == ([], ["train"])
    assert (made["test_local"], made["exchange"]["retries"]) == ("auto", 1)
    assert made["task"]["pipeline"] == plain(SyntheticPipeline())
    assert (
        completed({"method": {"name": "auto-fedavg", "constraint": "softmax"}, "task": {}})[
            "method"
        ]["beta0"]
        == 0.0
    )  # a default that depends on other settings
    unknown = {"method": {"name": "x"}, "task": {"name": "y", "z": 1}}
    assert {**completed(unknown), **unknown} == completed(unknown)


def entry(name: str, kind: int = stat.S_IFREG) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr = (kind | 0o644) << 16
    return made


def many(packed: zipfile.ZipFile) -> None:
    for number in range(8):
        packed.writestr(entry(f"row/seed-{number}/config.toml"), "")


def listed_twice(packed: zipfile.ZipFile) -> None:
    packed.writestr(entry("a"), "")
    packed.writestr(entry("b"), "")
    packed.filelist[-1].filename = "a"


def encrypted(packed: zipfile.ZipFile) -> None:
    packed.writestr(entry("a"), "")
    packed.filelist[0].flag_bits |= 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda packed: packed.writestr(entry("../escaped"), "x"), "not a path inside the archive"),
        (lambda packed: packed.writestr(entry("a/../../escaped"), "x"), "not a path inside"),
        (lambda packed: packed.writestr(entry("/tmp/escaped"), "x"), "not a path inside"),
        (lambda packed: packed.writestr(entry("C:\\escaped"), "x"), "not a path inside"),
        (lambda packed: packed.writestr(entry("a//b"), "x"), "not a path inside the archive"),
        (lambda packed: packed.writestr(entry("a", stat.S_IFLNK), "/etc/passwd"), "is a link"),
        (lambda packed: packed.writestr(entry("a", stat.S_IFIFO), ""), "is a link or a device"),
        (lambda packed: (packed.writestr("a", ""), packed.writestr("a/b", "")), "and a folder"),
        (lambda packed: packed.writestr(entry("a"), bytes(2**21)), "bytes, too many to unpack"),
        (many, "it lists 9 files, more than 8"),
        (listed_twice, "listed twice"),
        (encrypted, "is encrypted"),
    ],
)
def test_an_archive_that_could_do_harm_is_refused_before_it_is_unpacked(
    tmp_path, capsys, monkeypatch, spoil, said
) -> None:
    monkeypatch.setattr("autofedavg.experiment.archive_reader.MOST_FILES", 8)
    monkeypatch.setattr("autofedavg.experiment.archive_reader.MOST_BYTES", 2**20)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = tmp_path / "study.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as packed:
        packed.writestr(entry("study.json"), '{"runs": []}')
        spoil(packed)
    for asked in (["report"], ["archive", "--out", str(tmp_path / "x")]):
        assert cli._main([asked[0], str(path), *asked[1:]]) == 1
        err = capsys.readouterr().err
        assert f"{path}: this archive cannot be read" in err
        assert said in err
        assert "fetch the archive again" in err
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {"study.zip"}


def test_a_cut_or_damaged_archive_is_refused(tmp_path, capsys) -> None:
    home = write_study(tmp_path / "study")
    archive([home], tmp_path)
    whole = (tmp_path / "study.zip").read_bytes()
    middle = bytearray(whole)
    middle[len(whole) // 2] ^= 255
    for number, content in enumerate((b"", whole[:1000], whole[:-30], bytes(middle), b"PK" * 99)):
        path = tmp_path / f"bad-{number}.zip"
        path.write_bytes(content)
        assert cli._main(["report", str(path)]) == 1
        err = capsys.readouterr().err
        assert f"{path}: this archive cannot be read" in err
        assert "fetch the archive again, or make it again with `autofedavg archive`" in err


def test_a_bomb_that_lies_about_its_size_is_not_unpacked(tmp_path) -> None:
    path = tmp_path / "study.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(entry("study.json"), bytes(2**24))
        packed.filelist[0].file_size = 100
    with pytest.raises(RunError, match="this archive cannot be read"):
        run_paths([path])


def test_errors_name_the_file_in_the_archive(tmp_path, capsys) -> None:
    home = write_study(tmp_path / "study")
    archive([home], tmp_path)
    damaged = tmp_path / "damaged.zip"
    with zipfile.ZipFile(tmp_path / "study.zip") as whole, zipfile.ZipFile(damaged, "w") as packed:
        for name in whole.namelist():
            bad = name == "fedavg/seed-0/rounds.jsonl"
            packed.writestr(name, b"{]\n" if bad else whole.read(name))
    assert cli._main(["report", str(damaged)]) == 1
    assert f"{damaged}/fedavg/seed-0/rounds.jsonl: a line is damaged" in capsys.readouterr().err


def test_an_archive_that_grows_is_read_again(tmp_path) -> None:
    home = write_study(tmp_path / "study", seeds=(0, 1))
    archive([home / "fedavg" / "seed-0"], tmp_path)
    assert len(run_paths([tmp_path / "study.zip"])) == 1
    archive([home / "fedavg"], tmp_path)
    assert len(run_paths([tmp_path / "study.zip"])) == 2


@pytest.mark.parametrize("verb", ["predict", "export-model"])
def test_an_archive_has_no_models(tmp_path, capsys, verb) -> None:
    archive([write_study(tmp_path / "study")], tmp_path)
    run = tmp_path / "study.zip" / "fedavg" / "seed-0"
    given = ["x.nii"] if verb == "predict" else []
    assert cli._main([verb, str(run), *given, "--out", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert f"{run}: an archive holds no models; name the folder of the run itself" in err
    nowhere = tmp_path / "nowhere"
    assert cli._main([verb, str(nowhere), *given, "--out", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert f"{nowhere}: no such folder; name a run folder, or a checkpoint's file in one\n" in err
