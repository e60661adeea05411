"""docs/how-to/flare.md, done as written: three hospitals with their own data, over mutual TLS."""

import re
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare", reason="the extra `flare` is not installed")

from autofedavg.engines.remote.processes import free_port
from autofedavg.experiment.folder import Ledger
from folders import model_file
from hospitals import CANARY, SITES, build_hospitals
from pages import Page


def started_from(folder: Path) -> list[psutil.Process]:
    """Processes that have to do with a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Somebody who follows the page; ends what the page started, whatever happened."""
    (tmp_path / "home").mkdir()
    study, files = build_hospitals(tmp_path / "world")
    words = {"fl.example.org": "localhost", "8002": str(free_port()), "study.toml": str(study)}
    variables = {"HOME": str(tmp_path / "home"), "AUTOFEDAVG_CACHE": str(tmp_path / "cache")}
    page = Page("flare.md", words, tmp_path, variables)
    page.files = files
    yield page
    for process in started_from(tmp_path / "kits"):
        process.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_from_nothing_to_a_finished_run_of_three_hospitals(reader, tmp_path):
    (tmp_path / "project.yml").write_text(reader.text("project.yml"))
    assert all(site in reader.do("provision") for site in SITES)
    reader.do("server")
    for site in SITES:
        reader.do("site", SITE=site, DATA=str(reader.files[site].parent))
    printed = until(lambda: reader.do("submit"), tmp_path / "job")
    (number,) = set(re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", printed))
    listed = reader.do("fetch", JOB=number)
    assert "FINISHED:COMPLETED" in listed
    (config,) = (tmp_path / "result").rglob("config.toml")
    run = Ledger(config.parent)
    assert run.status() == "finished"
    assert {score.site for score in run.scores()} == set(SITES)
    assert model_file(config.parent, ending="safetensors").exists()
    for file in (tmp_path / "result").rglob("*"):  # what an administrator of the project sees
        assert CANARY not in file.name
        assert not file.is_file() or CANARY.encode() not in file.read_bytes(), file
    server_log = (tmp_path / "kits/consortium/prod_00/localhost/log.txt").read_text()
    assert CANARY not in server_log
    reader.do("end")
    gone = time.monotonic() + 60
    while left := started_from(tmp_path / "kits"):
        assert time.monotonic() < gone, [process.cmdline() for process in left]
        time.sleep(0.5)


def until(do, leftover: Path, patience: float = 90.0) -> str:
    """Does it again while the server is still starting."""
    over = time.monotonic() + patience
    while True:
        try:
            return do()
        except AssertionError:
            if time.monotonic() > over:
                raise
            for file in sorted(leftover.rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()
            if leftover.exists():
                leftover.rmdir()
            time.sleep(2)
