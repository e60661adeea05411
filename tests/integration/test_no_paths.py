"""What is given to others does not say where files lie on the machine that made it."""

import io
import json
import re
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofedavg import cli
from autofedavg.core.errors import RunError
from autofedavg.experiment.archive_reader import as_folder
from autofedavg.experiment.machine_paths import PATHS, blanked_config, tells_place, without_paths
from autofedavg.tasks import TASKS
from hospitals import build_hospitals

RESULTS = Path(__file__).parents[2] / "results"
ABSOLUTE = re.compile(
    rb"""(^|[\"' =(])/(root|home|work|tmp|usr|mnt|data|opt|var|workspace)[/\"']""", re.MULTILINE
)
SECOND = '\n[[run]]\nname = "fedavg"\nmethod = { name = "fedavg" }\n'


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Path:
    """A folder with the data of three hospitals, and two runs on it."""
    home = tmp_path_factory.mktemp("secret place")
    study, _ = build_hospitals(home)
    study.write_text(study.read_text() + SECOND)
    given = ["--set", f"task.cache={home / 'cache'}", "--out", str(home / "runs")]
    assert cli._main(["run", str(study), *given]) == 0
    told = home / "runs" / "hospitals" / "fedavg" / "seed-0" / "rounds.jsonl"
    first, *rest = told.read_text().splitlines()
    said = f"DataError: {home}/north/scan 1.png: not a picture; look into /var/log"
    event = {"call": "evaluate", "site": "north", "what": "dropped", "reason": said}
    silent = {**event, "reason": None}
    lines = [json.dumps({**json.loads(first), "events": [event, silent]}), *rest]
    told.write_text("\n".join(lines) + "\n")
    return home


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder, and every file inside those that are packed."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        yield str(path.relative_to(folder)), content
        if zipfile.is_zipfile(io.BytesIO(content)):
            with zipfile.ZipFile(path) as packed:
                for name in packed.namelist():
                    yield f"{path.name}/{name}", packed.read(name)


def refuse_places(folder: Path, machine: Path) -> None:
    places = [str(place).encode() for place in (machine, machine.name, sys.prefix, Path.home())]
    found = list(contents(folder))
    assert found
    for name, content in found:
        assert not any(place in content for place in places), name
        if name.endswith((".toml", ".json", ".jsonl", ".csv", ".md", ".txt", ".tex")):
            assert not ABSOLUTE.search(content), name


def test_an_archive(machine, tmp_path, capsys) -> None:
    runs = machine / "runs" / "hospitals"
    assert cli._main(["archive", str(runs), "--out", str(tmp_path)]) == 0
    refuse_places(tmp_path, machine)
    kept = as_folder(tmp_path / "hospitals.zip" / "fedavg" / "seed-0")
    before, after = (
        tomllib.loads((folder / "config.toml").read_text())
        for folder in (runs / "fedavg" / "seed-0", kept)
    )
    assert Path(before["task"]["datalist"]).is_absolute()
    assert after["task"] == {**before["task"], **dict.fromkeys(PATHS, "")}
    assert {**after, "task": 0} == {**before, "task": 0}
    assert '"  # study\n' in (kept / "config.toml").read_text()  # origins stay
    events = json.loads((kept / "rounds.jsonl").read_text().splitlines()[0])["events"]
    said = [event["reason"] for event in events]
    assert said == ["DataError: scan 1.png: not a picture; look into log", None]
    assert not (kept / "log.txt").exists()
    capsys.readouterr()
    assert cli._main(["archive", str(runs), "--out", str(tmp_path)]) == 0  # known, and the same
    assert capsys.readouterr().out == ""
    assert cli._main(["report", str(tmp_path)]) == 0


def test_a_page_also_where_its_pictures_cannot_be_drawn(machine, tmp_path) -> None:
    runs = machine / "runs" / "hospitals"
    assert cli._main(["report", str(runs), "--out", str(tmp_path / "drawn")]) == 0
    refuse_places(tmp_path / "drawn", machine)
    table = (tmp_path / "drawn" / "tables" / "runs.csv").read_text()
    assert "hospitals/fedavg/seed-0" in table
    shutil.copytree(runs, tmp_path / "hospitals")
    for config in (tmp_path / "hospitals").rglob("config.toml"):
        config.write_text(config.read_text().replace("all/list.csv", "all/lost.csv"))
    assert cli._main(["report", str(tmp_path / "hospitals"), "--out", str(tmp_path / "not")]) == 0
    assert "lost.csv" in (tmp_path / "not" / "index.html").read_text()  # it does say what is wrong
    refuse_places(tmp_path / "not", machine)


@pytest.mark.parametrize("format", ["torchscript", "onnx"])
def test_an_exported_model(machine, tmp_path, format) -> None:
    run = machine / "runs" / "hospitals" / "auto-fedavg" / "seed-0"
    given = ["--format", format, "--out", str(tmp_path)]
    assert cli._main(["export-model", str(run), *given]) == 0
    refuse_places(tmp_path, machine)
    said = json.loads((tmp_path / "preprocessing.json").read_text())["provenance"]["run"]
    assert said == "hospitals/auto-fedavg/seed-0"


def test_the_published_results() -> None:
    published = [
        path
        for archive in RESULTS.glob("*.zip")
        for path in as_folder(archive).rglob("*")
        if path.is_file() and path.name != "scores.csv"
    ]
    assert len(published) > 1000
    assert not [path for path in published if ABSOLUTE.search(path.read_bytes())]
    assert not [path for path in published if path.name == "log.txt"]


def test_every_path_of_every_task_is_known() -> None:
    for name in TASKS:
        assert {*TASKS[name].paths} <= {*PATHS}


def test_what_tells_a_place() -> None:
    assert tells_place("task.datalist", "list.csv")
    assert tells_place("task.reader.folder", "/a")
    assert tells_place("task.folder", "~/a")
    assert not tells_place("task.cache", "")
    assert not tells_place("task.name", "a/b")
    assert not tells_place("label", "/ as in slash")
    assert not tells_place("task.fold", 3)


def test_a_config_that_was_changed_by_hand_is_left_as_it_is_or_refused() -> None:
    path = Path("config.toml")
    free = "name = 'x'\n[task]\nname = 'made up'  # mine\n"
    assert blanked_config(free, path) == free
    with pytest.raises(RunError, match=r"config.toml: its paths cannot be left out.*double quotes"):
        blanked_config("[task]\nroot = '/a'\n", path)
    with pytest.raises(RunError, match="cannot be read"):
        blanked_config("[task", path)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("/tmp/a b/c d.nii: bad", "c d.nii: bad"),
        ("see ~/z/q and ~me/u/v (at /r/)", "see q and v (at r)"),
        ("'/root/p' is \"/root/q r/s\"", "'p' is \"s\""),
        ("/a/b differs from /c/d", "b differs from d"),
        ("x / y, http://a/b, a/b", "x / y, http://a/b, a/b"),
    ],
)
def test_paths_in_sentences(said, shown) -> None:
    assert without_paths(said) == shown
