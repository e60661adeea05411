"""The way to a site's resident worker: found, or started, by whoever has a parcel for it.

The worker listens on a Unix socket in a folder that only its user may enter. There is one folder,
and so at most one worker, for every site and job.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from autofedavg.core.errors import RunError
from autofedavg.engines.flower.parcel import BadParcel, Parcel, receive, send

log = logging.getLogger(__name__)

RUNS = "AUTOFEDAVG_RUNS"  # environment variable of the SuperLink: where the run folders are
DEFAULT_RUNS = "~/autofedavg-runs"
FOLDER = "AUTOFEDAVG_WORKERS"  # environment variable: where the workers' folders are
IDLE = "AUTOFEDAVG_WORKER_IDLE"  # environment variable: seconds without a request, then it ends
MOST_IDLE = 7200.0
START = 60.0  # seconds a worker may take to listen
TRIES = 2
BYE = "bye"
SOCKET, LOCK, LOG = "socket", "lock", "worker.log"
LONGEST_HOME = 83  # bytes: a socket's path has at most 107, 24 of them below this folder


def workers_folder() -> Path:
    """The folder of all workers of this user.

    Raises:
        RunError: somebody else has it, or may enter it.
    """
    chosen = os.environ.get(FOLDER)
    path = Path(chosen or short_home() / f"autofedavg-{os.getuid()}")
    if len(os.fsencode(path)) > LONGEST_HOME:
        raise RunError(
            f"the folder of the workers has a path of more than {LONGEST_HOME} bytes, too long for "
            "a socket below it",
            remedy=f"name a shorter one in the environment variable {FOLDER}",
        )
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    private = found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    if not private or not stat.S_ISDIR(found.st_mode):
        raise RunError(
            "the folder of the resident workers is not this user's alone",
            remedy=f"remove it, or name another in the environment variable {FOLDER}",
        )
    return path


def place(site: str, job: str) -> Path:
    """The folder of the worker of a site and a job."""
    name = hashlib.sha256(f"{site}\n{job}".encode()).hexdigest()[:16]
    folder = workers_folder() / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def short_home() -> Path:
    """The folder for temporary files, or /tmp where its path is too long for a socket."""
    usual = Path(tempfile.gettempdir())
    return usual if len(os.fsencode(usual)) < LONGEST_HOME - 32 else Path("/tmp")  # noqa: S108 - short


def exchange(site: str, job: str, parcel: Parcel, watch: int) -> Parcel:
    """Hands a parcel to the worker and brings back its answer.

    A worker that ends in the middle of it is replaced and asked once more: every request may be
    repeated.

    Args:
        site: the site's name.
        job: the job's text.
        parcel: the request.
        watch: the process without which the worker shall end.

    Raises:
        RunError: no worker answers; names no path, since it may be sent on.
    """
    folder = place(site, job)
    for _ in range(TRIES):
        try:
            with _connect(folder, watch) as connection:
                send(connection, parcel)
                return receive(connection)
        except (OSError, EOFError, BadParcel):
            log.exception("the resident worker of %s failed", site)
    raise RunError("its resident worker ended twice over this request; its own log says more")


def dismiss(site: str, job: str) -> bool:
    """Tells the worker of a site and a job to end; whether there was one."""
    connection = _try(place(site, job) / SOCKET)
    if connection is None:
        return False
    with connection:
        try:
            send(connection, Parcel(about={"verb": BYE}))
            receive(connection)
        except (OSError, EOFError, BadParcel):
            log.warning("the resident worker of %s ended without a word", site)
    return True


def same_user(connection: socket.socket) -> bool:
    """Whether the other side of a Unix socket runs as this user; the kernel says so."""
    if sys.platform != "linux":
        return True  # the folder's permissions alone
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _connect(folder: Path, watch: int) -> socket.socket:
    connection = _try(folder / SOCKET)
    if connection is not None:
        return connection
    until = time.monotonic() + START
    process = start_worker(folder, watch)
    while time.monotonic() < until:
        connection = _try(folder / SOCKET)
        if connection is not None:
            return connection
        if process.poll() not in (None, 0):  # 0: another one was there first
            raise OSError(f"the worker ended with code {process.returncode}")
        time.sleep(0.02)
    raise OSError("the worker did not start")


def _try(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    if not same_user(connection):
        connection.close()
        raise OSError("the worker's socket belongs to another user")
    return connection


def start_worker(folder: Path, watch: int) -> subprocess.Popen[bytes]:
    """Starts a worker that outlives this process, but not the watched one."""
    log_file = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "autofedavg.engines.flower.worker", str(folder), str(watch)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
    finally:
        os.close(log_file)
    # Where this process stays, somebody must take note of the worker's end.
    threading.Thread(target=process.wait, daemon=True).start()
    return process
