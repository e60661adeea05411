"""Who may ask a site on FLARE, and for what; real processes, mutual TLS, one federation for all."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare", reason="the extra `flare` is not installed")

from tests_tiny import TINY

import flare_intruder
from autofedavg import read_study
from autofedavg.engines.flare import loopback
from autofedavg.engines.flare.allow import ACCESS_FILE
from autofedavg.engines.flare.export import EXECUTOR, export
from autofedavg.engines.flare.loopback import ADMIN, HOST, Loopback, prepare_kits
from deployed import assert_same_run, job_of

SITES = ("I", "II", "III")
SECRET = "case 0815 is Jane Doe"
# As the project's administrator, with FLARE's own session; prints what each command gave.
SHELL = """
import json, sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
session = new_secure_session(*sys.argv[1:3], timeout=20.0)
said = {c: str(session.api.do_command(c)) for c in json.loads(sys.argv[3])}
print("SAID " + json.dumps(said), flush=True)
session.close()
"""
EVIL = """
from pathlib import Path
from nvflare.apis.executor import Executor

class Evil(Executor):
    def handle_event(self, event_type, fl_ctx):
        Path({mark!r}, fl_ctx.get_identity_name()).touch()

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return shareable
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "tiny.toml"
    path.write_text(TINY)
    return read_study(path)


def furnish_and_let_code_pass(kits, site_files, sites) -> None:
    """As ever; but the server lets code in jobs pass, so that the sites have to refuse it."""
    prepare_kits(kits, site_files, sites)
    rights = kits / HOST / "local" / "authorization.json"
    content = json.loads(rights.read_text())
    assert content["permissions"]["project_admin"]["byoc"] == "none"
    content["permissions"]["project_admin"]["byoc"] = "any"
    rights.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def flare(tmp_path_factory):
    """A federation in which site I's kit runs an intruder, and site II has a secret."""
    home = tmp_path_factory.mktemp("flare")
    with pytest.MonkeyPatch.context() as patch:
        here = Path(__file__).parents[1]
        patch.setenv("PYTHONPATH", f"{here.parent / 'src'}{os.pathsep}{here}")
        patch.setattr(loopback, "prepare_kits", furnish_and_let_code_pass)
        with Loopback(SITES, {}, home / "runs", home / "scratch") as running:
            allowed = running.kits / "I" / "local" / "resources.json"
            allowed.write_text(allowed.read_text().replace(EXECUTOR, flare_intruder.PATH))
            for kit in (running.kits / "II", running.kits / HOST):
                (kit / flare_intruder.SECRET).write_text(SECRET)
            yield running


def test_a_site_that_asks_another_is_refused_and_the_run_is_as_if_it_had_not(
    flare, study, tiny_trained
):
    folder = export(job_of(study, "n-dirichlet"), flare.scratch / "job")
    meta = json.loads((folder / "meta.json").read_text())
    meta["deploy_map"] = {"app": ["server", "II", "III"], "intruder": ["I"]}
    (folder / "meta.json").write_text(json.dumps(meta))
    shutil.copytree(folder / "app", folder / "intruder")
    config = folder / "intruder" / "config" / "config_fed_client.json"
    config.write_text(config.read_text().replace(EXECUTOR, flare_intruder.PATH))
    assert flare.run_folder(folder, lambda: None) == "FINISHED:COMPLETED"
    replies = json.loads((flare.runs / "asked.json").read_text())
    aux = [said for what, said in replies.items() if what.startswith("aux")]
    assert aux == ["COMMUNICATION_ERROR ['__headers__']"] * 4
    others = {what: said for what, said in replies.items() if not what.startswith("aux")}
    assert len(others) == 4
    assert all(said.startswith("unauthenticated II") for said in others.values()), others
    refusal = "refuses aux_communication autofedavg to I."
    assert refusal in (flare.scratch / "I.log").read_text()  # who asked
    asked = (flare.scratch / "II.log").read_text()
    for what in ("aux_communication autofedavg", "admin sys.shell", "client_command check_status"):
        assert [line for line in asked.splitlines() if "refused: I." in line and what in line], what
    assert_same_run(tiny_trained / "n-dirichlet" / "seed-0", flare.runs / "tiny/n-dirichlet/seed-0")


def test_a_job_with_code_of_its_own_runs_nowhere(flare, study, tmp_path):
    folder = export(job_of(study, "fedavg"), flare.scratch / "evil")
    custom = folder / "app" / "custom"
    custom.mkdir()
    (custom / "evil.py").write_text(EVIL.format(mark=str(tmp_path)))
    config = folder / "app" / "config" / "config_fed_client.json"
    config.write_text(config.read_text().replace(EXECUTOR, "evil.Evil"))
    assert flare.run_folder(folder, lambda: None) == "FINISHED:FAILED_TO_RUN"
    assert list(tmp_path.iterdir()) == []
    said = (flare.scratch / "server.log").read_text()
    for site in SITES:  # each of them, and not the server for them
        assert f"'{site}: NVFLARE_ERROR: BYOC not permitted'" in said


def test_an_administrator_reads_no_files_of_a_site_or_of_the_server(flare):
    file = flare_intruder.SECRET
    commands = [
        f"{verb} {target} {file}" for target in ("II", "server") for verb in ("cat", "tail")
    ]
    commands += [f"head II {file}", f"grep II case {file}", "ls II local", "ls server", "pwd II"]
    done = subprocess.run(
        [sys.executable, "-c", SHELL, ADMIN, flare.kits / ADMIN, json.dumps(commands)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=flare.scratch,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    for command, said in json.loads(line.removeprefix("SAID ")).items():
        assert "not authorized" in said.lower(), (command, said)
        assert SECRET not in said
        assert str(flare.kits) not in said


def test_a_site_whose_kit_names_a_missing_access_check_does_not_start(flare):
    """A kit from an earlier version: without its check a site must not run."""
    site = psutil.Process(flare.pid("III"))
    checks = flare.kits / "III" / "local" / ACCESS_FILE
    prepared = checks.read_text()
    checks.write_text(prepared.replace("access.SiteAccessCheck", "door.SiteDoor"))
    try:
        site.kill()
        site.wait()
        log = flare.scratch / "III.log"
        start = log.stat().st_size
        flare.start("III")
        psutil.wait_procs([psutil.Process(flare.pid("III"))], timeout=100)
        assert not psutil.pid_exists(flare.pid("III"))
        assert "autofedavg.engines.flare.door" in log.read_text()[start:]
    finally:
        checks.write_text(prepared)
