"""A site's own files, which never leave it: its settings, its secret, the key to its case numbers.

The settings are one file. The secret salts the site's digests, and its noise comes from it
(`site_ledger`). Secret and key are in the user's
state folder, not in the engine's, which an engine's administrator may read: `state` in the site's
file, AUTOFEDAVG_STATE, or `autofedavg` below XDG_STATE_HOME or ~/.local/state. Every site has a
folder there (mode 0700) with its files (mode 0600).
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import hmac
import io
import os
import re
import secrets
import stat
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch

from autofedavg.core.device import checked_device
from autofedavg.core.errors import ConfigError, did_you_mean
from autofedavg.core.settings import Settings, setting
from autofedavg.experiment.files import sync_folder
from autofedavg.experiment.toml_text import to_toml
from autofedavg.experiment.validation import Values, validate
from autofedavg.federation.ledger import Limit
from autofedavg.federation.settings import Disclosure, Reach
from autofedavg.tasks.base import Task

SITE_FILE = "autofedavg.toml"  # in the `local` folder of a FLARE kit
STATE = "AUTOFEDAVG_STATE"  # environment variable: the state folder
SECRET = "secret"  # noqa: S105 - the name of the file
LENGTH = 32  # bytes
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_REMEDY = f"set `state` in the site's file, or {STATE}, to a folder that this user owns"


class SitePrivacy(Settings):
    """What a site allows to be released about its patients, by all jobs together."""

    epsilon: float = setting(
        0.0,
        origin="ours: decision 65",
        help="the most that may be spent on a patient; the site refuses more; 0: no limit",
        ge=0,
        allow_inf_nan=False,
    )
    delta: float = setting(
        1e-3, origin="ours: decision 65", help="at which epsilon is meant", gt=0, lt=1
    )
    covers: Literal["all", "weights"] = setting(
        "all",
        origin="ours: decision 65",
        help="what must be noisy under a limit: all, training and steps on beta; weights, the "
        "steps alone, and models of training patients leave without noise",
    )
    replays: Literal["refuse", "count"] = setting(
        "refuse",
        origin="ours: decision 65",
        help="a step that is asked for again with another model or beta: refuse, or count it",
    )

    def limit(self) -> Limit:
        return Limit(self.epsilon, self.delta, self.replays)


class SiteFile(Settings):
    """A site's own settings."""

    device: str = setting("cpu", origin="ours", help="cpu, cuda or cuda:1")
    threads: int = setting(0, origin="ours", help="threads; 0 for the job's choice", ge=0)
    allow_outside: bool = setting(
        False, origin="ours", help="whether a data list's paths may lead out of its root folder"
    )
    state: str = setting(
        "",
        origin="ours",
        help="folder for the site's private files; empty for ~/.local/state/autofedavg",
    )
    disclose: Disclosure = setting(
        "all",
        origin="ours: decision 64",
        help="most that leaves of this site's scores; with means, jobs that want more are refused",
    )
    show_models: Reach = setting(
        "sites",
        origin="ours: decision 71",
        help="who may receive this site's own models at most; jobs that show them to more are "
        "refused",
    )
    task: dict[str, str] = setting(
        {}, origin="ours", help="the task's paths at this site, e.g. datalist, root and cache"
    )

    privacy: SitePrivacy = setting(
        SitePrivacy(), origin="ours", help="the site's limit on what is released of its patients"
    )

    def placed(self, task: Task, where: str) -> Task:
        """The job's task with this site's paths.

        Raises:
            ConfigError: the file sets something else than a path; the study sets all else.
        """
        for name in self.task:
            if name not in task.paths:
                raise ConfigError(
                    f"task.{name} is not a path of this task, and a site may set only paths",
                    where=where,
                    remedy=did_you_mean(name, task.paths),
                )
        values = {**task.model_dump(), **self.task}
        if "allow_outside" in values:  # the job must not set it
            values["allow_outside"] = self.allow_outside
        return type(task).model_validate(values)

    def hardware(self, where: str) -> torch.device:
        """The device that this site computes on.

        Raises:
            ConfigError: it cannot be used.
        """
        try:
            return checked_device(self.device)
        except ConfigError as error:
            raise ConfigError(
                f"device = {error.what}",
                where=where,
                remedy='set device to "cpu", "cuda" or "cuda:1" there',
            ) from error


def read_site_file(path: Path | None) -> SiteFile:
    """Reads a site's file; without one, the defaults.

    Relative paths start at the file's folder.

    Raises:
        ConfigError: it cannot be read, or a setting is wrong.
    """
    if path is None:
        return SiteFile()
    try:
        values: Values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"the site's file cannot be read ({error})",
            where=str(path),
            remedy="write one as shown in docs/how-to/flare.md",
        ) from error
    found: SiteFile = validate(SiteFile, values, str(path), "", "the site's file")
    here = path.absolute().parent
    placed = {name: str(here / value) if value else "" for name, value in found.task.items()}
    state = str(here / found.state) if found.state else ""
    return found.model_copy(update={"task": placed, "state": state})


def local_paths(task: Task) -> dict[str, str]:
    """The paths that a task has on this machine."""
    return {name: str(getattr(task, name)) for name in task.paths if getattr(task, name)}


def site_file_text(task: Task, device: str = "cpu") -> str:
    """The content of a site's file for a task whose paths are on this machine."""
    outside = bool(getattr(task, "allow_outside", False))
    return to_toml({"device": device, "allow_outside": outside, "task": local_paths(task)})


def state_home(chosen: str = "") -> Path:
    """The state folder of all sites of this user; `chosen` is `state` of the site's file.

    Raises:
        ConfigError: the user has no home folder, as in some containers.
    """
    if folder := chosen or os.environ.get(STATE):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "autofedavg"
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home folder for the site's secret",
            where="the site's state folder",
            remedy=_REMEDY,
        ) from error


class SiteState:
    """One site's secret and its key from numbers to case names, in a folder below `home`."""

    def __init__(self, home: Path, site: str) -> None:
        digest = hashlib.sha256(site.encode()).hexdigest()[:32]
        self.folder = home / (site if _PLAIN.fullmatch(site) else f"site-{digest}")

    def salted(self, digest: str) -> str:
        """A salted digest: it identifies the same data again, and tells others nothing more.

        Raises:
            ConfigError: the secret cannot be stored, or others may read it.
        """
        return hmac.new(self._secret(), digest.encode(), "sha256").hexdigest() if digest else ""

    def keep_names(self, split: str, which: str, numbers: Mapping[str, str]) -> None:
        """Writes the key from numbers to the cases of a split; raises an OSError if it cannot.

        `which` tells several ways to split the same data apart.
        """
        table = io.StringIO()
        rows = csv.writer(table)
        rows.writerow(["number", "case"])
        rows.writerows([number, name] for name, number in numbers.items())
        path, content = self.folder / f"cases-{split}-{which}.csv", table.getvalue().encode()
        if path.exists() and path.read_bytes() == content:
            return
        handle, partial = tempfile.mkstemp(dir=self.folder)  # of mode 0600
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(partial).replace(path)

    def _secret(self) -> bytes:
        """Drawn once; all processes of this site share it."""
        path = self.folder / SECRET
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._check_private(path, os.fstat(file.fileno()))
                known = file.read()
                if not known:
                    known = secrets.token_bytes(LENGTH)
                    file.write(known)
                    file.flush()
                    os.fsync(file.fileno())
                    sync_folder(self.folder)
        except OSError as error:
            raise ConfigError(
                f"the site's secret cannot be written ({error.strerror or error})",
                where=str(path),
                remedy=_REMEDY,
            ) from error
        if len(known) != LENGTH:
            raise ConfigError(
                f"this file must contain {LENGTH} random bytes, and has {len(known)}",
                where=str(path),
                remedy="restore it to resume runs, or remove it and start new ones",
            )
        return known

    def _check_private(self, path: Path, found: os.stat_result) -> None:
        for place, state in ((self.folder, self.folder.lstat()), (path, found)):
            if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
                raise ConfigError(
                    "other users may read the site's secret",
                    where=str(place),
                    remedy="restrict it to this user (chown, chmod go=), or set `state` in the "
                    "site's file to another folder",
                )
