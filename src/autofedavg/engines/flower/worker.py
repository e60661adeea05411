"""The resident worker of a site: one process that keeps data, network and models in memory.

`python -m autofedavg.engines.flower.worker FOLDER PID` listens on FOLDER/socket and ends when it is
told to, when nothing was asked for long, or when the process PID, Flower's at this site, is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from autofedavg.engines.flower.parcel import BadParcel, Parcel, receive, send
from autofedavg.engines.flower.resident import BYE, IDLE, LOCK, MOST_IDLE, SOCKET, same_user

if TYPE_CHECKING:
    from autofedavg.engines.remote.site_service import SiteService

log = logging.getLogger(__name__)

LOOK = 0.5  # seconds between two looks at the watched process
SUCCESSION = 30.0  # seconds to wait for a worker that is ending


def main() -> None:
    """Listens until it is time to end."""
    folder, watch = Path(sys.argv[1]), int(sys.argv[2])
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the SuperNode's terminal
    if not _take(folder):
        return
    listener = _listen(folder)
    threading.Thread(target=_watch, args=(folder, watch), daemon=True).start()
    log.info("listening, for as long as process %d runs", watch)
    serve(listener, float(os.environ.get(IDLE, MOST_IDLE)))
    _end(folder)


def serve(listener: socket.socket, idle: float) -> None:
    """Answers one request after another, until told to end or until none comes for so long."""
    listener.settimeout(idle)
    selection: SiteService | None = None
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            log.info("nothing was asked for %g s", idle)
            return
        with connection:
            if not same_user(connection):
                log.warning("somebody else than this user knocked")
                continue
            connection.settimeout(None)
            try:
                request = receive(connection)
                if request.about.get("verb") == BYE:
                    send(connection, Parcel())
                    log.info("told to end")
                    return
                selection = selection or _selection(request)
                send(connection, _answer(selection, request))
            except (BadParcel, KeyError) as error:
                log.warning("not a request: %s", error)
            except (OSError, EOFError):
                log.warning("who asked is gone", exc_info=True)


def _selection(request: Parcel) -> SiteService:
    from autofedavg.engines.remote.site_service import (
        SiteService,  # PyTorch: not before somebody waits for it
    )

    local = request.about.get("local")
    return SiteService(request.about["job"], request.about["site"], Path(local) if local else None)


def _answer(selection: SiteService, request: Parcel) -> Parcel:
    from autofedavg.engines.flower.codec import pack, unpack
    from autofedavg.federation.messages import Message
    from autofedavg.federation.serialization import WireError, not_sent

    try:
        message = unpack(request)
    except WireError as error:
        log.warning("not a note: %s", error)
        return pack(Message({}, {"error": error.what}))
    started, verb = time.perf_counter(), request.about["verb"]
    answer = selection.answer(verb, message)
    log.info("%s: %.3f s", verb, time.perf_counter() - started)
    try:
        return pack(answer)
    except Exception as error:
        log.exception("%s", verb)
        return pack(not_sent(verb, error))


def _take(folder: Path) -> bool:
    """Holds the folder's lock until this process ends; False where a living worker has it."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + SUCCESSION
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _alive(folder) or time.monotonic() > until:
                os.close(lock)
                return False
            time.sleep(0.05)
        else:
            return True


def _alive(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        try:
            attempt.connect(str(folder / SOCKET))
        except OSError:
            return False
    return True


def _listen(folder: Path) -> socket.socket:
    path = folder / SOCKET
    path.unlink(missing_ok=True)  # left by one that was killed: the lock is ours now
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(8)
    return listener


def _watch(folder: Path, watch: int) -> None:
    """Ends this process, in the middle of an answer too, once the watched one is gone."""
    gone = _GoneBy(watch)
    while not gone():
        time.sleep(LOOK)
    log.info("process %d is gone", watch)
    _end(folder)


class _GoneBy:
    """Whether a process has ended; a later one with its number is not mistaken for it."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._born = self._birth()

    def __call__(self) -> bool:
        birth = self._birth()
        return birth is None or birth != self._born

    def _birth(self) -> str | None:
        if sys.platform != "linux":
            with contextlib.suppress(OSError):
                os.kill(self._process, 0)
                return "alive"
            return None
        try:
            text = Path(f"/proc/{self._process}/stat").read_text()
        except OSError:
            return None
        after = text.rpartition(")")[2].split()
        return None if after[0] in "ZX" else after[19]


def _end(folder: Path) -> NoReturn:
    (folder / SOCKET).unlink(missing_ok=True)
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
