"""Startup kits for a server and its sites on this machine, made by FLARE's own provisioning."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.engines.flare.allow import allow
from autofedavg.engines.remote.site_files import SITE_FILE

PROJECT, HOST, ADMIN = "autofedavg", "localhost", "admin@autofedavg.org"
HEARTBEAT_TIMEOUT = 20.0  # seconds without a heartbeat after which the server drops a site


def provision(sites: Sequence[str], port: int, folder: Path) -> Path:
    """Makes a project with mutual TLS whose server listens on this machine alone.

    Returns the folder with a kit for the server (HOST), the administrator (ADMIN) and every site.

    FLARE binds to 127.0.0.1 only if the server's name is localhost.
    """
    folder.mkdir(parents=True)
    (folder / "project.yml").write_text(json.dumps(_project(sites, port)))  # YAML includes JSON
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "made"]
    done = subprocess.run(  # noqa: S603 - FLARE's own command
        [*command, "--force"], cwd=folder, capture_output=True, text=True, check=False
    )
    homes = sorted((folder / "made" / PROJECT).glob("prod_*"))
    if done.returncode or not homes:
        raise RunError(
            f"nvflare provision failed:\n{done.stdout}{done.stderr}",
            where=str(folder),
            remedy="site names may contain letters, digits, dots and dashes",
        )
    return homes[-1]


def prepare_kits(kits: Path, site_files: Mapping[str, Path], sites: Sequence[str]) -> None:
    """Does what administrators do to their kits: runs `allow`, and adds each site's file."""
    server = kits / HOST
    allow(server)
    path = server / "local" / "resources.json"
    resources: dict[str, Any] = json.loads(path.read_text())
    resources["servers"][0]["heart_beat_timeout"] = HEARTBEAT_TIMEOUT
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(server / "snapshots")
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(server / "jobs")
        elif part["id"] == "job_scheduler":
            part["args"] |= {"min_schedule_interval": 1.0, "max_schedule_interval": 2.0}
    path.write_text(json.dumps(resources, indent=1))
    for name in sites:
        allow(kits / name)
        if name in site_files:
            shutil.copyfile(site_files[name], kits / name / "local" / SITE_FILE)


def _project(sites: Sequence[str], port: int) -> dict[str, Any]:
    org, parts = "autofedavg", "nvflare.lighter.impl"
    files = {"config_folder": "config", "scheme": "http"}
    return {
        "api_version": 3,
        "name": PROJECT,
        "description": "server and sites on one machine",
        "participants": [
            {"name": HOST, "type": "server", "org": org, "fed_learn_port": port},
            *({"name": name, "type": "client", "org": org} for name in sites),
            {"name": ADMIN, "type": "admin", "org": org, "role": "project_admin"},
        ],
        "builders": [
            {
                "path": f"{parts}.workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            # Not tcp: there, a stranger who connects and stays silent blocks all other sites.
            {"path": f"{parts}.static_file.StaticFileBuilder", "args": files},
            {"path": f"{parts}.cert.CertBuilder"},
            {"path": f"{parts}.signature.SignatureBuilder"},
        ],
    }
