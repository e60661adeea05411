"""Run folders that hold anything at all: every command says which file, and goes on with others."""

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from autofedavg import cli
from autofedavg.core.errors import RunError
from autofedavg.experiment import files as bounded
from autofedavg.experiment.archive_reader import as_folder
from autofedavg.experiment.folder import Ledger, Rounds, read_json
from autofedavg.experiment.folder_schema import SHAPES, check
from autofedavg.monitor.serve.renderer import Renderer, build_report
from autofedavg.monitor.watch.changes import find
from folders import model_file, write_study

DEEP = 100_000
Spoil = Callable[[Path], None]


def text(content: str | bytes) -> Spoil:
    raw = content if isinstance(content, bytes) else content.encode()
    return lambda path: path.write_bytes(raw) and None


def deep(path: Path) -> None:
    path.write_text('{"a":' * DEEP + "1" + "}" * DEEP + "\n")


def deep_but_parsed(path: Path) -> None:
    """Deep enough to end Python's stack later, and not where it is parsed."""
    path.write_text('{"a":' * 300 + "1" + "}" * 300 + "\n")


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def large(path: Path) -> None:
    with path.open("wb") as handle:
        handle.truncate(2**40)


def values(**changes) -> Spoil:
    """A JSON file with some values that no run writes; 1e999 is written as such."""

    def spoil(path: Path) -> None:
        content = json.loads(path.read_text())
        for key, value in changes.items():
            *above, last = key.split("__")
            place = content
            for name in above:
                place = place[name]
            place[last] = value
        path.write_text(json.dumps(content).replace("Infinity", "1e999"))

    return spoil


def line(**changes) -> Spoil:
    """The same for the second round."""

    def spoil(path: Path) -> None:
        lines = path.read_text().splitlines()
        lines[1] = json.dumps({**json.loads(lines[1]), **changes})
        path.write_text("\n".join(lines).replace("Infinity", "1e999") + "\n")

    return spoil


def setting(old: str, new: str) -> Spoil:
    return lambda path: path.write_text(path.read_text().replace(old, new)) and None


def packed(make: Callable[[bytes], bytes]) -> Spoil:
    """Scores as an archive has them, spoilt."""

    def spoil(path: Path) -> None:
        plain = path.with_name("scores.csv")
        path.write_bytes(make(gzip.compress(plain.read_bytes())))
        plain.unlink()

    return spoil


INF, HEAD = float("inf"), "model,site,split,case,metric,value\n"
ANY_FILE = {"deep": deep, "device": device, "pipe": pipe, "folder": folder, "large": large}
HOSTILE: dict[str, dict[str, Spoil]] = {
    "status.json": {
        **ANY_FILE, "list": text("[]"), "bytes": text(b"\xff\xfe{"), "half": text('{"sta'),
        "schema": values(schema="one"), "state": values(state=["finished"]),
    },
    "environment.json": {
        **ANY_FILE, "still deep": deep_but_parsed, "endless seed": values(seed=INF),
        "no data": values(data=None), "cases": values(data__cases=[]),
        "count": values(data__cases={"A": {"train": "many"}}), "versions": values(versions=3),
        "resumed": values(resumed=[3]), "name": values(data__data={}), "folds": values(folds="1"),
    },
    "origins.json": {
        **ANY_FILE, "list": text("[]"), "empty": text("{}"),
        "values": text('{"origins": {"a": 1}}'),
    },
    "config.toml": {
        **ANY_FILE, "arrays": text("a = " + "[" * DEEP + "]" * DEEP), "not TOML": text("{"),
        "tables": text("[" + ".".join(["a"] * 2000) + "]\nx = 1\n"),
        "task": setting('[task]\nname = "made-up"', "task = 3\n[other]\nx = 1"),
        "fold": setting('"made-up"', '"made-up"\nfold = "first"'),
        "rounds": setting("rounds = 5", 'rounds = "five"'),
        "no name": setting('name = "fedavg"', "x = 1"),
    },
    "rounds.jsonl": {
        **ANY_FILE, "still deep": deep_but_parsed, "no JSON": text("{}\nno\n"),
        "list": text("[1]\n"), "no round": text("{}\n"), "t": line(t=INF), "half": line(t=1.5),
        "time": line(time=INF), "huge time": line(time=10**400), "calls": line(calls=[]),
        "cost": line(calls={"evaluate": 3}), "bytes": line(bytes_up="1"), "alpha": line(alpha="x"),
        "weights": line(alpha=[[["x"]]]), "loss": line(loss=[1]), "scores": line(validation=3),
        "answered": line(answered=3), "events": line(events=[3]),
        "event": line(events=[{"site": "A"}]), "learning": line(learning_loss={"A": 3}),
        "absurd": line(loss={"A": 1.7e308}), "local": line(validation_local=3),
        "test": line(test=[]),
    },
    "scores.csv": {
        **{name: ANY_FILE[name] for name in ("device", "pipe", "folder", "large")},
        "long": text(HEAD + "global,A,test," + "x" * 200_000 + ",d,1"),
        "short": text(HEAD + "global,A\n"),
        "heads": text("a,b\n1,2\n"), "absurd": text(HEAD + "global,A,test,c,dice,1.7e308\n"),
        "number": text(HEAD + "global,A,test,c,dice,x\n"),
        "bytes": text(b"model,site,split,case,metric,value\n\xff\xff"),
        "endless": text(HEAD + "global,A,test,c,dice,1e999\n"),
    },
    "scores.csv.gz": {
        "cut": packed(lambda content: content[: len(content) // 2]),
        "no gzip": packed(lambda content: b"PK\3\4"), "empty": packed(lambda content: b""),
        "flipped": packed(lambda content: content[:40] + bytes([content[40] ^ 255]) + content[41:]),
    },
}  # fmt: skip
TABLE = [(name, kind) for name, kinds in HOSTILE.items() for kind in kinds]
NOT_WATCHED = ("origins.json", "scores.csv", "scores.csv.gz")


@pytest.fixture
def home(tmp_path) -> Path:
    return write_study(tmp_path / "study", sites=("A", "B"), cases=3)


def told(capsys, *arguments: object) -> tuple[int, str, str]:
    code = cli._main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(("name", "kind"), TABLE, ids=[f"{n}-{k}" for n, k in TABLE])
def test_every_command_names_the_file(home, tmp_path, capsys, name, kind) -> None:
    run, other = home / "fedavg" / "seed-0", home / "n-dirichlet" / "seed-0"
    HOSTILE[name][kind](run / name)
    asked = [("report", home), ("report", run, "--format", "json"), ("compare", run, other)]
    if (name, kind) != ("rounds.jsonl", "absurd"):  # a loss may be, and is kept and shown
        asked.append(("archive", home, "--out", tmp_path / "archive"))
    watched = name not in NOT_WATCHED and kind != "absurd"
    if watched:
        asked += [("watch", "--once", run), ("watch", "--json", run)]
    for arguments in asked:
        code, _, err = told(capsys, *arguments)
        assert code == 1, arguments
        assert err.startswith("error: "), (arguments, err)
        assert str(run) in err
        assert len(err) < 2000
    assert not list((tmp_path / "archive").rglob("*"))
    # Of several runs, the others are shown.
    code, out, _ = told(capsys, "watch", "--once", home)
    assert code == 0
    assert "LOCAL-ONLY" in out
    assert ("damaged" in out) == watched
    find([home])


@pytest.mark.parametrize("name", HOSTILE)
def test_serve_shows_the_others(home, name) -> None:
    """The page is made of the runs that can be read, and says what it leaves out."""
    run = home / "fedavg" / "seed-0"
    whole = run.rename(home.parent / "whole")
    for number, spoil in enumerate(HOSTILE[name].values()):
        if number % 5:  # a page takes a second
            continue
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        spoil(run / name)
        said: list[str] = []
        renderer = Renderer([home], build_report, warn=said.append)
        renderer.update()
        page = renderer.current.page.decode()
        assert renderer.current.problem.startswith("runs are left out: study/fedavg/seed-0: ")
        assert said == [f"the page is not up to date: {renderer.current.problem}"]
        assert "N-DIRICHLET" in page
        assert "Left out: study/fedavg/seed-0: " in page
        assert str(home) not in page


STUDIES = {
    "deep": deep, "list": text("[]"), "runs": values(runs=3), "row": values(runs=[3]),
    "jobs": values(runs=[{"config": {"name": "fedavg"}, "jobs": None}]),
    "job": values(runs=[{"config": {"name": "fedavg"}, "jobs": [[None, "x"]]}]),
    "config": values(runs=[{"config": [], "jobs": []}]), "rows": values(rows={"a": 1}),
    "title": values(title=[]), "none": text("{}"), "device": device, "pipe": pipe,
}  # fmt: skip


@pytest.mark.parametrize("kind", STUDIES)
def test_a_damaged_study_file(home, tmp_path, capsys, kind) -> None:
    STUDIES[kind](home / "study.json")
    asked = [("report", home), ("watch", "--once", home), ("resume", home),
             ("archive", home, "--out", tmp_path / "x")]  # fmt: skip
    for arguments in asked:
        code, _, err = told(capsys, *arguments)
        assert code == 1, arguments
        assert err.startswith("error: "), (arguments, err)
        assert "study" in err
    renderer = Renderer([home], build_report)
    renderer.update()
    assert "N-DIRICHLET" in renderer.current.page.decode()


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("rounds.jsonl", text("no\n")), ("rounds.jsonl", deep_but_parsed),
        ("environment.json", deep), ("environment.json", values(seed=INF)), ("config.toml", device),
        ("checkpoints/last-3.json", values(best=3)), ("checkpoints/last-3.json", values(network=3)),
        ("checkpoints/last-3.json", values(t="x")),
        ("checkpoints/last-3.json", values(best__local={"I": 3})),
    ],
)  # fmt: skip
def test_resume_names_the_file(tiny_home, tmp_path, capsys, name, spoil) -> None:
    run = tmp_path / "tiny" / "fedavg" / "seed-0"
    shutil.copytree(tiny_home / "fedavg" / "seed-0", run)
    (run / "status.json").write_text('{"state": "running"}')
    spoil(run / name)
    code, _, err = told(capsys, "resume", run)
    assert code == 1
    assert str(run) in err.splitlines()[-1]


@pytest.mark.parametrize(
    "spoil",
    [deep, device, pipe, text("[]"), values(form=[3]), values(sites=3), values(sha256=3),
     values(form={"widths": "x", "frozen": {}})],
)  # fmt: skip
def test_predict_and_export_name_the_model(tiny_home, tmp_path, capsys, spoil) -> None:
    run = tmp_path / "fedavg" / "seed-0"
    shutil.copytree(tiny_home / "fedavg" / "seed-0", run)
    file = model_file(run)
    spoil(file)
    for verb, more in (("predict", [tmp_path / "a.nii.gz"]), ("export-model", [])):
        code, _, err = told(capsys, verb, run, *more, "--out", tmp_path / verb)
        assert code == 1, err
        assert str(file.with_suffix("")) in err


def test_a_bomb_is_not_unpacked() -> None:
    packed = zlib.compressobj(9, wbits=31)
    bomb = packed.compress(bytes(2**24)) + packed.flush()
    with pytest.raises(ValueError, match="too much, unpacked"):
        bounded.unpacked(bomb, 2**20)
    assert len(bounded.unpacked(bomb, 2**24)) == 2**24


def test_what_grows_while_it_is_read_is_read_as_far_as_it_was(tmp_path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"t": 1}\n{"t"')
    rounds = Rounds(path)
    assert [one["t"] for one in rounds.look()] == [1]
    with path.open("a") as handle:
        handle.write(": 2}\n")
    assert [one["t"] for one in rounds.look()] == [1, 2]
    assert Ledger(tmp_path).rounds() == rounds.look()


def test_every_published_file_is_of_the_shape() -> None:
    archives = (Path(__file__).parents[2] / "results").glob("*.zip")
    found = [path for archive in archives for path in as_folder(archive).rglob("*")]
    found = [path for path in found if path.is_file()]
    sometimes = {"origins.json", "ceiling.json", "scores.csv"}
    assert {path.name for path in found} - sometimes == {*SHAPES} - sometimes
    for path in found:
        if path.name in ("environment.json", "study.json"):
            read_json(path)
    with pytest.raises(ValueError, match="'t' is missing"):
        check({}, "rounds.jsonl")
    with pytest.raises(RunError, match="not a plain file"):
        read_json(Path("/dev/null"))
