"""Startup kits for a server and its sites on this machine, made by FLARE's own provisioning."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofedavg.core.errors import RunError
from autofedavg.engines.flare.allow import allow

PROJECT, SERVER, ADMIN = "autofedavg", "localhost", "admin@autofedavg.org"
SITE_FILE = "autofedavg.toml"
HEARTBEATS = 20.0  # seconds without one after which the server gives a site up


@dataclass(frozen=True)
class Kits:
    """Where the kits lie."""

    home: Path

    @property
    def server(self) -> Path:
        return self.home / SERVER

    @property
    def admin(self) -> Path:
        return self.home / ADMIN

    def site(self, name: str) -> Path:
        return self.home / name


def provision(sites: Sequence[str], port: int, folder: Path) -> Kits:
    """Makes a project of mutual TLS whose server listens on this machine alone.

    FLARE binds to 127.0.0.1, and to nothing else, where the server's name is localhost.
    """
    folder.mkdir(parents=True)
    (folder / "project.yml").write_text(json.dumps(_project(sites, port)))  # YAML reads JSON
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "made"]
    done = subprocess.run(  # noqa: S603 - FLARE's own command
        [*command, "--force"], cwd=folder, capture_output=True, text=True, check=False
    )
    homes = sorted((folder / "made" / PROJECT).glob("prod_*"))
    if done.returncode or not homes:
        raise RunError(
            f"nvflare provision failed:\n{done.stdout}{done.stderr}",
            where=str(folder),
            remedy="site names may hold letters, digits, dots and dashes",
        )
    return Kits(homes[-1])


def furnish(kits: Kits, site_files: Mapping[str, Path], sites: Sequence[str]) -> None:
    """What administrators do to their kits: our class on the allow list, and a site's file."""
    allow(kits.server)
    resources = _resources(kits.server)
    resources["servers"][0]["heart_beat_timeout"] = HEARTBEATS
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(kits.server / "snapshots")
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(kits.server / "jobs")
        elif part["id"] == "job_scheduler":
            part["args"] |= {"min_schedule_interval": 1.0, "max_schedule_interval": 2.0}
    _save(kits.server, resources)
    for name in sites:
        allow(kits.site(name))
        if name in site_files:
            shutil.copyfile(site_files[name], kits.site(name) / "local" / SITE_FILE)


def _project(sites: Sequence[str], port: int) -> dict[str, Any]:
    org = "autofedavg"
    return {
        "api_version": 3,
        "name": PROJECT,
        "description": "server and sites on one machine",
        "participants": [
            {"name": SERVER, "type": "server", "org": org, "fed_learn_port": port},
            *({"name": name, "type": "client", "org": org} for name in sites),
            {"name": ADMIN, "type": "admin", "org": org, "role": "project_admin"},
        ],
        "builders": [
            {
                "path": "nvflare.lighter.impl.workspace.WorkspaceBuilder",
                "args": {"template_file": ["master_template.yml"]},
            },
            # Not tcp: there, a stranger who connects and says nothing keeps everybody else out.
            {
                "path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "http"},
            },
            {"path": "nvflare.lighter.impl.cert.CertBuilder"},
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ],
    }


def _resources(kit: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((kit / "local" / "resources.json").read_text())
    return content


def _save(kit: Path, resources: dict[str, Any]) -> None:
    (kit / "local" / "resources.json").write_text(json.dumps(resources, indent=1))
