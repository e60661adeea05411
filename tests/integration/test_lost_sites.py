"""Sites and servers killed, or paused, in every phase of a run on real engines, by SIGKILL.

The run ends by itself, its score is as good as the undisturbed one's, and nothing is left behind.
"""

import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from test_engines import PACKAGES, nothing_left
from tests_tiny import TINY

from autofedavg import read_study, run_study
from autofedavg.experiment.folder import Ledger
from deployed import assert_same_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROW = """
[base.exchange]
deadline = {deadline}
deadlines = {{ update_beta = {step} }}

[[run]]
name = "auto"
method = {{ name = "auto-fedavg", S = {S}, t0 = 1 }}
"""
# Flower starts a process for every message: seconds, where FLARE needs milliseconds.
ENGINES = {
    "flare": {"deadline": 40, "step": 8, "S": 6},
    "flower": {"deadline": 120, "step": 60, "S": 3},
}


@pytest.fixture
def study(monkeypatch, engine) -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="lost-"))
    monkeypatch.setenv("TMPDIR", str(home))
    path = home / "study.toml"
    head = TINY[: TINY.index("[[run]]")].replace('baseline = "fedavg"\n', "")
    head = head.replace("rounds = 3", "rounds = 4\nquorum = 2").replace("= 2\nbatch", "= 20\nbatch")
    path.write_text(head + ROW.format(**ENGINES[engine]))
    yield path
    shutil.rmtree(home, ignore_errors=True)


class Going:
    """A supervised run of the study, and the processes of its sites."""

    def __init__(self, engine: str, start, study: Path) -> None:
        pytest.importorskip(PACKAGES[engine], reason=f"the extra `{engine}` is not installed")
        self.engine, self.home = engine, study.parent
        self.run = self.home / "runs" / "tiny" / "auto" / "seed-0"
        how = ("--engine", engine, "--out", self.home / "runs", "--supervise")
        self.process = start("run", study, *how)

    def of_site(self, site: str) -> list[psutil.Process]:
        return [p for p in psutil.process_iter() if self._is_of(p, site)]

    def _is_of(self, process: psutil.Process, site: str) -> bool:
        try:
            if self.engine == "flare":  # its daemon, or the job's process of it
                words = process.cmdline()
                return f"uid={site}" in words and any(str(self.home) in word for word in words)
            home = Path(process.environ().get("FLWR_HOME", "/")).parent
            node = home / "node.toml"
            return self.home in home.parents and f'site = "{site}"' in node.read_text()
        except (psutil.Error, OSError):
            return False

    def of_server(self) -> list[psutil.Process]:
        """The server's processes: the one that listens, and the one that runs the job."""
        found = []
        for process in psutil.process_iter():
            try:
                words = " ".join(process.cmdline())
                mine = str(self.home) in words + str(process.environ())
            except psutil.Error:
                continue
            flare = "server_train" in words or "server.runner_process" in words
            flower = "flower-superlink" in words or "flwr-serverapp" in words
            if mine and (flare if self.engine == "flare" else flower):
                found.append(process)
        return found

    def until_asked(self, what: str) -> None:
        """Waits until the logs of site II, this test's victim, say that it was asked this."""
        over = time.monotonic() + 600
        while not any(f"II: {what}" in self._said(log) for log in self._logs()):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < over
            time.sleep(0.02)

    def _logs(self) -> list[Path]:
        return [*self.home.glob("autofedavg-*/**/*.log")]

    def _said(self, log: Path) -> str:
        try:
            return log.read_text(errors="replace")
        except OSError:
            return ""

    def end(self) -> Ledger:
        _, said = self.process.communicate(timeout=1200)
        assert self.process.returncode == 0, said
        nothing_left(str(self.home))
        ledger = Ledger(self.run)
        assert ledger.status() == "finished"
        assert [line["t"] for line in ledger.rounds()] == [1, 2, 3, 4]
        return ledger


def score(path: Path) -> float:
    values = [row.value for row in Ledger(path).scores() if (row.model, row.metric) == MAIN]
    return statistics.mean(values)


MAIN = ("global", "dice")


def assert_as_good(going: Going, study: Path) -> None:
    """Not worse than undisturbed runs by more than those differ among themselves."""
    home = run_study(read_study(study, seeds=range(4)), going.home / "undisturbed")
    seeds = [score(home / "auto" / f"seed-{n}") for n in range(4)]
    spread = max(seeds) - min(seeds)
    assert score(going.run) > min(seeds) - max(spread, 0.05), seeds


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "phase", ["local_train, round 2", "share_models, round 2", "update_beta, round 2, step 3"]
)
def test_a_site_is_killed_and_rejoins(engine, phase, start, study):
    going = Going(engine, start, study)
    going.until_asked(phase)
    victims = going.of_site("II")
    assert victims
    for process in victims:
        process.kill()
    ledger = going.end()
    answered = [set(line["answered"]) for line in ledger.rounds()]
    assert "II" in answered[-1]  # it came back
    told = [event for line in ledger.rounds() for event in line["events"]]
    resumed = (going.run / "environment.json").read_text().count("after_round")
    assert any(event["site"] == "II" for event in told) or resumed
    assert_as_good(going, study)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_server_is_killed_mid_round_and_the_bits_are_the_same(engine, start, study):
    going = Going(engine, start, study)
    going.until_asked("update_beta, round 2, step 2")
    victims = going.of_server()
    assert len(victims) > 1
    for process in victims:
        process.kill()
    going.end()
    home = run_study(read_study(study), going.home / "undisturbed")
    assert_same_run(home / "auto" / "seed-0", going.run)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_site_is_paused_past_the_deadline(engine, start, study):
    going = Going(engine, start, study)
    going.until_asked("update_beta, round 2, step 2")
    paused = going.of_site("II")
    for process in paused:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(ENGINES[engine]["step"] + 6)
    for process in paused:
        if process.is_running():
            os.kill(process.pid, signal.SIGCONT)
    ledger = going.end()
    told = [event for line in ledger.rounds() for event in line["events"]]
    assert any(event["site"] == "II" and event["what"] == "lost" for event in told)
    assert_as_good(going, study)
