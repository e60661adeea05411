"""What a site keeps from round to round, on its own disk: personal models, theta of blind learning.

A process that dies, or a job that is submitted again, then loses nothing. Every run has a folder in
the site's state folder, with a file for every state, named by its digest. Folders that no run has
touched for long are removed.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from pathlib import Path

from autofedavg.core.errors import AutoFedAvgError
from autofedavg.experiment.files import TENSORS, content_of, replacing, sweep
from autofedavg.federation.messages import Message
from autofedavg.federation.personal import KeptStates, digest_of
from autofedavg.federation.serialization import decode, encode

FOLDER, ENDING = "kept", ".state"
DAYS = 90  # after which the folder of a run that has not been continued is removed
_RUN = re.compile(r"[0-9a-f]{32}")

log = logging.getLogger(__name__)


class StoredStates:
    """The states of one run, on disk as in memory.

    Args:
        home: the site's state folder.
        run: the run's number, from the server.
        kept: the states in memory; those on disk are added.
    """

    def __init__(self, home: Path, run: str, kept: KeptStates) -> None:
        self._home, self._folder, self._kept = home / FOLDER, home / FOLDER / run, kept
        sweep(self._folder)
        for digest in self._stored() - {*kept.states}:
            try:
                found = decode(content_of(self._path(digest), TENSORS)).arrays
                if digest_of(found) != digest:
                    raise ValueError("its digest is another one")
            except (OSError, ValueError, AutoFedAvgError) as error:
                log.warning("%s cannot be read (%s): it is left out", self._path(digest), error)
            else:
                kept.states[digest] = dict(found)

    def save(self) -> None:
        """Makes the disk hold what memory holds; a disk that cannot is no reason to stop."""
        states, stored = self._kept.states, self._stored()
        try:
            if {*states} - stored:
                for folder in (self._home.parent, self._home, self._folder):  # each of them private
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if states and not stored:
                self._remove_old()
            for digest in {*states} - stored:
                with replacing(self._path(digest), 0o600) as file:
                    file.write(encode(Message(states[digest], {})))
            for digest in stored - {*states}:
                self._path(digest).unlink(missing_ok=True)
        except OSError as error:
            log.warning("what this site keeps from round to round cannot be written (%s): if its "
                        "process ends, it starts again", error)  # fmt: skip

    def _stored(self) -> set[str]:
        return {path.stem for path in self._folder.glob(f"*{ENDING}")}

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}{ENDING}"

    def _remove_old(self) -> None:
        since = time.time() - DAYS * 86400
        for folder in self._home.iterdir():
            if _RUN.fullmatch(folder.name) and folder.stat().st_mtime < since:
                shutil.rmtree(folder, ignore_errors=True)


def is_run(name: object) -> bool:
    """Whether this can be a run's number."""
    return isinstance(name, str) and bool(_RUN.fullmatch(name))
