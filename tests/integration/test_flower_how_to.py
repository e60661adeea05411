"""docs/how-to/flower.md, done as written: three hospitals with their own data, TLS and keys."""

import subprocess
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from autofedavg.engines.flower.certificates import make_certificate
from autofedavg.engines.remote.processes import free_port
from autofedavg.experiment.folder import Ledger
from hospitals import CANARY, SITES, build_hospitals
from pages import Page


@pytest.fixture
def reader(tmp_path):
    """Somebody who follows the page; ends what the page started, whatever happened."""
    study, files = build_hospitals(tmp_path / "world")
    words = {
        "fl.example.org": "localhost",
        "0.0.0.0": "127.0.0.1",
        "9092": str(free_port()),
        "study.toml": str(study),
    }
    variables = {
        "HOME": str(tmp_path),
        "AUTOFEDAVG_CACHE": str(tmp_path / "cache"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    page = Page("flower.md", words, tmp_path, variables)
    page.files = files
    yield page
    for process in of_reader(tmp_path):
        process.kill()


def of_reader(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("HOME") == str(folder)
        except psutil.Error:
            continue
        if mine:
            found.append(process)
    return found


def listens(port: str) -> None:
    until = time.monotonic() + 60
    while not any(c.laddr.port == int(port) for c in psutil.net_connections() if c.laddr):
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_from_nothing_to_a_finished_run_of_three_hospitals(reader, tmp_path):
    reader.do("certificates")
    reader.do("server")
    listens(reader.words["9092"])
    for site in SITES:
        reader.do("key", SITE=site, DATA=str(reader.files[site].parent))
    reader.do("register")
    for site in SITES:
        reader.do("site", **{"SITE": site, "9094": str(free_port())})
    told = reader.do("submit")
    run = Ledger(tmp_path / "server/runs/hospitals/auto-fedavg/seed-0")
    assert run.status() == "finished", told
    assert {score.site for score in run.scores()} == set(SITES)
    for file in (tmp_path / "server").rglob("*"):  # all that the server has, its database too
        assert CANARY not in file.name
        assert not file.is_file() or CANARY.encode() not in file.read_bytes(), file


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_stranger_and_plain_text_are_refused(reader, tmp_path):
    reader.do("certificates")
    reader.do("server")
    listens(reader.words["9092"])
    reader.do("key", SITE="north", DATA="nowhere")
    address = f"localhost:{reader.words['9092']}"
    tool = Path(reader.variables["PATH"].split(":")[0]) / "flower-supernode"
    trusted = ["--root-certificates", str(tmp_path / "server/ca.pem")]
    key = ["--auth-supernode-private-key", str(tmp_path / "north/north")]
    stranger = {**reader.variables, "FLWR_HOME": str(tmp_path / "stranger")}

    said = tmp_path / "said.txt"

    def knock(how: list[str], seconds: float) -> int:
        # Into a file: its executor outlives it for a while, and would hold a pipe open.
        with said.open("w") as out:
            args = [tool, "--superlink", address, "--port", str(free_port()), "--max-retries", "1"]
            process = subprocess.Popen([*args, *how], env=stranger, stdout=out, stderr=out)
            try:
                return process.wait(seconds)
            finally:
                process.kill()
                process.wait()

    foreign = make_authority(tmp_path / "foreign")
    for how in (
        [*trusted, *key],  # not registered
        trusted,  # no key
        ["--insecure"],  # no TLS
        ["--root-certificates", str(foreign), *key],  # a server that its authority does not know
    ):
        assert knock(how, 100) != 0, said.read_text()
        assert "unrecognized arguments" not in said.read_text()
    for site in SITES[1:]:
        reader.do("key", SITE=site, DATA="nowhere")
    reader.do("register")
    with pytest.raises(subprocess.TimeoutExpired):  # the same command, and it stays
        knock([*trusted, *key], 20)


def make_authority(folder: Path) -> Path:
    folder.mkdir()
    return make_certificate(folder, "127.0.0.1")
