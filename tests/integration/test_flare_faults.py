"""What FLARE makes of lost sites and servers, and of strangers; real processes, mutual TLS."""

import datetime
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

pytest.importorskip("nvflare", reason="the extra `flare` is not installed")

from tests_tiny import TINY

import flare_probe
from autofedavg import read_study
from autofedavg.engines.flare.export import CONTROLLER, export
from autofedavg.engines.flare.loopback import HOST, Loopback, provision
from deployed import job_of

pytestmark = pytest.mark.slow  # real processes, a minute and more

SITES = ("I", "II", "III")
ALL_WELL = dict.fromkeys(SITES, "ok")
KINDS = ["WEIGHTS"]
PREPARE = [["local_train", 8, 1], ["hello", 3, 1]]


class Probed:
    """A federation whose server asks what a test says and writes down what it was told."""

    def __init__(self, home: Path) -> None:
        (home / "tiny.toml").write_text(TINY)
        self.job = job_of(read_study(home / "tiny.toml"), "n-dirichlet")
        self.home, self.runs, self.jobs = home, home / "runs", 0
        self.runs.mkdir()
        self.flare = Loopback(SITES, {}, self.runs, home / "scratch")
        allowed = self.flare.kits / HOST / "local" / "resources.json"
        allowed.write_text(allowed.read_text().replace(CONTROLLER, flare_probe.PATH))

    def lines(self) -> list[dict]:
        told = self.runs / "probed.jsonl"
        return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []

    def ask(self, asks: list, after: int = 0, then=lambda: None) -> tuple[str, list[dict]]:
        """Runs a job of these questions; `then` is done after so many answers."""
        (self.runs / "probed.jsonl").unlink(missing_ok=True)
        (self.runs / "probe.json").write_text(json.dumps(asks))
        self.jobs += 1
        folder = export(self.job, self.home / f"job-{self.jobs}")
        config = folder / "app" / "config" / "config_fed_server.json"
        config.write_text(config.read_text().replace(CONTROLLER, flare_probe.PATH))
        done: list[float] = []

        def tick() -> None:
            if not done and after and len(self.lines()) >= after:
                done.append(time.monotonic())
                then()

        status = self.flare.run_folder(folder, tick)
        return status, self.lines()

    def worker(self, site: str) -> int:
        """The process of the site's part of the job."""
        return psutil.Process(self.flare.pid(site)).children()[0].pid


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        here = Path(__file__).parents[1]
        patch.setenv("PYTHONPATH", f"{here.parent / 'src'}{os.pathsep}{here}")
        federation = Probed(tmp_path_factory.mktemp("probed"))
        with federation.flare:
            yield federation


def test_a_paused_site_is_lost_at_the_deadline_and_not_a_moment_later(probed):
    def pause() -> None:
        paused = probed.worker("II")
        os.kill(paused, signal.SIGSTOP)
        threading.Timer(9, os.kill, (paused, signal.SIGCONT)).start()

    asks = [["local_train", 4, 1], ["hello", 2, 1], ["waiting", 0, 1], ["sleep", 3, 1]]
    status, lines = probed.ask(
        [*PREPARE, ["sleep", 1, 1], *asks, ["local_train", 20, 1], ["hello", 5, 1]],
        after=2,
        then=pause,
    )
    task, message, waiting, _, back, again = lines[3:]
    assert task["answers"]["II"].startswith("lost: ")
    assert task["seconds"] == pytest.approx(4, abs=1)
    assert message["answers"]["II"].startswith("lost: ")
    assert message["seconds"] == pytest.approx(2, abs=1)
    assert {task["answers"]["I"], message["answers"]["III"]} == {"ok"}
    assert waiting["waiting"] == []  # it is in the job, only slow
    assert back["answers"] == again["answers"] == ALL_WELL
    assert status == "FINISHED:COMPLETED"


def test_a_site_that_died_and_came_back_is_lost_to_the_job_and_waits_for_a_new_one(probed):
    asks = [["sleep", 8, 1], ["local_train", None, 1], ["hello", 5, 1], ["waiting", 0, 1]]
    status, lines = probed.ask(
        [*PREPARE, *asks], after=2, then=lambda: os.kill(probed.flare.pid("II"), signal.SIGKILL)
    )
    task, message, waiting = lines[3:]
    assert task["answers"] == {**ALL_WELL, "II": "lost: its part of the job has ended"}
    assert task["seconds"] < 15
    assert message["answers"]["II"].startswith("lost: ")
    assert waiting["waiting"] == ["II"]
    assert status.startswith("FINISHED")
    status, lines = probed.ask([*PREPARE, ["waiting", 0, 1]])
    assert [line.get("answers", line.get("waiting")) for line in lines] == [ALL_WELL, ALL_WELL, []]


def test_a_site_s_dead_worker_ends_the_job_and_a_new_one_has_all_sites(probed):
    status, _ = probed.ask(
        [["local_train", 8, 500]], after=2, then=lambda: os.kill(probed.worker("II"), 9)
    )
    assert status == "FINISHED:EXECUTION_EXCEPTION"
    status, lines = probed.ask(PREPARE)
    assert [line["answers"] for line in lines] == [ALL_WELL, ALL_WELL]


def test_a_dead_server_is_started_again_and_takes_a_new_job(probed):
    killed = []

    def kill() -> None:
        server = psutil.Process(probed.flare.pid("server"))
        killed.extend([server, *server.children()])
        server.kill()

    status, _ = probed.ask([["local_train", 8, 500]], after=2, then=kill)
    assert status == ""
    assert len(killed) == 2
    psutil.wait_procs(killed, timeout=3)
    assert not any(process.is_running() for process in killed)  # the job's process too
    status, lines = probed.ask(PREPARE)
    assert [line["answers"] for line in lines] == [ALL_WELL, ALL_WELL]
    assert status == "FINISHED:COMPLETED"


def test_a_site_s_own_filters_see_its_models_and_may_keep_them(probed):
    policy = probed.flare.kits / "II" / "local" / "privacy.json"
    keep = "nvflare.app_common.filters.dxo_blocker.DXOBlocker"
    scope = {"name": "ours", "task_result_filters": [{"path": keep, "args": {"data_kinds": KINDS}}]}
    policy.write_text(json.dumps({"scopes": [scope], "default_scope": "ours"}))
    try:
        _, (train, count) = probed.ask(PREPARE)
    finally:
        policy.unlink()
    assert train["answers"] == {**ALL_WELL, "II": "lost: FLARE says TASK_RESULT_FILTER_ERROR"}
    assert count["answers"] == ALL_WELL


def hangs_up(port: int, kit: Path | None) -> bool:
    """Whether the server ends a connection that is made with this kit, or without any."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=3) as raw:
            if kit is None:
                raw.sendall(b"plain text " * 100)
                return raw.recv(1) == b""
            context = ssl.create_default_context(cafile=kit / "rootCA.pem")
            if (kit / "client.crt").exists():
                context.load_cert_chain(kit / "client.crt", kit / "client.key")
            with context.wrap_socket(raw, server_hostname="localhost") as secure:
                return secure.recv(1) == b""
    except TimeoutError:
        return False  # it waits for what we have to say
    except (ssl.SSLError, ConnectionError):
        return True


def certified(project: Path, kit: Path, days: int) -> Path:
    """Site II's certificate from the project's own authority, good until so many days from now."""
    state = json.loads((project / "state" / "cert.json").read_text())
    root = x509.load_pem_x509_certificate(state["root_cert"].encode())
    signing = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
    own = rsa.generate_private_key(65537, 2048)
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "II")]))
        .issuer_name(root.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(signing, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.TraditionalOpenSSL
    kit.mkdir()
    (kit / "rootCA.pem").write_text(state["root_cert"])
    (kit / "client.crt").write_bytes(certificate.public_bytes(pem))
    (kit / "client.key").write_bytes(own.private_bytes(pem, form, serialization.NoEncryption()))
    return kit


def test_strangers_are_refused(probed, tmp_path):
    port, kits = probed.flare.port, probed.flare.kits
    assert hangs_up(port, None)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "rootCA.pem").write_bytes((kits / "II" / "startup/rootCA.pem").read_bytes())
    assert hangs_up(port, bare)
    foreign = provision(SITES, port, tmp_path / "foreign") / "II" / "startup"
    (foreign / "rootCA.pem").write_bytes((bare / "rootCA.pem").read_bytes())
    assert hangs_up(port, foreign)  # of the same name, from another authority
    assert hangs_up(port, certified(kits.parent, tmp_path / "old", days=-1))  # expired
    assert not hangs_up(port, certified(kits.parent, tmp_path / "new", days=1))
    assert not hangs_up(port, kits / "II" / "startup")


def test_only_this_machine_can_reach_it(probed):
    family = psutil.Process(probed.flare._guard._process.pid).children(recursive=True)
    doors = [
        door.laddr.ip
        for process in family
        for door in process.net_connections("inet")
        if door.status == psutil.CONN_LISTEN
    ]
    assert doors
    assert set(doors) == {"127.0.0.1"}


def test_nothing_is_left_when_we_are_killed(tmp_path):
    script = (
        "import sys, time; from pathlib import Path\n"
        "from autofedavg.engines.flare.loopback import Loopback\n"
        "home = Path(sys.argv[1]); flare = Loopback(('A', 'B'), {}, home / 'runs', home / 's');"
        "flare._await_sites(lambda: None)\n"
        "print(flare._guard._process.pid, flare.port, flush=True);"
        "time.sleep(60)"
    )
    us = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True
    )
    try:
        keeper, port = map(int, us.stdout.readline().split())
        family = [psutil.Process(keeper)]
        family += family[0].children(recursive=True)
        family += psutil.Process(us.pid).children(recursive=True)
        assert len(family) > 4
    finally:
        us.kill()
        us.communicate()
    _, left = psutil.wait_procs(set(family), timeout=10)
    assert not left
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("127.0.0.1", port))
