"""What a site keeps for itself: the secret its digests are salted with, and the key to its cases.

It lies in a folder of the user's own, apart from an engine's files, which an engine's
administrator may read: `state` in the site's file, AUTOFEDAVG_STATE, or `autofedavg` below
XDG_STATE_HOME or ~/.local/state. There every site has a folder (0700) with its files (0600).
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
from collections.abc import Mapping
from pathlib import Path

from autofedavg.core.errors import ConfigError

STATE = "AUTOFEDAVG_STATE"  # environment variable: the folder
SECRET = "secret"  # noqa: S105 - the name of the file
LENGTH = 32  # bytes
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_REMEDY = f"name a folder of this user's own as `state` in the site's file, or in {STATE}"


def state_home(chosen: str = "") -> Path:
    """The folder of all sites of this user.

    Args:
        chosen: as the site's file has it; empty for the usual one.

    Raises:
        ConfigError: there is no home to put it in, as in some containers.
    """
    told = chosen or os.environ.get(STATE)
    if told:
        return Path(told)
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "autofedavg"
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home folder, and a site keeps a secret in it",
            where="the site's own state",
            remedy=_REMEDY,
        ) from error


class Keeping:
    """One site's own files.

    Args:
        home: the folder of all sites of this user.
        site: its name.
    """

    def __init__(self, home: Path, site: str) -> None:
        digest = hashlib.sha256(site.encode()).hexdigest()[:32]
        self.folder = home / (site if _PLAIN.fullmatch(site) else f"site-{digest}")

    def salted(self, digest: str) -> str:
        """A digest that tells the same data from other data, and to others nothing more.

        Raises:
            ConfigError: the secret cannot be kept, or is not this user's alone.
        """
        return hmac.new(self._secret(), digest.encode(), "sha256").hexdigest() if digest else ""

    def keep_names(self, split: str, which: str, numbers: Mapping[str, str]) -> None:
        """Writes down which number is which case.

        Args:
            split: whose cases they are.
            which: of several splits of the same data.
            numbers: by the names of the cases.

        Raises:
            OSError: it cannot be written.
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
        """Drawn once; all processes of this site have the same."""
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
        except OSError as error:
            raise ConfigError(
                f"what this site keeps for itself cannot be written ({error.strerror or error})",
                where=str(path),
                remedy=_REMEDY,
            ) from error
        if len(known) != LENGTH:
            raise ConfigError(
                f"this file should hold {LENGTH} random bytes, and has {len(known)}",
                where=str(path),
                remedy="put back the one that runs were begun with, or remove it for new runs",
            )
        return known

    def _check_private(self, path: Path, found: os.stat_result) -> None:
        for place, state in ((self.folder, self.folder.lstat()), (path, found)):
            if state.st_uid != os.getuid() or stat.S_IMODE(state.st_mode) & 0o077:
                raise ConfigError(
                    "others than this user may read what the site keeps for itself",
                    where=str(place),
                    remedy="make it the user's alone (chown, chmod go=), or name another folder "
                    "as `state` in the site's file",
                )
