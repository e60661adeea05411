"""An app folder that an administrator submits with Flower's own commands: settings, no code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from autofedavg import __version__
from autofedavg.core.errors import ConfigError
from autofedavg.engines.remote.job import Job
from autofedavg.experiment.files import make_folder
from autofedavg.experiment.folder_writer import disk_errors

COMPONENTS = "autofedavg.engines.flower"
RUNS = "AUTOFEDAVG_RUNS"  # environment variable of the SuperLink: the folder of the run folders
DEFAULT_RUNS = "~/autofedavg-runs"

PYPROJECT = """\
# Written by `autofedavg export flower`. Submit with: flwr run . NAME-OF-YOUR-SUPERLINK
[project]
name = "{name}"
version = "{version}"
description = {description}
license = "Apache-2.0"
dependencies = ["autofedavg[flower]=={version}"]

[tool.flwr.app]
publisher = "autofedavg"
fab-include = ["README.md"]

[tool.flwr.app.components]
serverapp = "{components}.server_app:app"
clientapp = "{components}.client_app:app"

[tool.flwr.app.config]
job = {job}
"""

README = """\
# {study}, {row}, seed {seed}

One run of Auto-FedAvg for Flower, written by autofedavg {version}. The folder holds settings
only: server and sites have autofedavg {version} installed (`pip install 'autofedavg[flower]'`).

Sites: {sites}

1. Every site's key is registered under the site's name:
   `flwr supernode register {first}.pub --name {first}`. Every site runs a SuperNode that says which
   site it is, and where the site's own file lies:
   `flower-supernode ... --node-config 'site="{first}" site-file="/path/to/autofedavg.toml"'`
2. Submit: `flwr run . NAME-OF-YOUR-SUPERLINK --stream`
3. Watch: `flwr ls`, `flwr log RUN`. Stop: `flwr stop RUN`.
4. The server writes the run to `$AUTOFEDAVG_RUNS/{study}` (the variable is set where the SuperLink
   is started; without it, `~/autofedavg-runs`). Submit the app again to resume a run that has not
   ended.
"""


def export(job: Job, out: Path) -> Path:
    """Writes the app of a job into a folder that is new or empty; returns the folder.

    Raises:
        ConfigError: the folder is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("is not an empty folder", where=str(out), remedy="choose another --out")
    words = {
        "name": app_name(job),
        "study": job.study,
        "row": job.row.name,
        "seed": job.seed,
        "version": __version__,
        "components": COMPONENTS,
        "description": quoted(f"{job.study}, {job.row.name}, seed {job.seed}"),
        "job": quoted(job.text()),
        "sites": ", ".join(job.sites),
        "first": job.sites[0],
    }
    with disk_errors(out):
        make_folder(out)
        (out / "pyproject.toml").write_text(PYPROJECT.format(**words), encoding="utf-8")
        (out / "README.md").write_text(README.format(**words), encoding="utf-8")
    return out


def app_name(job: Job) -> str:
    """A name that Flower accepts: letters, digits and hyphens, at most 32.

    Example:
        >>> from types import SimpleNamespace as Thing
        >>> app_name(Thing(study="Table 2", row=Thing(name="n-dirichlet"), seed=0))
        'afa-n-dirichlet-0'
    """
    row = re.sub(r"[^A-Za-z0-9]+", "-", job.row.name).strip("-")
    return f"afa-{row[:20].strip('-')}-{job.seed % 10**6}"


def job_text(config: Mapping[str, object]) -> str:
    """The job in an app's configuration.

    Raises:
        ConfigError: there is none.
    """
    job = config.get("job")
    if not isinstance(job, str):
        raise ConfigError("the app holds no job", remedy="make it with `autofedavg export flower`")
    return job


def quoted(text: str) -> str:
    r"""A text as a basic string of TOML, which is JSON's but for the character DEL.

    Example:
        >>> quoted('a "b"')
        '"a \\"b\\""'
    """
    return json.dumps(text).replace("\x7f", "\\u007f")
